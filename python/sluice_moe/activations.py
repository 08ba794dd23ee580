"""The activations of experts: the formula of each, and its names in vLLM and SGLang. For a transformers
module, the values of its function identify the activation.

This module is the only source of the MoeLayer fields act, gate_order, alpha, beta and limit for layers of an engine.
"""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Mapping

import torch

from .errors import UnsupportedLayer

GATE_ORDERS = ("interleaved", "gate_first", "up_first")  # in the order of the C ABI's numbers
# Largest relative difference between a module's function and a formula here: modules may compute in 32 bits.
_TOLERANCE = 1e-5
_F = torch.nn.functional


@dataclasses.dataclass(frozen=True)
class Activation:
    """One value of the field act. `function` takes x, or gate and up, and the parameters as keywords."""

    function: Callable[..., torch.Tensor]
    gated: bool = False
    parameters: tuple[str, ...] = ()
    vllm: tuple[str, ...] = ()  # values of vLLM's MoEActivation
    sglang: str | None = None  # MoeRunnerConfig.activation, with is_gated equal to `gated`


def _swiglu_clamped(gate: torch.Tensor, up: torch.Tensor, alpha: float, beta: float, limit: float) -> torch.Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


def _swiglu_step(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    return _F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return _F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Activation] = {
    "swiglu": Activation(lambda gate, up: _F.silu(gate) * up, gated=True, vllm=("silu",), sglang="silu"),
    "geglu": Activation(lambda gate, up: _F.gelu(gate) * up, gated=True, vllm=("gelu",), sglang="gelu"),
    "geglu_tanh": Activation(lambda gate, up: _gelu_tanh(gate) * up, gated=True, vllm=("gelu_tanh",), sglang="gelu_tanh"),
    "swiglu_clamped": Activation(_swiglu_clamped, gated=True, parameters=("alpha", "beta", "limit"),
                                 vllm=("swigluoai", "swigluoai_uninterleave")),
    "swiglu_step": Activation(_swiglu_step, gated=True, parameters=("limit",)),
    "identity": Activation(lambda x: x),
    "relu": Activation(torch.relu),
    "relu2": Activation(lambda x: torch.relu(x).square(), vllm=("relu2_no_mul",), sglang="relu2"),
    "silu": Activation(_F.silu, vllm=("silu_no_mul",), sglang="silu"),
    "gelu": Activation(_F.gelu, vllm=("gelu_no_mul",), sglang="gelu"),
    "gelu_tanh": Activation(_gelu_tanh, vllm=("gelu_tanh_no_mul",)),
}
# vLLM's value -> act.
VLLM = {value: act for act, activation in ACTIVATIONS.items() for value in activation.vllm}
# (SGLang's name, is_gated) -> act.
SGLANG = {(a.sglang, a.gated): act for act, a in ACTIVATIONS.items() if a.sglang is not None}


def clamped(alpha: float, beta: float, limit: float) -> dict[str, object]:
    """swiglu_clamped with its parameters: gpt-oss (1.702, 1, 7), or DeepSeek V4 (1, 0, its swiglu_limit)."""
    return {"act": "swiglu_clamped", "alpha": float(alpha), "beta": float(beta), "limit": float(limit)}


# ---- vLLM ----


def of_vllm(layer: Any) -> dict[str, object]:
    """Returns the fields for vLLM's RoutedExperts. Its `activation` must be in VLLM; its swiglu_alpha, swiglu_beta and swiglu_limit may be None."""
    value = layer.activation.value
    alpha, beta, limit = (getattr(layer, f"swiglu_{name}", None) for name in ("alpha", "beta", "limit"))
    order = {"gate_order": "interleaved" if value == "swigluoai" else "gate_first"}
    if value == "swigluoai":  # the defaults of vLLM's kernels
        return order | clamped(alpha or 1.702, 1.0 if beta is None else beta, limit or 7.0)
    act = VLLM[value]
    if act == "swiglu_clamped" or (act == "swiglu" and limit):
        alpha, beta = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
        return order | (clamped(alpha, beta, limit) if limit else {"act": "swiglu", "alpha": alpha, "beta": beta})
    return order | {"act": act}


# ---- SGLang ----


