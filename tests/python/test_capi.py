"""The ctypes mirror of the C ABI compared with its header, and its errors. Needs no torch."""
import ctypes
import re
import shutil
import subprocess

import pytest

import sluice_moe
from sluice_moe import capi

STRUCTS = {
    "sluice_text": capi.Text, "sluice_device_options": capi.DeviceOptions, "sluice_stream": capi.Stream, "sluice_tensor": capi.Tensor,
    "sluice_arg": capi.Arg, "sluice_launch": capi.Launch, "sluice_policy": capi.Policy, "sluice_step": capi.Step,
    "sluice_layer_options": capi.LayerOptions, "sluice_weight": capi.Weight, "sluice_weights": capi.Weights,
    "sluice_question": capi.Question, "sluice_layer_question": capi.LayerQuestion, "sluice_field": capi.Field, "sluice_slot": capi.Slot,
}
NUMBERS = {
    "SLUICE_OK": capi.OK, "SLUICE_INVALID_ARGUMENT": capi.INVALID_ARGUMENT, "SLUICE_UNSUPPORTED": capi.UNSUPPORTED,
    "SLUICE_OUT_OF_MEMORY": capi.OUT_OF_MEMORY, "SLUICE_IO": capi.IO, "SLUICE_CORRUPT": capi.CORRUPT, "SLUICE_DEVICE": capi.DEVICE,
    "SLUICE_CPU": capi.CPU, "SLUICE_CUDA": capi.CUDA, "SLUICE_RANK_MAX": capi.RANK_MAX, "SLUICE_ARGS_MAX": capi.ARGS_MAX,
    **{f"SLUICE_{name.upper()}": number for number, name in enumerate(capi.DTYPE_TEXT)},
}


