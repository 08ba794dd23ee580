"""torch.ops.sluice on the CPU: values, errors, and torch's compilers."""
import pytest

torch = pytest.importorskip("torch")

import sluice_moe  # noqa: E402
from sluice_moe import ops  # noqa: E402
from conftest import Made, close  # noqa: E402


@pytest.fixture(scope="module")
def experts():
    """A layer that takes ids and weights, its tensors, and the inputs of a call: x, ids, weights."""
    made = Made()
    layer = made.layer(input="precomputed")
    x = made.x(6)
    return layer, made, x, *made.choice(x)


@pytest.mark.parametrize("x_type, w_type, out", [(torch.bfloat16, torch.bfloat16, None), (torch.float32, torch.float32, None),
                                                 (torch.bfloat16, torch.bfloat16, torch.bfloat16)])
@pytest.mark.parametrize("bias", [False, True])
def test_router_gemm(x_type, w_type, out, bias):
    torch.manual_seed(3)
    x, w = torch.randn(7, 96).to(x_type), torch.randn(12, 96).to(w_type)
    b = torch.randn(12).to(w_type) if bias else None
    y = torch.ops.sluice.router_gemm(x, w, b, out)
    assert y.dtype == (out or torch.float32)
    assert close(y, torch.nn.functional.linear(x.double(), w.double(), None if b is None else b.double()), 1e-5 if out is None else 0.01)


def test_router_gemm_of_rows_that_lie_apart_and_of_none():
    x, w = torch.randn(5, 192)[:, 32:128], torch.randn(4, 96)
    assert close(torch.ops.sluice.router_gemm(x, w), x.double() @ w.double().T, 1e-5)
    assert torch.ops.sluice.router_gemm(x[:0], w).shape == (0, 4)
    one = torch.randn(1, 96).as_strided((1, 96), (7, 1))  # in torch the stride of a dimension of size 1 is arbitrary
    assert close(torch.ops.sluice.router_gemm(one, w), one.double() @ w.double().T, 1e-5)


def test_more_tokens_than_a_plan_takes_run_in_pieces():
    tokens = 2 * ops.TOKENS_MAX + 3
    x, w = torch.randn(tokens, 32), torch.randn(4, 32)
    logits = torch.ops.sluice.router_gemm(x, w)
    assert close(logits, x.double() @ w.double().T, 1e-4)
    weights, ids = torch.ops.sluice.route_topk(logits, 2)
    wanted = torch.topk(logits, 2, dim=-1)
    assert torch.equal(ids.long(), wanted.indices) and close(weights, torch.softmax(wanted.values.double(), -1), 1e-5)


def test_route_topk_renormalises():
    logits = torch.randn(9, 16)
    weights, ids = torch.ops.sluice.route_topk(logits, 4, scale=2.5)
    wanted = torch.topk(logits, 4, dim=-1)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    assert torch.equal(ids.long(), wanted.indices) and close(weights, 2.5 * torch.softmax(wanted.values.double(), -1), 1e-5)


def test_route_topk_by_groups_and_a_correction_bias():
    logits, bias = torch.randn(9, 16), torch.randn(16) * 0.1
    weights, ids = torch.ops.sluice.route_topk(logits, 3, method="deepseek_v3", correction_bias=bias, groups=4, topk_groups=2)
    score = torch.sigmoid(logits)
    ranked = (score + bias).view(9, 4, 4)
    best = ranked.topk(2, dim=-1).values.sum(-1).topk(2, dim=-1).indices
    kept = torch.zeros(9, 4, dtype=torch.bool).scatter_(1, best, True).repeat_interleave(4, dim=1)
    wanted = (score + bias).masked_fill(~kept, -torch.inf).topk(3, dim=-1).indices
    assert torch.equal(ids.long().sort().values, wanted.sort().values)
    chosen = score.gather(1, ids.long())
    assert close(weights, (chosen / chosen.sum(-1, keepdim=True)).double(), 1e-4)


def test_expert_mlp(experts):
    layer, made, x, ids, weights = experts
    wanted = made.experts(x, ids, weights)
    y = torch.ops.sluice.expert_mlp(x, ids, weights, layer.packed, layer.handle)
    assert close(y, wanted)
    assert torch.equal(y, torch.ops.sluice.expert_mlp(x, ids.long(), weights, layer.packed, layer.handle))
    ids = ids.clone()
    ids[2, 0] = -1
    ids[4] = -1
    y = torch.ops.sluice.expert_mlp(x, ids, weights, layer.packed, layer.handle)
    assert close(y, made.experts(x, ids, weights)) and y[4].count_nonzero() == 0


