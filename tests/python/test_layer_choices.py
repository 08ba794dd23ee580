"""MoeLayer with kernels of the experts by phase, one compiled graph at counts of tokens that other kernels run, and adapters on the router."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import sluice_moe  # noqa: E402
from conftest import Made, close  # noqa: E402

TOKENS_MAX = 300
DECODE = "cpu.expert_gemm.panels_f32"  # runs on every CPU
COUNTS = (3, 5, 8, 17, 33, 64, 65, 128, 200, 299, 300)


def experts_of(layer, tokens: int) -> set[str]:
    """The kernels of the experts at a number of tokens, by the names that explain() prints."""
    words = (line.split() for line in layer.explain(tokens).splitlines())
    return {w[1].split(":")[0] for w in words if len(w) == 2 and ".expert_gemm." in w[1]}


# ---- Kernels by phase ----


def test_kernels_by_phase():
    made = Made(hidden=64, intermediate=96, expert_w="e2m1")
    free = made.layer(tokens_max=128)
    pinned = made.layer(tokens_max=128, kernel_decode=DECODE, decode_tokens=5)
    assert experts_of(pinned, 5) == {DECODE} and experts_of(pinned, 6) == experts_of(free, 6)
    pinned = made.layer(tokens_max=128, kernel_decode="auto", kernel_prefill=DECODE.rpartition(".")[2])  # decode_tokens: 64
    assert experts_of(pinned, 64) == experts_of(free, 64) and experts_of(pinned, 65) == {DECODE}
    for tokens in (1, 5, 6, 64, 65):
        x = made.x(tokens)
        assert close(pinned(x), made.wanted(x))


def test_kernels_by_phase_survive_a_copy():
    import copy

    layer = Made().layer(kernel_decode=DECODE)
    assert experts_of(copy.deepcopy(layer), 1) == {DECODE}


def test_explain_and_why_not_take_the_phases():
    name = "cuda.expert_gemm.mxfp4_tile_sm90"
    said = sluice_moe.explain("gpt-oss-20b", device="h200", tokens=[1, 300], kernel_decode=name, decode_tokens=8)
    assert name in said.split("tokens   300")[0]
    assert sluice_moe.why_not("gpt-oss-20b", device="h200", kernel_decode=name) is None
    assert "did you mean 'mxfp4_tile_sm90'" in sluice_moe.why_not("gpt-oss-20b", device="h200", kernel_decode="mxfp4_tile_sm9")
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted a layer, found the operation router_gemm; use kernel"):
        sluice_moe.explain("router_gemm", device="h200", kernel_decode=name)


@pytest.mark.parametrize("given, reason", [({"kernel_decode": "panels_f23"}, "did you mean 'panels_f32'"),
                                           ({"kernel_prefill": "cpu.expert_gemm.bf16_amx", "decode_tokens": 1}, "bf16_amx"), ({"decode_tokens": -1}, "-1")])
def test_a_kernel_that_cannot_run_is_an_error(given, reason):
    with pytest.raises(sluice_moe.Error, match=reason):
        Made(expert_w="e2m1").layer(**given)


# ---- One compiled graph ----


def test_a_compiled_graph_changes_kernels_with_the_count_of_tokens():
    """torch.compile once. At each count the graph runs the kernel that explain() names: its output has the bits of a layer that has this kernel
    alone. Kernels sum in different orders, so equal bits identify the kernel."""
    from torch._dynamo.testing import CompileCounterWithBackend

    made = Made(hidden=256, intermediate=512, experts=8, top_k=2)
    layer = made.layer(tokens_max=TOKENS_MAX)
    names = {tokens: experts_of(layer, tokens) for tokens in COUNTS}
    alone = {name: made.layer(tokens_max=TOKENS_MAX, kernel_decode=name, decode_tokens=TOKENS_MAX) for name in set().union(*names.values())}
    if len(alone) == 1:
        pytest.skip(f"wanted a CPU with two kernels of the experts by count, found {', '.join(alone)} alone")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: layer(x), fullgraph=True, dynamic=True, backend=counter)
    told_apart = 0
    for tokens in COUNTS:
        x = made.x(tokens)
        got = compiled(x)
        (name,) = names[tokens]
        assert torch.equal(got, alone[name](x)), (tokens, name)
        told_apart += all(not torch.equal(got, other(x)) for n, other in alone.items() if n != name)
    assert counter.frame_count == 1, "wanted one compilation"
    if not told_apart:
        pytest.skip(f"wanted kernels whose bits differ, found equal bits of {', '.join(alone)}")


# ---- Adapters ----


@pytest.mark.parametrize("tokens", [1, 2, 9, 64])
@pytest.mark.parametrize("rank, adapters", [(4, 3), (16, 1)])
def test_adapters_on_the_router(tokens, rank, adapters):
    """Each token has its own adapter, or none. Choices follow the adapted scores."""
    made = Made(hidden=64, intermediate=96, experts=8, top_k=2)
    layer = sluice_moe.MoeLayer(device="cpu", tokens_max=64, lora_rank=rank, lora_adapters=adapters, **made.fields)
    random = torch.Generator().manual_seed(4)
    a = (torch.randn(adapters, rank, 64, generator=random) / 8).bfloat16()
    b = torch.randn(adapters, 8, rank, generator=random).bfloat16()
    scale = torch.linspace(0.5, 2, adapters)
    layer.load(made.tensors | {"lora_a": a, "lora_b": b, "lora_scale": scale})
    x = made.x(tokens)
    adapter = torch.randint(-1, adapters, (tokens,), generator=random, dtype=torch.int32)
    logits = x.double() @ made.tensors["router"].double().T
    for token, which in enumerate(adapter.tolist()):
        if which >= 0:
            logits[token] += scale[which].double() * (b[which].double() @ (a[which].double() @ x[token].double()))
    top = torch.topk(logits, 3, dim=-1)
    clear = top.values[:, 1] - top.values[:, 2] > 2**-6 * logits.abs().amax(-1)  # the choice does not depend on rounding
    ids, weights = top.indices[:, :2].to(torch.int32), torch.softmax(top.values[:, :2], -1).float()
    got = layer(x, adapter=adapter)
    assert clear.any() and close(got[clear], made.experts(x, ids, weights)[clear])
    none = layer(x, adapter=torch.full((tokens,), -1, dtype=torch.int32))
    assert torch.equal(none, made.layer()(x)), "without an adapter a token has the layer's own bits"


def test_a_layer_with_adapters_needs_them():
    made = Made()
    layer = sluice_moe.MoeLayer(device="cpu", tokens_max=8, lora_rank=4, lora_adapters=2, **made.fields)
    with pytest.raises(sluice_moe.Error, match="lora_a"):
        layer.load(made.tensors)
    layer.load(made.tensors | {"lora_a": torch.zeros(2, 4, 64).bfloat16(), "lora_b": torch.zeros(2, 8, 4).bfloat16(), "lora_scale": torch.ones(2)})
    with pytest.raises(sluice_moe.InvalidArgument, match="adapter"):
        layer(made.x(3))
    with pytest.raises(sluice_moe.InvalidArgument, match="lora_rank and lora_adapters"):
        sluice_moe.MoeLayer(device="cpu", tokens_max=8, lora_rank=4, **made.fields)