def of_sglang(config: Any) -> dict[str, object]:
    """Returns the fields for SGLang's MoeRunnerConfig. Raises UnsupportedLayer for an activation that Sluice does not have."""
    name, gated, alpha = config.activation, config.is_gated, config.gemm1_alpha
    limit, swiglu_limit = config.gemm1_clamp_limit, config.swiglu_limit
    act = SGLANG.get((name, gated))
    given = {"gemm1_alpha": alpha, "gemm1_clamp_limit": limit, "swiglu_limit": swiglu_limit}
    parameters = "".join(f" {word}={value}" for word, value in given.items() if value is not None)
    if act is None or (act != "swiglu" and parameters):
        known = [word for word, is_gated in SGLANG if is_gated == gated]
        kind = "of gated experts" if gated else "without gate and limits"
        raise UnsupportedLayer(f"wanted an activation {kind} ({', '.join(known)}), found {name}{parameters}")
    if not gated:
        return {"act": act}
    if alpha is not None:  # gpt-oss
        if limit is None:
            raise UnsupportedLayer(f"wanted gemm1_clamp_limit with gemm1_alpha {alpha}, found none")
        beta = getattr(config, "gemm1_beta", None)
        order = "interleaved" if config.gate_up_interleaved else "gate_first"
        return {"gate_order": order} | clamped(alpha, 1.0 if beta is None else beta, limit)
    if limit is not None:
        return {"gate_order": "gate_first", "act": "swiglu_step", "limit": float(limit)}
    if swiglu_limit is not None:  # DeepSeek V4
        return {"gate_order": "gate_first"} | clamped(1.0, 0.0, swiglu_limit)
    return {"gate_order": "gate_first", "act": act}


# ---- transformers ----


def of_module(module: torch.nn.Module, device: torch.device) -> dict[str, object] | None:
    """Returns the fields for a transformers module of experts, or None if Sluice does not have its activation.

    The module's own function is evaluated on this device and compared with each formula. Names are not trusted: a model may define its
    own function under any name.
    """
    with torch.no_grad():
        return _of_gated_module(module, device) if module.has_gate else _of_plain_module(module, device)


def names(gated: bool) -> list[str]:
    return [act for act, activation in ACTIVATIONS.items() if activation.gated == gated]


def _of_plain_module(module: torch.nn.Module, device: torch.device) -> dict[str, object] | None:
    values = _probe(_limits(module), device)
    found = module.act_fn(values)
    return next(({"act": act} for act in names(gated=False) if _same(found, ACTIVATIONS[act].function(values))), None)


def _of_gated_module(module: torch.nn.Module, device: torch.device) -> dict[str, object] | None:
    values = _probe(_limits(module), device)
    gate, up = (v.reshape(-1) for v in torch.meshgrid(values, values, indexing="ij"))
    interleaved = torch.stack([gate, up], dim=1).reshape(-1)
    rows = {"gate_first": torch.cat([gate, up]), "interleaved": interleaved, "up_first": torch.cat([up, gate])}
    for order, row in rows.items():
        found = module._apply_gate(row[None])
        if found.shape != (1, gate.numel()):
            continue
        for act in names(gated=True):
            for parameters in _parameters(module, ACTIVATIONS[act].parameters):
                if _same(found[0], ACTIVATIONS[act].function(gate, up, **parameters)):
                    return {"act": act, "gate_order": order, **parameters}
    return None


def _parameters(module: torch.nn.Module, wanted: tuple[str, ...]) -> list[dict[str, float]]:
    """Yields every combination of parameters that the module's attributes allow."""
    values = {"limit": _limits(module), "alpha": [*_numbers(module, "alpha", "swiglu_alpha"), 1.0], "beta": [0.0, 1.0]}
    out: list[dict[str, float]] = [{}]
    for name in wanted:
        out = [{**one, name: value} for one in out for value in values[name]]
    return out


def _numbers(module: torch.nn.Module, *attributes: str) -> list[float]:
    values = (getattr(module, name, None) for name in attributes)
    return [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)]


def _limits(module: torch.nn.Module) -> list[float]:
    return [limit for limit in _numbers(module, "limit", "swiglu_limit") if limit > 0]


def _probe(limits: list[float], device: torch.device) -> torch.Tensor:
    """Returns inputs on both sides of every limit, and many around zero. The device is explicit, because models are built under the meta device."""
    points = [0.0, 0.03, 0.25, 0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 9.0, 14.0]
    points += [limit * f for limit in limits for f in (0.5, 0.99, 1.01, 1.6)]
    return torch.tensor(sorted({s * p for p in points for s in (-1, 1)}), dtype=torch.float64, device=device)


def _same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.shape == wanted.shape and bool(((found.double() - wanted).abs() <= _TOLERANCE * (1 + wanted.abs())).all())