WRONG = {
    "type": (lambda x, w: (x.half(), w), "x: wanted one of .*bf16.*found 'float16'"),
    "type of one": (lambda x, w: (x, w.int()), "w"),
    "rank": (lambda x, w: (x[0], w), r"x: wanted \[tokens, hidden\], found \[64\]"),
    "shape": (lambda x, w: (x[:, :32].contiguous(), w), r"x: shape: wanted bf16\[5, 64\], found bf16\[5, 32\]"),
    "stride": (lambda x, w: (x.t().contiguous().t(), w), "x: strides"),
    "stride of the weights": (lambda x, w: (x, w.t().contiguous().t()), "w: strides"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tensors_have_the_c_abi_s_message(what):
    change, message = WRONG[what]
    with pytest.raises(sluice_moe.SluiceError, match=message):
        torch.ops.sluice.router_gemm(*change(torch.randn(5, 64).bfloat16(), torch.randn(8, 64).bfloat16()))


def test_wrong_arguments(experts):
    layer, _, x, ids, weights = experts
    with pytest.raises(sluice_moe.InvalidArgument, match="top_k: wanted at least 1, found 0"):
        torch.ops.sluice.route_topk(torch.randn(2, 8), 0)
    with pytest.raises(sluice_moe.InvalidArgument, match="method.*no_such"):
        torch.ops.sluice.route_topk(torch.randn(2, 8), 2, method="no_such")
    with pytest.raises(sluice_moe.InvalidArgument, match="top_k"):
        torch.ops.sluice.route_topk(torch.randn(2, 8), 9)
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted MoeLayer.handle of a layer that exists in this process, found 123456"):
        torch.ops.sluice.expert_mlp(x, ids, weights, layer.packed, 123456)
    with pytest.raises(sluice_moe.InvalidArgument, match="packed: wanted MoeLayer.packed of layer .* bytes"):
        torch.ops.sluice.expert_mlp(x, ids, weights, layer.packed[1:], layer.handle)
    with pytest.raises(sluice_moe.InvalidArgument, match=r"ids_in: shape: wanted i32\[6, 2\], found i32\[5, 2\]"):
        torch.ops.sluice.expert_mlp(x, ids[:5], weights, layer.packed, layer.handle)
    with pytest.raises(sluice_moe.InvalidArgument, match="ids_in: missing"):
        torch.ops.sluice.moe_layer(x, layer.packed, layer.handle)
    with pytest.raises(NotImplementedError):  # raised by torch: no kernel for this device
        torch.ops.sluice.router_gemm(x.to("meta"), torch.empty(8, 64, device="meta")).cpu()


def test_an_error_leaves_the_next_call_alone(experts):
    layer, made, x, ids, weights = experts
    for _ in range(3):
        with pytest.raises(sluice_moe.InvalidArgument):
            layer(x[:, :32], ids=ids, weights=weights)
        assert close(layer(x, ids=ids, weights=weights), made.experts(x, ids, weights))


def test_opcheck(experts):
    layer, _, x, ids, weights = experts
    w, bias = torch.randn(8, 64).bfloat16(), torch.randn(8).bfloat16()
    torch.library.opcheck(torch.ops.sluice.router_gemm.default, (x, w, bias, torch.bfloat16))
    torch.library.opcheck(torch.ops.sluice.router_gemm.default, (x, w), {"batch_invariant": True})
    torch.library.opcheck(torch.ops.sluice.route_topk.default, (torch.randn(6, 8), 2), {"correction_bias": torch.randn(8), "method": "deepseek_v3"})
    torch.library.opcheck(torch.ops.sluice.expert_mlp.default, (x, ids, weights, layer.packed, layer.handle))
    torch.library.opcheck(torch.ops.sluice.moe_layer.default, (x, layer.packed, layer.handle), {"ids": ids, "weights": weights})
    torch.library.opcheck(torch.ops.sluice.moe_layer_out.default, (x, layer.packed, layer.handle),
                          {"ids": ids, "weights": weights, "out": torch.empty_like(x)})


class Block(torch.nn.Module):
    """A model with operations before and after a layer."""

    def __init__(self, layer, router):
        super().__init__()
        self.layer, self.router = layer, torch.nn.Parameter(router, requires_grad=False)

    def forward(self, x):
        logits = torch.ops.sluice.router_gemm(x, self.router)
        weights, ids = torch.ops.sluice.route_topk(logits, 2)
        out = torch.zeros_like(x)
        self.layer(x, ids=ids, weights=weights, out=out)
        return out + self.layer(x * 2, ids=ids.long(), weights=weights).relu()


@pytest.fixture
def block(experts):
    layer, made, *_ = experts
    return Block(layer, made.tensors["router"])


def test_compile_with_one_graph(block, experts):
    x = experts[2]
    compiled = torch.compile(block, fullgraph=True)
    for tokens in (6, 3, 5):
        assert torch.equal(compiled(x[:tokens]), block(x[:tokens])), tokens
    for dynamic in (True, False):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(block, fullgraph=True, dynamic=dynamic)(x), block(x))


@pytest.mark.parametrize("strict", [False, True])
def test_export(block, experts, strict):
    x = experts[2]
    tokens = torch.export.Dim("tokens", min=2, max=64)
    exported = torch.export.export(block, (x,), dynamic_shapes=({0: tokens},), strict=strict)
    assert torch.equal(exported.module()(x[:4]), block(x[:4]))
    assert "sluice.moe_layer" in str(exported.graph)


def test_a_layer_that_is_traced_gives_its_number_to_the_graph(experts):
    layer = experts[0]
    other = Made(seed=9).layer(input="precomputed")
    x, ids, weights = experts[2:]
    two = torch.compile(lambda x: (layer(x, ids=ids, weights=weights), other(x, ids=ids, weights=weights)), fullgraph=True)
    first, second = two(x)
    assert torch.equal(first, layer(x, ids=ids, weights=weights)) and torch.equal(second, other(x, ids=ids, weights=weights))
    assert not torch.equal(first, second)


def test_backward_is_refused(experts):
    layer, _, x, ids, weights = experts
    x = x.clone().requires_grad_()
    y = layer(x, ids=ids, weights=weights)
    with pytest.raises(RuntimeError, match="MoeLayer has no backward pass"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="MoeLayer has no backward pass"):
        layer(x, ids=ids, weights=weights, out=torch.empty_like(x))


def test_declaring_twice_changes_nothing(experts):
    import importlib

    layer, _, x, ids, weights = experts
    before = layer(x, ids=ids, weights=weights)
    importlib.reload(ops)
    assert torch.equal(layer(x, ids=ids, weights=weights), before)
