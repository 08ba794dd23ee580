"""Processes: forks, spawns, a missing library, and what works without torch."""
import os

import pytest

torch = pytest.importorskip("torch")

SET_UP = """
    import os, sys, torch, sluice_moe
    sys.path.insert(0, {tests!r})
    from conftest import Made
"""


@pytest.fixture
def program(run_python):
    """Runs a program after the lines of SET_UP."""
    import textwrap

    set_up = textwrap.dedent(SET_UP).format(tests=os.path.dirname(__file__))

    def run(text: str, **options) -> str:
        return run_python(set_up + textwrap.dedent(text), **options)

    return run


def test_a_forked_child_runs_the_layers_of_its_parent(program):
    said = program("""
        torch.set_num_threads(2)
        made = Made(hidden=256, intermediate=512)
        layer, x = made.layer(), made.x(32)
        logits = torch.ops.sluice.router_gemm(x, made.tensors["router"])
        y = layer(x)
        child = os.fork()
        if not child:
            try:
                same = torch.equal(layer(x), y) and torch.equal(torch.ops.sluice.router_gemm(x, made.tensors["router"]), logits)
                layer.load(made.tensors)
                same = same and torch.equal(layer(x), y)
                del layer
            except BaseException as why:
                print(why, flush=True)
                same = False
            os._exit(0 if same else 1)
        print(os.waitpid(child, 0)[1], torch.equal(layer(x), y))
    """)
    assert said.split() == ["0", "True"]


def test_a_child_of_one_that_had_a_gpu_is_refused_one(program):
    said = program("""
        from sluice_moe import capi, devices
        devices.open_device("cpu").where = capi.CUDA  # as if it were one: a fork of its process must not open it again
        child = os.fork()
        if not child:
            try:
                devices.open_device("cuda:0")
            except sluice_moe.Unsupported as why:
                print(why, flush=True)
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    """)
    assert "this process is a fork of a process in which Sluice had opened a GPU: start processes with spawn" in said


def test_layers_travel_to_spawned_processes(program, tmp_path):
    path = tmp_path / "layer"
    program(f"""
        made = Made()
        layer, x = made.layer(), made.x(4)
        torch.save((layer, x, layer(x)), {str(path)!r})
    """)
    said = program(f"""
        layer, x, y = torch.load({str(path)!r}, weights_only=False)
        print(torch.equal(layer(x), y), layer.handle)
    """)
    assert said.split() == ["True", "1"]


def test_a_process_ends_while_layers_live(program):
    program("""
        import threading
        layer = Made().layer()
        threading.Thread(target=lambda: layer(Made().x(4))).start()
    """)


def test_threads_are_torch_s(program):
    said = program("""
        torch.set_num_threads(1)
        print(sluice_moe.devices.open_device("cpu").text)
    """)
    assert said.startswith("cpu (1 thread")


def test_another_library_is_refused(run_python, tmp_path):
    said = run_python("import sluice_moe; sluice_moe.version()", fails=True, SLUICE_LIBRARY=str(tmp_path / "no.so"))
    assert "sluice_moe: the library" in said and "no.so cannot be loaded" in said and "unset SLUICE_LIBRARY" in said
    libc = next(line.split()[-1] for line in open("/proc/self/maps") if "libc.so" in line)
    assert "has no function sluice_version" in run_python("import sluice_moe; sluice_moe.version()", fails=True, SLUICE_LIBRARY=libc)


def test_the_command_says_in_one_line_that_it_has_no_library(run_python, tmp_path):
    program = "import sys; sys.argv[1:] = {}; import sluice_moe.__main__ as command; sys.exit(command.main())"
    for words in (["doctor"], ["explain", "linear"]):
        said = run_python(program.format(words), fails=True, SLUICE_LIBRARY=str(tmp_path / "no.so"))
        assert said.startswith("sluice_moe: the library") and said.count("\n") == 1, said


WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None  # as if it were not there
    import sluice_moe
"""


def test_without_torch(run_python):
    said = run_python(WITHOUT_TORCH + """
    print(sluice_moe.version(), sluice_moe.explain("router_gemm", experts=8)[:7], sluice_moe.why_not("gpt-oss-20b", tokens_max=8))
    """)
    assert said.split() == ["0.2.0", "problem", "None"]
    said = run_python(WITHOUT_TORCH + "    sluice_moe.MoeLayer\n", fails=True)
    assert "sluice_moe.MoeLayer needs torch, which is not installed" in said
    said = run_python(WITHOUT_TORCH + """
    from sluice_moe import doctor
    sys.exit(doctor.main([]))
    """)
    assert "missing       torch 2.10 or newer" in said


def test_importing_takes_no_torch_and_opens_nothing(run_python):
    said = run_python("""
        import sys, threading, sluice_moe
        print("torch" in sys.modules, threading.active_count())
    """)
    assert said.split() == ["False", "1"]


def test_another_owner_of_the_names_is_refused(run_python):
    said = run_python("""
        import torch
        library = torch.library.Library("sluice", "FRAGMENT")
        library.define("router_gemm(Tensor x) -> Tensor")
        import sluice_moe
        sluice_moe.ops
    """, fails=True)
    assert "torch.ops.sluice.router_gemm is already registered by another module" in said