@pytest.fixture(scope="module")
def header_says(tmp_path_factory):
    """Compiles the header in C and returns the values of expressions: sizes, offsets, numbers."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "wanted a C compiler, found none"
    from conftest import ROOT

    wanted = list(NUMBERS)
    for name, struct in STRUCTS.items():
        wanted.append(f"sizeof({name})")
        wanted += [f"offsetof({name}, {field[0]})" for field in struct._fields_]
    program = "#include <stdio.h>\n#include <stddef.h>\n#include <sluice/sluice.h>\nint main(void) {\n" + "".join(
        f'  printf("%lld\\n", (long long)({one}));\n' for one in wanted) + "}\n"
    at = tmp_path_factory.mktemp("header") / "says"
    subprocess.run([compiler, "-x", "c", "-", "-I", ROOT / "include", "-o", at], input=program, text=True, check=True)
    printed = subprocess.run([at], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(wanted, map(int, printed), strict=True))


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_lie_as_in_the_header(header_says, name):
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == header_says[f"sizeof({name})"]
    for field in struct._fields_:
        assert getattr(struct, field[0]).offset == header_says[f"offsetof({name}, {field[0]})"], field[0]


def test_numbers_are_those_of_the_header(header_says):
    assert {name: header_says[name] for name in NUMBERS} == NUMBERS


def test_functions_are_those_of_the_header(root):
    text = re.sub(r"/\*.*?\*/", "", (root / "include/sluice/sluice.h").read_text(), flags=re.DOTALL)
    declared = {name: arguments for name, arguments in re.findall(r"SLUICE_API[^;(]*?\b(sluice_\w+)\(([^;]*)\);", text)}
    for name, (_, arguments) in capi._FUNCTIONS.items():
        assert name in declared, f"{name} is not in the header"
        count = 0 if declared[name].strip() == "void" else declared[name].count(",") + 1
        assert len(arguments) == count, f"{name}: wanted {count} arguments, found {len(arguments)}"


def test_version_is_the_header_s(root):
    text = (root / "include/sluice/sluice.h").read_text()
    parts = [re.search(rf"SLUICE_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    assert sluice_moe.version() == ".".join(parts) == sluice_moe.__version__


@pytest.mark.parametrize("status, error", [(1, sluice_moe.InvalidArgument), (2, sluice_moe.Unsupported), (3, sluice_moe.OutOfMemory),
                                           (4, sluice_moe.IoError_), (5, sluice_moe.CorruptData), (6, sluice_moe.DeviceFault)])
def test_every_status_has_an_exception(status, error):
    raised = capi.error_of(status, "why")
    assert type(raised) is error and raised.status == status and str(raised) == "why"
    assert isinstance(raised, sluice_moe.SluiceError) and isinstance(raised, RuntimeError)
    assert isinstance(raised, ValueError) == (status == capi.INVALID_ARGUMENT)


def test_an_error_has_the_message_of_the_c_abi():
    with pytest.raises(sluice_moe.InvalidArgument, match="threads: wanted 0 .*found -1"):
        capi.call("sluice_open", capi.DeviceOptions(ctypes.sizeof(capi.DeviceOptions), capi.CPU, -1), ctypes.c_void_p())


def test_fields_are_words():
    assert capi.words({"bias": True, "hidden": 2880, "alpha": 1.702, "w": "bf16"}) == b"bias=1 hidden=2880 alpha=1.702 w=bf16"
    for bad in ("", "a b", "x\n"):
        with pytest.raises(sluice_moe.InvalidArgument, match="wanted a number or a word without spaces"):
            capi.words({"w": bad})


def test_questions_about_operations():
    assert {"router_gemm", "route_topk", "expert_mlp"} <= set(capi.op_names())
    hidden = next(f for f in capi.op_fields("router_gemm") if f["name"] == "hidden")
    assert hidden == {"name": "hidden", "doc": "length of the sums", "value": "2880", "words": None}
    x = next(t for t in capi.op_tensors("router_gemm", b"tokens=3 hidden=64") if t["name"] == "x")
    assert x == {"name": "x", "role": "in", "used": True, "rows_may_be_strided": True, "dtype": "bf16", "shape": (3, 64)}
    assert next(f for f in capi.layer_fields("gpt-oss-20b") if f["name"] == "experts")["value"] == "32"


def test_explain_without_a_gpu():
    said = sluice_moe.explain("router_gemm", experts=128, hidden=2880, tokens=1)
    assert "device   h200" in said and "->" in said and "cuda.router_gemm" in said
    assert "refused" in sluice_moe.explain("router_gemm", kernel="cpu.router_gemm.dot", experts=128, hidden=2880)
    assert "experts=0" in sluice_moe.explain("router_gemm", experts=0)  # a problem that breaks the contract is explained, too
    with pytest.raises(sluice_moe.InvalidArgument, match="no_such"):
        sluice_moe.explain("router_gemm", no_such=1)
    layer = sluice_moe.explain("gpt-oss-120b", tokens=[1, 64])
    assert "tokens   1\n" in layer and "tokens   64\n" in layer and "cuda." in layer
    with pytest.raises(sluice_moe.InvalidArgument, match="gpt-oss-121b"):
        sluice_moe.explain("gpt-oss-121b")


def test_why_not():
    assert sluice_moe.why_not("gpt-oss-120b", tokens_max=1024) is None
    assert sluice_moe.why_not("gpt-oss-120b", tp=(0, 8), tokens_max=64) is None
    assert "tp" in sluice_moe.why_not("gpt-oss-120b", tp=(5, 3), tokens_max=64)
    assert "act" in sluice_moe.why_not("gpt-oss-120b", act="no_such")


@pytest.mark.parametrize("fields, said", [
    (dict(alpha="nan"), "alpha: wanted a number between -1e30 and 1e30, found nan"), (dict(beta="inf"), "beta: wanted a number"),
    (dict(shared_intermediate=-1), "shared_intermediate: wanted 0 to 65536, found -1"),
    (dict(intermediate=2**62), f"intermediate: wanted 1 to 65536, found {2**62}"), (dict(norm_eps="1e999"), "norm_eps: wanted a number 2^-100 to 1")])
def test_a_layer_s_fields_have_ranges(fields, said):
    assert said in sluice_moe.why_not("gpt-oss-20b", tokens_max=4, **fields)


def test_tensors_of_a_problem_that_cannot_be():
    for op, problem, said in (("router_gemm", b"tokens=-1", "needs tokens from 0"), ("expert_gemm", b"experts=-4", "needs experts from 1"),
                              ("router_gemm", b"hidden=9223372036854775807", "needs hidden from 1")):
        with pytest.raises(sluice_moe.InvalidArgument, match=said):
            capi.op_tensors(op, problem)


def test_what_a_callback_returns_counts_with_all_its_bits():
    device = ctypes.c_void_p()
    capi.call("sluice_open", None, device)
    enqueue_type = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    record = capi.lib.sluice_record
    record.restype = ctypes.c_int32
    try:
        stream = capi.lib.sluice_device_stream(device)
        for returned in (256, 65536, -1, 7):
            recording, error = ctypes.c_void_p(), capi.Message()
            callback = enqueue_type(lambda _: returned)
            status = record(device, stream, callback, None, ctypes.byref(recording), ctypes.byref(error))
            assert (status, recording.value) == (capi.INVALID_ARGUMENT, None)
            assert f"the callback returned {returned}," in error.read()
    finally:
        capi.lib.sluice_close(device)
