"""The plug-in's parts with vLLM's own classes, without an engine."""
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests need vLLM (./dev test-python)")

import sluice_moe  # noqa: E402
import sluice_moe.vllm  # noqa: E402
from sluice_moe import activations  # noqa: E402
from sluice_moe.packed import packed_views  # noqa: E402
from sluice_moe.vllm import compat, config, dummy, experts, lora, method  # noqa: E402


# ---- Registration ----


def test_register_twice_and_the_name_is_known():
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config

    sluice_moe.vllm.register()
    sluice_moe.vllm.register()
    assert QUANTIZATION_METHODS.count("sluice") == 1
    assert get_quantization_config("sluice") is config.SluiceConfig


@pytest.mark.parametrize("broken, found", [("installed_version", "found 0.99.0"), ("library_problem", "found: no such file")])
def test_where_it_cannot_be_had_it_is_refused_and_all_else_left_alone(monkeypatch, broken, found):
    from vllm.model_executor.layers import quantization

    said, registered = [], {}
    if broken == "installed_version":
        monkeypatch.setattr(compat, "installed_version", lambda: "0.99.0")
    else:
        monkeypatch.setattr(compat.capi, "library_problem", lambda: "wanted the library, found: no such file")
    monkeypatch.setattr(compat, "logger", lambda: types.SimpleNamespace(warning=lambda *a: said.append(a[0] % a[1:])))
    from sluice_moe.vllm import refusal

    monkeypatch.setattr(refusal, "QUANTIZATION_METHODS", [])
    monkeypatch.setattr(refusal, "register_quantization_config", lambda name: lambda made: registered.setdefault(name, made))
    monkeypatch.setattr(quantization, "register_quantization_config", lambda name: pytest.fail("registered as if all were well"))
    sluice_moe.vllm.register()
    assert len(said) == 1 and found in said[0] and "vLLM is otherwise unaffected" in said[0]
    made = registered["sluice"]
    assert made.override_quantization_method({"quant_method": "mxfp4"}, "mxfp4", None) is None
    for ask in (lambda: made.override_quantization_method({"quant_method": "mxfp4"}, "sluice", None), made, lambda: made.from_config({})):
        with pytest.raises(ValueError, match=f"--quantization sluice: .*{found}"):
            ask()


@pytest.mark.parametrize("asked", [None, "mxfp4", "awq"])
def test_only_who_asks_gets_it(asked):
    assert config.SluiceConfig.override_quantization_method({"quant_method": "mxfp4"}, asked, None) is None


def test_checkpoints_that_are_read_and_refused():
    def model(kind, **more):
        return types.SimpleNamespace(model_type=kind, **more)

    assert config.kind_of({"quant_method": "mxfp4"}, model("gpt_oss")) == "mxfp4"
    assert all(config.kind_of({"quant_method": "fp8"}, model("deepseek_v4", expert_dtype=dtype)) == "deepseek_v4" for dtype in ("fp4", "fp8"))
    with pytest.raises(ValueError, match=r"wanted expert_dtype fp4 \(MXFP4\) or fp8, found int4"):
        config.kind_of({"quant_method": "fp8"}, model("deepseek_v4", expert_dtype="int4"))
    with pytest.raises(ValueError, match="found moe_quant_algo NVFP4"):
        config.kind_of({"quant_method": "fp8", "moe_quant_algo": "NVFP4"}, model("deepseek_v4"))
    with pytest.raises(ValueError, match="found quant_method 'mxfp4' of model_type 'qwen3_moe'"):
        config.kind_of({"quant_method": "mxfp4"}, model("qwen3_moe"))


