"""The table of activations compared with the library, and the readers of each engine's layers, without an engine."""
from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

import sluice_moe  # noqa: E402
from sluice_moe import activations, capi  # noqa: E402

PARAMETERS = {"alpha": 1.3, "beta": 0.5, "limit": 0.9}


def words(field: str) -> list[str]:
    return next(f["words"] for f in capi.layer_fields() if f["name"] == field)


def test_the_table_has_the_activations_of_the_library():
    assert set(activations.ACTIVATIONS) == set(words("act"))
    assert list(activations.GATE_ORDERS) == words("gate_order")  # the C ABI numbers them in this order


@pytest.mark.parametrize("act", activations.ACTIVATIONS)
def test_the_formula_is_that_of_the_library(act):
    """One expert with this activation, compared with float64."""
    activation = activations.ACTIVATIONS[act]
    parameters = {name: PARAMETERS[name] for name in activation.parameters}
    generator = torch.Generator().manual_seed(3)
    up = (torch.randn(1, 64 if activation.gated else 32, 32, generator=generator) / 3).bfloat16()
    down = (torch.randn(1, 32, 32, generator=generator) / 5).bfloat16()
    layer = sluice_moe.MoeLayer(tokens_max=8, device="cpu", hidden=32, intermediate=32, experts=1, top_k=1, input="precomputed",
                                expert_w="bf16", gate_order="gate_first", act=act, **parameters)
    layer.load({"experts.up": up, "experts.down": down}, naming="plain")
    x = torch.randn(8, 32, generator=generator).bfloat16()
    found = layer(x, ids=torch.zeros(8, 1, dtype=torch.int32), weights=torch.ones(8, 1)).double()
    h = x.double() @ up[0].double().T
    inside = activation.function(*(h.chunk(2, dim=-1) if activation.gated else (h,)), **parameters)
    wanted = inside @ down[0].double().T
    # The values between the products and the output are rounded to bf16, so the bound is 2^-9 of each term plus 2^-9 of the sum.
    assert ((found - wanted).abs() <= 2.0**-8 * (inside.abs() @ down[0].double().abs().T + wanted.abs())).all()


# ---- SGLang ----


def sglang_config(activation: str, gated: bool = True, **more):
    none = dict(gemm1_alpha=None, gemm1_clamp_limit=None, swiglu_limit=None, gate_up_interleaved=False)
    return types.SimpleNamespace(activation=activation, is_gated=gated, **(none | more))


@pytest.mark.parametrize("config, wanted", [
    (sglang_config("silu"), {"act": "swiglu", "gate_order": "gate_first"}),
    (sglang_config("gelu"), {"act": "geglu", "gate_order": "gate_first"}),
    (sglang_config("gelu_tanh"), {"act": "geglu_tanh", "gate_order": "gate_first"}),
    (sglang_config("silu", gemm1_alpha=1.702, gemm1_clamp_limit=7, gate_up_interleaved=True),
     {"act": "swiglu_clamped", "alpha": 1.702, "beta": 1.0, "limit": 7.0, "gate_order": "interleaved"}),
    (sglang_config("silu", gemm1_alpha=1.5, gemm1_clamp_limit=6, gemm1_beta=0.25),
     {"act": "swiglu_clamped", "alpha": 1.5, "beta": 0.25, "limit": 6.0, "gate_order": "gate_first"}),
    (sglang_config("silu", gemm1_clamp_limit=4), {"act": "swiglu_step", "limit": 4.0, "gate_order": "gate_first"}),
    (sglang_config("silu", swiglu_limit=10), {"act": "swiglu_clamped", "alpha": 1.0, "beta": 0.0, "limit": 10.0, "gate_order": "gate_first"}),
    (sglang_config("silu", False), {"act": "silu"}), (sglang_config("gelu", False), {"act": "gelu"}),
    (sglang_config("relu2", False), {"act": "relu2"})])
def test_fields_of_sglang(config, wanted):
    assert activations.of_sglang(config) == wanted


