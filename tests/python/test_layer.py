"""MoeLayer on the CPU: values, loading and exporting weights, and its behaviour as a module."""
import copy
import io
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

import sluice_moe  # noqa: E402
import sluice_moe.unpack  # noqa: E402
from conftest import Made, close, mxfp4  # noqa: E402


@pytest.mark.parametrize("expert_w", ["bf16", "e2m1"])
@pytest.mark.parametrize("gate_order", ["interleaved", "gate_first", "up_first"])
def test_a_layer_is_what_its_formula_says(expert_w, gate_order):
    made = Made(expert_w=expert_w, gate_order=gate_order, bias=True)
    layer, x = made.layer(), made.x(7)
    assert layer.packed.numel() == layer.weight_bytes and layer.packed.data_ptr() % 256 == 0
    assert close(layer(x), made.wanted(x))


FP8 = torch.float8_e4m3fn


def codes_and_scales(scales: str, rows: int, width: int, draw: torch.Generator):
    """FP8 codes or pairs of e2m1 codes [4, rows, width], their scales by plain suffix, and the weights in bf16, which holds them exactly."""
    def powers(*shape):
        return torch.randint(-6, -3, (4, *shape), generator=draw).float().exp2()
    if scales == "nv":
        codes = torch.randint(0, 256, (4, rows, width // 2), dtype=torch.uint8, generator=draw)
        values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
        weights = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], -1).flatten(-2)
        of_columns, of_experts = powers(rows, width // 16).to(FP8), torch.tensor([1, .5, .25, 2])
        weights = weights * of_columns.float().repeat_interleave(16, -1) * of_experts[:, None, None]
        return codes, {"_scale": of_columns, "_row_scale": of_experts}, weights.bfloat16()
    codes = torch.randn(4, rows, width, generator=draw).to(FP8)
    if scales == "blocks":
        of_blocks = powers((rows + 127) // 128, (width + 127) // 128)
        each = of_blocks.repeat_interleave(128, 1)[:, :rows].repeat_interleave(128, 2)[:, :, :width]
        return codes, {"_scale": of_blocks}, (codes.float() * each).bfloat16()
    if scales == "mx":
        of_columns = powers(rows, width // 32)
        e8m0 = (of_columns.log2() + 127).to(torch.uint8)
        return codes, {"_scale": e8m0}, (codes.float() * of_columns.repeat_interleave(32, -1)).bfloat16()
    of_rows = powers(rows)
    return codes, {"_row_scale": of_rows}, (codes.float() * of_rows[..., None]).bfloat16()


@pytest.mark.parametrize("scales", ["blocks", "rows", "mx", "nv"])
def test_stacked_experts_in_every_format(scales):
    """The layer equals one with the same weights in bf16, as the codes are exact."""
    draw = torch.Generator().manual_seed(3)
    sizes = dict(hidden=192, intermediate=160, experts=4, top_k=2, act="swiglu", gate_order="gate_first", x="f32", g="f32")
    router = torch.randn(4, 192, generator=draw).bfloat16()
    stored, dense = {"router": router}, {"router": router}
    for name, rows, width in (("experts.up", 320, 192), ("experts.down", 192, 160)):
        stored[name], beside, dense[name] = codes_and_scales(scales, rows, width, draw)
        stored |= {name + suffix: t for suffix, t in beside.items()}
    made = []
    for tensors, format in ((stored, {"expert_w": "e2m1" if scales == "nv" else "e4m3", "expert_scales": scales}), (dense, {"expert_w": "bf16"})):
        layer = sluice_moe.MoeLayer(tokens_max=8, device="cpu", **sizes, **format)
        layer.load(tensors, naming="plain")
        made.append(layer)
    x = torch.randn(5, 192, generator=draw)
    torch.testing.assert_close(made[0](x), made[1](x), rtol=1e-4, atol=1e-4)
    with pytest.raises(sluice_moe.Unsupported, match=f"unpack: wanted experts in bf16 or MXFP4, found .*expert_scales={scales}"):
        sluice_moe.unpack.unpacked(made[0].packed_bytes())


def test_shapes_of_a_call():
    made = Made()
    layer, x = made.layer(), made.x(6)
    y = layer(x)
    assert torch.equal(layer(x.view(2, 3, -1)), y.view(2, 3, -1))
    assert torch.equal(layer(x[0]), y[0])
    assert layer(x[:0]).shape == (0, 64)
    out = torch.full_like(x, torch.nan)
    assert layer(x, out=out) is out and torch.equal(out, y)
    wide = torch.zeros(6, 128, dtype=torch.bfloat16)
    wide[:, 64:] = x
    assert torch.equal(layer(wide[:, 64:]), y)  # strided rows
    apart = torch.zeros(6, 128, dtype=torch.bfloat16)
    layer(x, out=apart[:, :64])
    assert torch.equal(apart[:, :64], y) and apart[:, 64:].count_nonzero() == 0


def test_rows_that_begin_anywhere_want_a_field():
    made = Made()
    x = made.x(5)
    buffer = torch.zeros(5 * 65 + 1, dtype=torch.bfloat16)
    askew = buffer[1:].as_strided((5, 64), (65, 1))
    askew.copy_(x)
    layer = made.layer(x_unaligned=True)
    assert torch.equal(layer(askew), layer(x))
    with pytest.raises(sluice_moe.InvalidArgument, match="x: wanted rows that begin at multiples of 16 bytes.*x_unaligned"):
        made.layer()(askew)


def test_what_fields_ask_for():
    made = Made()
    x, residual = made.x(5), made.x(5)
    plain = made.layer()
    with_residual = made.layer(residual=True)
    assert close(with_residual(x, residual=residual), made.wanted(x) + residual.double())
    same = residual.clone()
    assert torch.equal(with_residual(x, residual=same, out=same), with_residual(x, residual=residual))
    captured = torch.full((5, 2), -7, dtype=torch.int32)
    assert torch.equal(made.layer(capture=True)(x, captured=captured), plain(x))
    assert torch.equal(captured.sort().values, made.choice(x)[0].sort().values)
    valid = torch.tensor([3], dtype=torch.int32)
    y = made.layer(padded=True)(x, tokens_valid=valid)
    assert torch.equal(y[:3], plain(x)[:3]) and y[3:].count_nonzero() == 0
    ids, weights = made.choice(x)
    bits = weights.bfloat16().view(torch.int16).int() & 0xFFFF
    assert close(made.layer(input="packed")(x, packed=ids << 16 | bits), made.experts(x, ids, weights.bfloat16()))
    layer = made.layer(input="precomputed")
    for outside in (2**32, 2**32 + 3, -(2**32), -(2**33), 2**31, 8):
        assert not layer(x, ids=torch.full((5, 2), outside), weights=weights).any(), outside
    assert torch.equal(made.layer(input="precomputed")(x.view(1, 5, -1), ids=ids.view(1, 5, 2).long(), weights=weights.view(1, 5, 2))[0],
                       made.layer(input="precomputed")(x, ids=ids, weights=weights))


@pytest.mark.parametrize("ranks", ["tp", "ep"])
def test_answers_of_all_ranks_add_up(ranks):
    made = Made(expert_w="e2m1", bias=True, intermediate=128)
    x = made.x(5)
    parts = [made.layer(**{ranks: (rank, 2)})(x).double() for rank in range(2)]
    assert close(sum(parts), made.wanted(x))
    assert not torch.equal(parts[0], parts[1])


def test_names_of_a_checkpoint():
    made = Made()
    x = made.x(4)
    named = {"model.layers.5.mlp.gate.weight": made.tensors["router"], "model.layers.5.input_layernorm.weight": torch.ones(64)}
    for e in range(8):
        gate, up = made.tensors["experts.up"][e].chunk(2)
        for name, tensor in (("gate", gate), ("up", up), ("down", made.tensors["experts.down"][e])):
            named[f"model.layers.5.mlp.experts.{e}.{name}_proj.weight"] = tensor
    layer = sluice_moe.MoeLayer(device="cpu", tokens_max=8, **made.fields)
    layer.load(named)
    assert torch.equal(layer(x), made.layer()(x))
    other = {name.replace("layers.5", "layers.6"): tensor * 2 for name, tensor in named.items()}
    with pytest.raises(sluice_moe.InvalidArgument, match="layers 5, 6"):
        layer.load({**named, **other})
    layer.load({**named, **other}, naming="qwen3_moe", layer=6)
    assert not torch.equal(layer(x), made.layer()(x))


def test_mxfp4_as_gpt_oss_has_it():
    made = Made(expert_w="e2m1", gate_order="interleaved", bias=True)
    begin = "model.layers.0.mlp."
    tensors = {begin + "router.weight": made.tensors["router"], begin + "router.bias": made.tensors["router_bias"]}
    for ours, theirs in (("experts.up", "experts.gate_up_proj"), ("experts.down", "experts.down_proj")):
        codes = made.tensors[ours]
        tensors[f"{begin}{theirs}_blocks"] = codes.view(*codes.shape[:2], -1, 16)
        tensors[f"{begin}{theirs}_scales"] = made.tensors[ours + "_scale"]
        tensors[f"{begin}{theirs}_bias"] = made.tensors[ours + "_bias"]
    layer = sluice_moe.MoeLayer(device="cpu", tokens_max=8, **made.fields)
    layer.load(tensors)
    assert torch.equal(layer(made.tensors["router"]), made.layer()(made.tensors["router"]))


def test_replacing_an_expert_and_all():
    made, other = Made(seed=1), Made(seed=2)
    layer, x = made.layer(), made.x(6)
    at = layer.packed.data_ptr()
    for name in ("experts.up", "experts.down"):
        made.tensors[name][3] = other.tensors[name][3]
        made.dense[name][3] = other.dense[name][3]
    layer.replace_expert(3, {name: made.tensors[name][3:4] for name in ("experts.up", "experts.down")})
    assert close(layer(x), made.wanted(x))
    layer.load(other.tensors)
    assert close(layer(x), other.wanted(x)) and layer.packed.data_ptr() == at


def test_refused_weights_leave_the_old_ones():
    made = Made(expert_w="e2m1")
    layer, x = made.layer(), made.x(4)
    before = layer(x)
    broken = {**made.tensors, "experts.up_scale": made.tensors["experts.up_scale"].clone()}
    broken["experts.up_scale"][2, 5, 0] = 255
    for tensors, error, message in (
            (broken, sluice_moe.CorruptData, "NaN"),
            ({**made.tensors, "router": torch.zeros(8, 32)}, sluice_moe.SluiceError, r"router.*wanted.*found"),
            ({**made.tensors, "router": torch.zeros(8, 64, dtype=torch.complex64)}, sluice_moe.Unsupported, "complex64"),
            ({**made.tensors, "router": [1, 2]}, sluice_moe.InvalidArgument, "wanted a torch.Tensor, found list"),
            ({k: t for k, t in made.tensors.items() if k != "experts.down"}, sluice_moe.SluiceError, "experts.down")):
        with pytest.raises(error, match=message):
            layer.load(tensors)
        assert torch.equal(layer(x), before)


def test_what_cannot_be_made():
    with pytest.raises(sluice_moe.InvalidArgument, match="gpt-oss-121b"):
        sluice_moe.MoeLayer("gpt-oss-121b", device="cpu")
    with pytest.raises(sluice_moe.InvalidArgument, match="fp8_activations: wanted activations in bf16, experts in e2m1"):
        sluice_moe.MoeLayer("gpt-oss-20b", device="cpu", tokens_max=8, fp8_activations=True)
    with pytest.raises(sluice_moe.InvalidArgument, match="hiden"):
        sluice_moe.MoeLayer(hiden=64, device="cpu")
    with pytest.raises(sluice_moe.InvalidArgument, match="tp"):
        sluice_moe.MoeLayer("gpt-oss-20b", tp=(2, 2), device="cpu", tokens_max=8)
    with pytest.raises(sluice_moe.SluiceError, match="no.such.kernel"):
        Made().layer(kernel="no.such.kernel")
    with pytest.raises(sluice_moe.Unsupported, match="device: wanted cpu or cuda, found meta"):
        sluice_moe.MoeLayer(device="meta", **Made().fields)
    if not torch.cuda.is_available():
        with pytest.raises(sluice_moe.Unsupported, match="device: wanted cuda, found no GPU"):
            sluice_moe.MoeLayer(device="cuda", **Made().fields)


def test_a_call_without_weights_or_with_too_many_tokens():
    made = Made()
    layer = sluice_moe.MoeLayer(device="cpu", tokens_max=4, **made.fields)
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted weights"):
        layer(made.x(1))
    layer.load(made.tensors)
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted 0 to 4 tokens .*found 5"):
        layer(made.x(5))


def test_state_dict_round_trip():
    made = Made(expert_w="e2m1")
    x = made.x(4)
    model = torch.nn.ModuleDict({"moe": made.layer()})
    state = model.state_dict()
    assert list(state) == ["moe._extra_state"] and state["moe._extra_state"].dtype == torch.uint8
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    empty = torch.nn.ModuleDict({"moe": sluice_moe.MoeLayer(device="cpu", tokens_max=8, **made.fields)})
    assert empty.state_dict()["moe._extra_state"].numel() == 0
    empty.load_state_dict(torch.load(file))
    assert torch.equal(empty["moe"](x), model["moe"](x))
    spoilt = {"moe._extra_state": state["moe._extra_state"].clone()}
    spoilt["moe._extra_state"][-5000] ^= 1
    with pytest.raises(sluice_moe.CorruptData):
        empty.load_state_dict(spoilt)
    assert torch.equal(empty["moe"](x), model["moe"](x))
    other = Made(expert_w="e2m1", intermediate=128).layer()
    with pytest.raises(sluice_moe.CorruptData, match="intermediate"):
        other.load_state_dict(model["moe"].state_dict())


def test_copies():
    made = Made()
    layer, x = made.layer().eval(), made.x(4)
    y = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), y) and not twin.training and twin.packed.data_ptr() != layer.packed.data_ptr()
    empty = copy.deepcopy(sluice_moe.MoeLayer(device="cpu", tokens_max=8, **made.fields))
    assert not empty.is_loaded


def test_a_layer_stays_where_it_is_packed():
    made = Made()
    layer, x = made.layer(), made.x(4)
    y = layer(x)
    for same in (layer.float(), layer.half(), layer.to("cpu"), layer.to(torch.float64), layer.requires_grad_(False)):
        assert torch.equal(same(x), y)
    for move, message in ((lambda: layer.to("meta"), "cannot move from cpu.* to meta"),
                          (lambda: layer.to_empty(device="meta"), "cannot move from cpu.* to meta"),
                          (layer.share_memory, "share_memory.. is not supported")):
        with pytest.raises(sluice_moe.Unsupported, match=message):
            move()
        assert torch.equal(layer(x), y)


def test_explain_and_text():
    layer = Made().layer()
    assert "hidden=64" in layer.text and layer.fields["experts"] == "8" and layer.dtype is torch.bfloat16
    said = layer.explain([1, 17])
    assert "tokens   1\n" in said and "tokens   17\n" in said and "cpu.router_gemm" in said
    assert "hidden=64" in repr(layer) and "loaded=True" in repr(layer)
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted 0 to 64"):
        layer.explain(65)


def test_rows_that_do_not_depend_on_each_other():
    made = Made()
    x = made.x(9)
    layer = made.layer(batch_invariant=True)
    alone = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), alone)


