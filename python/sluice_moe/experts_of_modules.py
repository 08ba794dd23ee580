"""What the experts of a transformers module are, read from the module itself: shapes, layout, activation; and every reason against
running them on Sluice.

transformers gives such a module is_transposed, is_concatenated, has_bias, has_gate, and _apply_gate() or act_fn. The activation and
the order of gate and up are found by asking those functions for values, so that a function of a model's own is either one of Sluice's
activations, or refused: no name is trusted.
"""
from __future__ import annotations

import dataclasses
import math

import torch

from . import capi

# Parameters of a module, by the plain name of the tensor that they hold.
_BIASES = {"experts.up_bias": "{up}_bias", "experts.down_bias": "down_proj_bias"}
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k", "moe_topk", "moe_k",
          "moe_num_active_experts", "router_topk")
# Of an activation, from a probe: functions of 64 bits may compute in 32 inside.
_AGREE = 1e-5


@dataclasses.dataclass(frozen=True)
class Experts:
    """What a module holds. `names`: plain name of a tensor -> the module's Parameter."""

    fields: dict
    names: dict
    transposed: bool

    @property
    def text(self) -> str:
        f = self.fields
        return f"{f['experts']} experts of {f['hidden']} x {f['intermediate']} in {f['expert_w']}, {f['act']}"


def local(parameter: torch.Tensor) -> torch.Tensor:
    """A Parameter's own memory; this rank's part of a distributed one."""
    tensor = parameter.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def top_k_of(module: torch.nn.Module) -> int | None:
    """Experts for each token, as the module's config says; None where it does not."""
    return next((int(k) for name in _TOP_K if isinstance(k := getattr(module.config, name, None), int)), None)


def read_experts(module: torch.nn.Module) -> Experts:
    """Reads a module of transformers' `use_experts_implementation`, with weights in bf16. Raises Unsupported with every reason."""
    kind, reasons = type(module).__name__, []
    up = "gate_up_proj" if module.has_gate else "up_proj"
    names = {"experts.up": up, "experts.down": "down_proj"}
    if module.has_bias:
        names |= {plain: name.format(up=up) for plain, name in _BIASES.items()}
    if getattr(module, "has_post_expert_norm", False):
        reasons.append("a norm stands behind each expert (has_post_expert_norm); wanted none")
    weights = {}
    for plain, name in names.items():
        weights[plain] = module._parameters.get(name)
        if (why := _unfit(name, weights[plain], rank=2 if plain.endswith("bias") else 3)) is not None:
            reasons.append(why)
    act = activation_of(module, local(weights["experts.down"]).device) if not reasons else None
    if not reasons and act is None:
        reasons.append(f"its activation ({_activation_text(module)}) gives the values of none that Sluice has: "
                       + ", ".join((_GATED if module.has_gate else _PLAIN)))
    shapes = None if reasons else _shapes(module, {plain: local(w).shape for plain, w in weights.items()}, reasons)
    if reasons:
        raise capi.Unsupported(f"sluice_moe.transformers: {kind} cannot run on Sluice: " + "; ".join(reasons))
    fields = {**shapes, "expert_w": "bf16", "up_bias": module.has_bias, "down_bias": module.has_bias, **act}
    return Experts(fields, names, bool(module.is_transposed))


def _unfit(name: str, weight, rank: int) -> str | None:
    if weight is None:
        return f"wanted a Parameter {name}, found none (quantised or of another layout)"
    if weight.device.type == "meta":
        return f"{name}: wanted weights in memory, found them on meta (offloaded, or not loaded yet)"
    inner = local(weight)
    if type(inner) not in (torch.Tensor, torch.nn.Parameter):
        return f"{name}: wanted a plain tensor, found {type(inner).__name__}"
    if inner.dtype != torch.bfloat16:
        return f"{name}: wanted torch.bfloat16 (dtype=torch.bfloat16 in from_pretrained), found {inner.dtype}"
    if inner.dim() != rank:
        return f"{name}: wanted {rank} dimensions, found {inner.dim()}"
    return None


