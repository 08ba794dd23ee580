"""MoeLayer on a GPU: values compared with float64, weights in torch's memory, and graphs with equal bits. For streams, compilers and refusals
see gpu.py."""
import os

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    if os.environ.get("SLUICE_NEED_GPU"):
        pytest.fail("wanted a GPU, found none", pytrace=False)
    pytest.skip("wanted a GPU, found none", allow_module_level=True)

import sluice_moe  # noqa: E402
from conftest import Made, close  # noqa: E402

CUDA = torch.device("cuda", 0)


def on_gpu(made: Made, where: str = "cuda", **options) -> sluice_moe.MoeLayer:
    layer = sluice_moe.MoeLayer(device=CUDA, **{"tokens_max": 64, **made.fields, **options})
    tensors = made.tensors if layer.fields["input"] == "logits" else {k: t for k, t in made.tensors.items() if "router" not in k}
    layer.load({name: tensor.to(where) for name, tensor in tensors.items()})
    return layer


def wide(expert_w: str, **more) -> Made:
    return Made(hidden=256, intermediate=384, experts=16, top_k=4, expert_w=expert_w, **more)


@pytest.mark.parametrize("expert_w", ["bf16", "e2m1"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("gate_order", ["interleaved", "gate_first"])
def test_a_layer_is_what_its_formula_says(expert_w, where, gate_order):
    made = wide(expert_w, gate_order=gate_order, bias=True)
    layer = on_gpu(made, where)
    for tokens in (1, 3, 17, 64):
        x = made.x(tokens)
        assert close(layer(x.cuda()).cpu(), made.wanted(x))
    assert layer(made.x(0).cuda()).shape == (0, 256)


@pytest.mark.parametrize("expert_w", ["bf16", "e2m1"])
def test_experts_alone_and_empty_slots(expert_w):
    made = wide(expert_w)
    layer = on_gpu(made, input="precomputed")
    x = made.x(33)
    ids, weights = made.choice(x)
    ids[5, 1] = -1
    ids[9] = -1
    y = layer(x.cuda(), ids=ids.cuda(), weights=weights.cuda())
    assert close(y.cpu(), made.experts(x, ids, weights))
    assert torch.equal(layer(x.cuda(), ids=ids.long().cuda(), weights=weights.cuda()), y)
    assert y[9].count_nonzero() == 0


def test_ranks_add_up_and_experts_are_replaced():
    made, other = wide("e2m1", seed=1), wide("e2m1", seed=2)
    x = made.x(9)
    for ranks in ("tp", "ep"):
        assert close(sum(on_gpu(made, **{ranks: (rank, 2)})(x.cuda()).double() for rank in range(2)).cpu(), made.wanted(x))
    layer = on_gpu(made)
    before, at = layer(x.cuda()), layer.packed.data_ptr()
    one = {name: other.tensors[name][3:4].cuda() for name in other.tensors if name != "router"}
    layer.replace_expert(3, one)
    for name in one:
        made.tensors[name][3] = other.tensors[name][3]
    made.dense = {name: made.dense[name].index_copy(0, torch.tensor([3]), other.dense[name][3:4]) for name in made.dense}
    assert layer.packed.data_ptr() == at and close(layer(x.cuda()).cpu(), made.wanted(x))
    layer.load({name: t.cuda() for name, t in wide("e2m1", seed=1).tensors.items()})
    assert torch.equal(layer(x.cuda()), before)


def test_the_packed_weights_are_torchs_memory():
    made = wide("e2m1")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    layer = on_gpu(made, "cpu")
    assert torch.cuda.memory_allocated() - before >= layer.weight_bytes
    x = made.x(5).cuda()
    y = layer(x)
    kept = layer.packed.clone()
    layer.packed.zero_()
    assert not torch.equal(layer(x), y)
    layer.packed.copy_(kept)
    assert torch.equal(layer(x), y)
    again = on_gpu(Made(hidden=256, intermediate=384, experts=16, top_k=4, expert_w="e2m1", seed=9))
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), y)


@pytest.mark.parametrize("expert_w", ["bf16", "e2m1"])
def test_graphs_give_the_bits_of_eager_calls(expert_w):
    made = wide(expert_w, bias=True)
    layer = on_gpu(made)
    for tokens in (1, 8, 40):
        x = made.x(tokens).cuda()
        want = layer(x)
        logits = torch.ops.sluice.router_gemm(x, made.tensors["router"].cuda())
        static, router = torch.zeros_like(x), made.tensors["router"].cuda()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # on a torch stream that Sluice may not know yet
            y = layer(static)
            scores = torch.ops.sluice.router_gemm(static, router)
            weights, ids = torch.ops.sluice.route_topk(scores, 4)
        for _ in range(3):
            y.fill_(torch.nan)
            static.copy_(x)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(y, want) and torch.equal(scores, logits)
            assert torch.equal(ids.long(), torch.topk(logits, 4, dim=-1).indices)


def test_a_capture_takes_no_memory_of_its_own():
    made = wide("e2m1")
    layer, x = on_gpu(made), made.x(8).cuda()
    layer(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    with torch.cuda.graph(graph):
        static = layer(x)
    graph.replay()
    torch.cuda.synchronize()
    # torch counts the memory of the graph's own pool. Besides that pool and the graph itself, nothing may be allocated.
    assert free - torch.cuda.mem_get_info()[0] <= (64 << 20), "wanted no memory beside torch's pool and the graph"
    assert torch.equal(static, layer(x))