def test_a_named_kernel_is_the_only_one():
    kernel = "cpu.expert_gemm.panels_f32"
    layer = Made().layer(kernel=kernel)
    assert {line.split()[1].split(":")[0] for line in layer.explain(8).splitlines() if line.startswith("  experts.")} == {kernel}


def test_threads_share_a_layer():
    made = Made()
    layer, other = made.layer(), Made(seed=5).layer()
    xs = [made.x(1 + i % 7) for i in range(6)]
    wanted = [(layer(x), other(x)) for x in xs]
    faults = []

    def work(x, expected):
        for _ in range(200):
            got = layer(x), other(x)
            if not (torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])):
                faults.append(x.shape)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(xs, wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_layers_end():
    import gc
    import weakref

    layer = Made().layer()
    number, ends = layer.handle, weakref.ref(layer)
    y = torch.ops.sluice.moe_layer(Made().x(2), layer.packed, number)
    assert y.shape == (2, 64)
    packed = layer.packed
    del layer
    gc.collect()
    assert ends() is None
    with pytest.raises(sluice_moe.InvalidArgument, match="that exists in this process"):
        torch.ops.sluice.moe_layer(Made().x(2), packed, number)


def test_the_reference_reads_mxfp4():
    codes, scales = torch.tensor([[0x21] * 16], dtype=torch.uint8), torch.tensor([[128]], dtype=torch.uint8)
    assert mxfp4(codes, scales).tolist() == [[1.0, 2.0] * 16]
