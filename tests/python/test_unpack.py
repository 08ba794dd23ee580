"""Unpacking packed bytes into a checkpoint's rows: both layouts, both types, every order of gate and up."""
import ctypes

import pytest

torch = pytest.importorskip("torch")

import sluice_moe
from sluice_moe import capi
from sluice_moe import unpack as module
from sluice_moe.devices import open_device

EXPERTS, HIDDEN, INTERMEDIATE = 3, 96, 64  # sizes that no tile divides


def plain(expert_w: str, gated: bool, biases: bool):
    draw = torch.Generator().manual_seed(1)
    out = {}
    for name, rows, width in (("experts.up", INTERMEDIATE * (2 if gated else 1), HIDDEN), ("experts.down", HIDDEN, INTERMEDIATE)):
        if expert_w == "bf16":
            out[name] = torch.randn(EXPERTS, rows, width, generator=draw).bfloat16()
        else:
            out[name] = torch.randint(0, 256, (EXPERTS, rows, width // 2), dtype=torch.uint8, generator=draw)
            out[name + "_scale"] = torch.randint(100, 140, (EXPERTS, rows, width // 32), dtype=torch.uint8, generator=draw)
        if biases:
            out[name + "_bias"] = torch.randn(EXPERTS, rows, generator=draw).bfloat16()
    return out


@pytest.mark.parametrize("expert_w", ["bf16", "e2m1"])
@pytest.mark.parametrize("act, gate_order", [("swiglu", "gate_first"), ("swiglu", "interleaved"), ("swiglu", "up_first"), ("relu2", "gate_first")])
def test_a_layer_unpacks_to_what_it_was_loaded_from(expert_w, act, gate_order):
    wanted = plain(expert_w, act == "swiglu", biases=True)
    layer = sluice_moe.MoeLayer(tokens_max=4, device="cpu", hidden=HIDDEN, intermediate=INTERMEDIATE, experts=EXPERTS, top_k=2, act=act,
                                expert_w=expert_w, gate_order=gate_order, input="precomputed", up_bias=True, down_bias=True)
    layer.load(wanted, naming="plain")
    found = module.unpacked(layer.packed_bytes())
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name].to(tensor.dtype), tensor), name


@pytest.mark.parametrize("w", ["bf16", "e2m1"])
@pytest.mark.parametrize("gated", [True, False])
def test_fragments_unpack_to_what_was_packed(w, gated):
    """The GPU layout, packed here by inverting the unpacking operation."""
    rows = plain(w, gated, biases=False)
    name, scale = rows["experts.up"], rows.get("experts.up_scale")
    matrix = {"features": INTERMEDIATE, "width": HIDDEN, "gated": gated, "gate_order": "interleaved", "w": w}
    problem = capi.words({**matrix, "experts": EXPERTS})
    slots = {slot["name"]: slot for slot in capi.op_tensors("pack_experts", problem) if slot["used"]}
    packed = torch.empty(slots["packed"]["shape"], dtype=torch.uint8)
    packed_scales = torch.empty(slots["packed_scales"]["shape"], dtype=torch.uint8) if w == "e2m1" else None
    named = {b"rows": name.view(torch.uint8), b"row_scales": scale, b"packed": packed, b"packed_scales": packed_scales}
    args = [capi.Arg(key, module._view(t, capi.U8, *t.shape)) for key, t in named.items() if t is not None]
    device, table = open_device("cpu"), ctypes.c_void_p()
    capi.call("sluice_table_create", device.handle, b"pack_experts", problem, EXPERTS, None, table)
    launch = capi.Launch((capi.Arg * len(args))(*args), len(args), None, 0, capi.lib.sluice_device_stream(device.handle))
    message = capi.Message()
    assert capi.lib.sluice_table_run(table, EXPERTS, ctypes.addressof(launch), ctypes.addressof(message)) == capi.OK, message.read()
    capi.lib.sluice_table_destroy(table)
    found, found_scales = module._rows("fragments", matrix, packed, packed_scales)
    assert torch.equal(found, name)
    assert scale is None or torch.equal(found_scales, scale)


def test_bytes_that_are_no_packed_layer_are_refused():
    with pytest.raises(sluice_moe.CorruptData, match="wanted a header within 64 bytes"):
        module.unpacked(torch.full((64,), 255, dtype=torch.uint8))
    header = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    file = torch.tensor(list(len(header).to_bytes(8, "little") + header), dtype=torch.uint8)
    with pytest.raises(sluice_moe.CorruptData, match="wanted sluice.config in its metadata, found none"):
        module.unpacked(file)
    with pytest.raises(sluice_moe.Unsupported, match="wanted layout panels16 or fragments, found row_major"):
        module._rows("row_major", {"features": 2, "width": 32, "gated": False, "w": "bf16", "gate_order": "interleaved"},
                     torch.zeros(1, 4, dtype=torch.uint8), None)