def test_deepseek_v4_keeps_vllms_config_but_for_the_experts():
    from sluice_moe.vllm.fp8 import SluiceDeepseekV4Config

    made = config.SluiceConfig.from_config({"quant_method": "deepseek_v4_fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})
    assert type(made) is SluiceDeepseekV4Config and made.get_name() == "deepseek_v4_fp8" and made.sluice


def engine(monkeypatch, targets, runner_type: str = "generate", **more) -> None:
    """An engine's config with --enable-lora for the tests below."""
    given = types.SimpleNamespace(target_modules=targets, max_loras=2, max_lora_rank=8, **more)
    made = types.SimpleNamespace(lora_config=given, model_config=types.SimpleNamespace(runner_type=runner_type))
    monkeypatch.setattr(lora, "get_current_vllm_config", lambda: made)


def an_experts_layer(gated: bool = True):
    return types.SimpleNamespace(moe_config=types.SimpleNamespace(is_act_and_mul=gated))


@pytest.mark.parametrize("targets", [["router", "mlp.experts"], ["experts", "o_proj"], ["model.layers.3.mlp.experts"],
                                     ["experts.0.gate_proj", "experts.w1"], ["text_experts"], None])
@pytest.mark.parametrize("gated, joined, more, split", [(True, False, {}, 1), (True, True, {}, 0), (False, False, {}, 0),
                                                        (True, True, {"enable_mixed_moe_lora_format": True}, 1),
                                                        (True, True, {"enable_moe_shared_loras": True}, 1)])
def test_experts_that_vllm_may_adapt_have_room_for_adapters(monkeypatch, targets, gated, joined, more, split):
    engine(monkeypatch, targets, **more)
    monkeypatch.setattr(lora, "get_model_cls", lambda config: types.SimpleNamespace(is_3d_moe_weight=joined))
    prefix = "model.layers.0.mlp.text_experts" if targets == ["text_experts"] else "model.layers.0.mlp.experts"
    assert lora.adapter_fields(an_experts_layer(gated), prefix) == {"expert_lora_rank": 8, "lora_adapters": 2, "lora_w": "bf16",
                                                                    "expert_lora_split": split}


@pytest.mark.parametrize("targets", [["router", "qkv_proj"], ["gate_up_proj", "down_proj", "o_proj"], ["gate_proj", "up_proj", "w1", "w13"],
                                     ["shared_experts.down_proj"], ["model.layers.0.mlp.gate"]])
def test_lora_on_other_modules_leaves_experts_out_with_a_line(monkeypatch, targets):
    """Dense layers and shared experts share module names with the matrices of experts, which are one module in vLLM."""
    import vllm.lora.model_manager as model_manager
    from vllm.lora.utils import is_in_target_modules

    packed = {"gate_up_proj": ["gate_proj", "up_proj"], "experts": [f"experts.{e}.{n}_proj" for e in (0, 1) for n in ("gate", "up", "down")]}
    assert not is_in_target_modules("model.layers.3.mlp.experts", targets, packed)
    said, untouched = [], model_manager.from_layer
    monkeypatch.setattr(model_manager, "get_supported_lora_modules", model_manager.get_supported_lora_modules)
    monkeypatch.setattr(lora, "log_once", lambda line, warning=False: said.append((line, warning)))
    engine(monkeypatch, targets)
    fields = lora.adapter_fields(an_experts_layer(), "model.layers.3.mlp.experts")
    assert fields == {} and lora.why_not(an_experts_layer(), "model.layers.3.mlp.experts") == []
    lora.accept(fields)
    assert said == [(f"LoRA on {', '.join(targets)} except routed experts: an adapter with weights for routed experts is refused when it is loaded",
                     True)]
    assert model_manager.from_layer is untouched


@pytest.mark.parametrize("given", ["no LoRA", "a draft model"])
def test_without_lora_nothing_is_said(monkeypatch, given):
    monkeypatch.setattr(lora, "log_once", lambda *a, **k: pytest.fail("said something"))
    engine(monkeypatch, None, "draft" if given == "a draft model" else "generate")
    if given == "no LoRA":
        lora.get_current_vllm_config().lora_config = None
    fields = lora.adapter_fields(an_experts_layer(), "model.layers.3.mlp.experts")
    assert fields == {} and lora.why_not(an_experts_layer(), "model.layers.3.mlp.experts") == []
    lora.accept(fields)


# ---- Expert ids and maps ----


@pytest.mark.parametrize("expert_map, wanted", [
    ([0, 1, -1, -1], (0, 2)), ([-1, -1, 0, 1], (1, 2)), ([-1, 0, 1, -1], None), ([0, -1, 1, -1], None), ([1, 0, -1, -1], None),
    ([0, 1, -1], None), ([-1, -1], None)])
def test_equal_ranges(expert_map, wanted):
    assert experts.equal_ranges(expert_map) == wanted


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_local_ids(dtype):
    here = torch.tensor([0, -1, -1, 1], dtype=torch.int32)  # an empty slot must not become expert 0
    ids = torch.tensor([[0, 3], [1, -1], [2, 3]], dtype=dtype)
    assert experts.local_ids(ids, here).tolist() == [[0, 1], [-1, -1], [-1, 1]]


# ---- Fields of a layer ----


def vllm_layer(activation: str, **more):
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    none = {"swiglu_alpha": None, "swiglu_beta": None, "swiglu_limit": None}
    return types.SimpleNamespace(activation=MoEActivation(activation), **(none | more))


@pytest.mark.parametrize("activation, more, wanted", [
    ("swigluoai", {}, {"act": "swiglu_clamped", "gate_order": "interleaved", "alpha": 1.702, "beta": 1.0, "limit": 7.0}),
    ("silu", {}, {"act": "swiglu", "gate_order": "gate_first"}),
    ("silu", {"swiglu_limit": 10.0}, {"act": "swiglu_clamped", "gate_order": "gate_first", "alpha": 1.0, "beta": 0.0, "limit": 10.0}),
    ("swigluoai_uninterleave", {"swiglu_alpha": 1.5, "swiglu_beta": 1.0, "swiglu_limit": 7.0},
     {"act": "swiglu_clamped", "gate_order": "gate_first", "alpha": 1.5, "beta": 1.0, "limit": 7.0}),
    ("relu2_no_mul", {}, {"act": "relu2", "gate_order": "gate_first"}),
    ("gelu_tanh", {}, {"act": "geglu_tanh", "gate_order": "gate_first"})])
def test_activations(activation, more, wanted):
    assert activations.of_vllm(vllm_layer(activation, **more)) == wanted


@pytest.mark.parametrize("activation, more", [("silu", {}), ("silu", {"swiglu_limit": 1.5}), ("gelu", {}), ("gelu_tanh", {}),
                                              ("swigluoai_uninterleave", {"swiglu_alpha": 1.702, "swiglu_beta": 1.0, "swiglu_limit": 2.0}),
                                              ("relu2_no_mul", {}), ("silu_no_mul", {})])
def test_activations_mean_what_vllm_means(activation, more):
    """One expert per activation, compared with vLLM's formula in float64."""
    fields = activations.of_vllm(vllm_layer(activation, **more))
    gated = not activation.endswith("_no_mul")
    draw = torch.Generator().manual_seed(2)
    up = (torch.randn(1, 64 if gated else 32, 32, generator=draw) / 3).bfloat16()
    down = (torch.randn(1, 32, 32, generator=draw) / 5).bfloat16()
    layer = sluice_moe.MoeLayer(tokens_max=8, device="cpu", hidden=32, intermediate=32, experts=1, top_k=1, input="precomputed",
                                expert_w="bf16", **fields)
    layer.load({"experts.up": up, "experts.down": down}, naming="plain")
    x = torch.randn(8, 32, generator=draw).bfloat16()
    got = layer(x, ids=torch.zeros(8, 1, dtype=torch.int32), weights=torch.ones(8, 1)).double()
    h = x.double() @ up[0].double().T
    limit, alpha, beta = more.get("swiglu_limit"), more.get("swiglu_alpha", 1.0), more.get("swiglu_beta", 0.0)
    functional = torch.nn.functional
    if gated:
        gate, value = h.chunk(2, dim=-1)
        if limit:
            gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
        bent = {"gelu": functional.gelu(gate), "gelu_tanh": functional.gelu(gate, approximate="tanh")}.get(
            activation, gate * torch.sigmoid(alpha * gate))
        inside = bent * (value + beta)
    else:
        inside = {"relu2_no_mul": functional.relu(h) ** 2, "silu_no_mul": functional.silu(h)}[activation]
    wanted = inside @ down[0].double().T
    # The values between the products and the output are rounded to bf16, so the bound is 2^-9 of each term plus 2^-9 of the sum.
    bound = 2.0**-8 * (inside.abs() @ down[0].double().abs().T + wanted.abs())
    assert ((got - wanted).abs() <= bound).all()


# ---- Weights ----


def made(width=64, inside=64, count=4, kind="e2m1"):
    draw = torch.Generator().manual_seed(1)
    layer = sluice_moe.MoeLayer(tokens_max=8, device="cpu", hidden=width, intermediate=inside, experts=count, top_k=2, input="precomputed",
                                expert_w=kind, up_bias=True, down_bias=True, gate_order="gate_first", act="swiglu")
    if kind == "bf16":
        tensors = {"experts.up": torch.randn(count, 2 * inside, width, generator=draw).bfloat16() / 8,
                   "experts.down": torch.randn(count, width, inside, generator=draw).bfloat16() / 8}
    else:
        tensors = {name: torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
                   for name, shape in (("experts.up", (count, 2 * inside, width // 2)), ("experts.down", (count, width, inside // 2)))}
        tensors |= {f"{n}_scale": torch.randint(118, 124, (*t.shape[:2], t.shape[2] // 16), generator=draw, dtype=torch.uint8)
                    for n, t in tensors.items()}
    tensors |= {"experts.up_bias": torch.randn(count, 2 * inside, generator=draw).bfloat16(),
                "experts.down_bias": torch.randn(count, width, generator=draw).bfloat16()}
    layer.load(tensors, naming="plain")
    return layer, tensors


@pytest.mark.parametrize("kind", ["e2m1", "bf16"])
def test_experts_move_with_the_rows_of_views(kind):
    """vLLM's load balancing copies rows of every parameter, so that experts change places."""
    layer, _ = made(kind=kind)
    views = packed_views(layer)
    assert all(v.shape[0] == 4 and v.is_contiguous() and v.view(4, -1).data_ptr() == v.data_ptr() for v in views.values())
    x = torch.randn(8, 64).bfloat16()
    ids, weights = torch.tensor([[0, 3]] * 8, dtype=torch.int32), torch.rand(8, 2)
    before = layer(x, ids=ids, weights=weights)
    order = torch.tensor([3, 1, 2, 0])
    for view in views.values():
        view.copy_(view[order].clone())
    assert torch.equal(layer(x, ids=torch.tensor([[3, 0]] * 8, dtype=torch.int32), weights=weights), before)
    assert not torch.equal(layer(x, ids=ids, weights=weights), before)


def test_views_are_the_packed_file(tmp_path):
    from safetensors.torch import load

    layer, tensors = made()
    file = load(bytes(layer.packed_bytes().numpy()))
    views = packed_views(layer)
    assert set(views) == {n for n in file if not n.startswith("sluice.")} == set(tensors)
    assert all(torch.equal(view, file[name]) for name, view in views.items())


def test_dummy_weights_come_from_the_seed_and_keep_sizes():
    def layer():
        zeros = {"w13_weight": (2, 128, 1440), "w13_weight_scale": (2, 128, 90), "w2_weight": (2, 64, 1440), "w2_weight_scale": (2, 64, 90)}
        return types.SimpleNamespace(**{n: types.SimpleNamespace(data=torch.zeros(s, dtype=torch.uint8)) for n, s in zeros.items()})

    names = ["w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"]
    first, second, other = layer(), layer(), layer()
    dummy.fill(first, names, 7, "model.layers.0")
    dummy.fill(second, names, 7, "model.layers.0")
    dummy.fill(other, names, 7, "model.layers.1")
    assert all(torch.equal(getattr(first, n).data, getattr(second, n).data) for n in names)
    assert not torch.equal(first.w13_weight.data, other.w13_weight.data)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = first.w13_weight.data
    dense = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], -1).flatten(-2)
    dense = dense * 2.0 ** (first.w13_weight_scale.data.float() - 127).repeat_interleave(32, -1)
    out = dense[0] @ torch.randn(2880, 64)
    assert 0.6 < out.std() < 1.7  # a scale is a power of two, so the size is right within a factor of two


def test_reasons_are_the_stages_without_a_kernel():
    said = sluice_moe.why_not(device="h200", tokens_max=64, hidden=256, intermediate=100, experts=16, top_k=4, input="precomputed",
                              expert_w="e2m1")
    assert "intermediate: wanted a multiple of 32 (blocks of e2m1), found 100" in "; ".join(method.refusals(said))
    stages = "  experts.up    cuda.expert_gemm.a\n                expert_gemm rows=1\n  experts.down  none: needs x; y\n"
    assert method.refusals(stages) == ["experts.down none: needs x; y"]
    assert method.refusals("experts: wanted at most 1024, found 2000") == ["experts: wanted at most 1024, found 2000"]


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gpt-oss-120b", "deepseek-v4-flash", "qwen3-30b-a3b"])
@pytest.mark.parametrize("device", ["cpu", "h100", "h200"])
def test_the_log_names_a_kernel_of_the_experts_for_every_count(model, device):
    for tokens in (1, 8, 64, 256, 4096):
        assert method.expert_kernels(sluice_moe.explain(model, device=device, tokens=tokens)), tokens