@pytest.mark.parametrize("config, message", [
    (sglang_config("situ"), r"wanted an activation of gated experts \(silu, gelu, gelu_tanh\), found situ$"),
    (sglang_config("relu2"), r"of gated experts \(.*\), found relu2$"),
    (sglang_config("gelu", gemm1_alpha=1.0), "found gelu gemm1_alpha=1.0$"),
    (sglang_config("gelu_tanh", False), r"without gate and limits \(relu2, silu, gelu\), found gelu_tanh$"),
    (sglang_config("silu", False, swiglu_limit=7), "found silu swiglu_limit=7$"),
    (sglang_config("silu", gemm1_alpha=1.702), "wanted gemm1_clamp_limit with gemm1_alpha 1.702, found none")])
def test_other_activations_of_sglang_are_refused(config, message):
    with pytest.raises(sluice_moe.UnsupportedLayer, match=message):
        activations.of_sglang(config)


# ---- vLLM ----


def vllm_layer(activation: str, alpha=None, beta=None, limit=None):
    return types.SimpleNamespace(activation=types.SimpleNamespace(value=activation), swiglu_alpha=alpha, swiglu_beta=beta, swiglu_limit=limit)


@pytest.mark.parametrize("layer, wanted", [
    (vllm_layer("swigluoai"), {"act": "swiglu_clamped", "alpha": 1.702, "beta": 1.0, "limit": 7.0, "gate_order": "interleaved"}),
    (vllm_layer("swigluoai", 1.5, 0.0, 6.0), {"act": "swiglu_clamped", "alpha": 1.5, "beta": 0.0, "limit": 6.0, "gate_order": "interleaved"}),
    (vllm_layer("swigluoai_uninterleave", 1.5, None, None), {"act": "swiglu", "alpha": 1.5, "beta": 0.0, "gate_order": "gate_first"}),
    (vllm_layer("silu", limit=10), {"act": "swiglu_clamped", "alpha": 1.0, "beta": 0.0, "limit": 10.0, "gate_order": "gate_first"}),
    (vllm_layer("silu"), {"act": "swiglu", "gate_order": "gate_first"}),
    (vllm_layer("gelu", limit=10), {"act": "geglu", "gate_order": "gate_first"}),
    (vllm_layer("gelu_tanh_no_mul"), {"act": "gelu_tanh", "gate_order": "gate_first"})])
def test_fields_of_vllm(layer, wanted):
    assert activations.of_vllm(layer) == wanted


# ---- transformers ----


class Module(torch.nn.Module):
    """A module of gated experts whose activation is in the table."""

    has_gate = True

    def __init__(self, act: str, order: str, **parameters: float):
        super().__init__()
        self.act, self.order, self.parameters_of_act = act, order, parameters
        self.limit, self.alpha = parameters.get("limit"), parameters.get("alpha")

    def _apply_gate(self, rows: torch.Tensor) -> torch.Tensor:
        first, second = (rows[..., ::2], rows[..., 1::2]) if self.order == "interleaved" else rows.chunk(2, dim=-1)
        gate, up = (second, first) if self.order == "up_first" else (first, second)
        return activations.ACTIVATIONS[self.act].function(gate, up, **self.parameters_of_act)


@pytest.mark.parametrize("order", activations.GATE_ORDERS)
@pytest.mark.parametrize("act", activations.names(gated=True))
def test_a_gated_function_is_recognised(act, order):
    parameters = {name: {"alpha": 1.702, "beta": 1.0, "limit": 7.0}[name] for name in activations.ACTIVATIONS[act].parameters}
    found = activations.of_module(Module(act, order, **parameters), torch.device("cpu"))
    assert found == {"act": act, "gate_order": order, **parameters}


@pytest.mark.parametrize("act", activations.names(gated=False))
def test_a_plain_function_is_recognised(act):
    module = types.SimpleNamespace(has_gate=False, act_fn=activations.ACTIVATIONS[act].function)
    assert activations.of_module(module, torch.device("cpu")) == {"act": act}
    module.act_fn = lambda x: 1.001 * activations.ACTIVATIONS[act].function(x)
    assert activations.of_module(module, torch.device("cpu")) is None