def _shapes(module, shapes: dict, reasons: list) -> dict | None:
    """hidden, intermediate and experts; what does not fit together goes to the reasons."""
    experts, a, b = shapes["experts.up"]
    hidden, rows = (a, b) if module.is_transposed else (b, a)
    intermediate = rows // 2 if module.has_gate else rows
    down = (experts, intermediate, hidden) if module.is_transposed else (experts, hidden, intermediate)
    wanted = {"experts.down": down, "experts.up_bias": (experts, rows), "experts.down_bias": (experts, hidden)}
    for plain, shape in wanted.items():
        if plain in shapes and tuple(shapes[plain]) != shape:
            reasons.append(f"{plain}: wanted {list(shape)} beside the first product's {list(shapes['experts.up'])}, "
                           f"found {list(shapes[plain])}")
    return {"hidden": hidden, "intermediate": intermediate, "experts": experts}


# ---- Activations ----


def _clamped(gate, up, alpha, beta, limit):
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


_F = torch.nn.functional
_PLAIN = {"identity": lambda x: x, "relu": torch.relu, "relu2": lambda x: torch.relu(x).square(), "silu": _F.silu, "gelu": _F.gelu,
          "gelu_tanh": lambda x: _F.gelu(x, approximate="tanh")}
_GATED = {"swiglu": lambda g, u, p: _F.silu(g) * u,
          "geglu": lambda g, u, p: _F.gelu(g) * u,
          "geglu_tanh": lambda g, u, p: _F.gelu(g, approximate="tanh") * u,
          "swiglu_clamped": lambda g, u, p: _clamped(g, u, **p),
          "swiglu_step": lambda g, u, p: _F.silu(g).clamp(max=p["limit"]) * u.clamp(-p["limit"], p["limit"])}


def _activation_text(module) -> str:
    return f"{type(module)._apply_gate.__qualname__}, act_fn {getattr(module, 'act_fn', None)!r}"


def _numbers(module, *names: str) -> list[float]:
    values = (getattr(module, name, None) for name in names)
    return [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)]


def _probe(limits: list[float], device: torch.device) -> torch.Tensor:
    """Values on both sides of every limit, and dense around zero."""
    points = [0.0, 0.03, 0.25, 0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 9.0, 14.0]
    points += [limit * f for limit in limits for f in (0.5, 0.99, 1.01, 1.6)]
    return torch.tensor(sorted({s * p for p in points for s in (-1, 1)}), dtype=torch.float64, device=device)


@torch.no_grad()
def activation_of(module: torch.nn.Module, device: torch.device) -> dict | None:
    """act, gate_order and parameters of the one that gives what the module's own function gives on this device; None: there is none."""
    limits = [limit for limit in _numbers(module, "limit", "swiglu_limit") if limit > 0]
    values = _probe(limits, device)  # named, because models are made under a default device of meta
    if not module.has_gate:
        found = module.act_fn(values)
        return next(({"act": act} for act, function in _PLAIN.items() if _same(found, function(values))), None)
    gate, up = (v.reshape(-1) for v in torch.meshgrid(values, values, indexing="ij"))
    rows = {"gate_first": torch.cat([gate, up]), "interleaved": torch.stack([gate, up], dim=1).reshape(-1), "up_first": torch.cat([up, gate])}
    parameters = [{"alpha": alpha, "beta": beta, "limit": limit} for limit in limits
                  for alpha in [*_numbers(module, "alpha", "swiglu_alpha"), 1.0] for beta in (0.0, 1.0)]
    for order, row in rows.items():
        found = module._apply_gate(row[None])
        if found.shape != (1, gate.numel()):
            continue
        for act, function in _GATED.items():
            for p in parameters if act == "swiglu_clamped" else [{"limit": limit} for limit in limits] if act == "swiglu_step" else [{}]:
                if _same(found[0], function(gate, up, p)):
                    return {"act": act, "gate_order": order, **p}
    return None


def _same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.shape == wanted.shape and bool(((found.double() - wanted).abs() <= _AGREE * (1 + wanted.abs())).all())
