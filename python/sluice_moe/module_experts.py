"""Reads the experts of a transformers module: shapes, layout and activation, or every reason why Sluice cannot run them.

transformers sets is_transposed, is_concatenated, has_bias, has_gate, and _apply_gate() or act_fn on such a module. Evaluating these functions
shows the activation and the order of gate and up (activations.of_module), because a model may define its own functions.
"""
from __future__ import annotations

import dataclasses

import torch

from . import activations
from .errors import UnsupportedLayer

# Plain name -> the Parameter of a module; {up} is gate_up_proj or up_proj.
_BIASES = {"experts.up_bias": "{up}_bias", "experts.down_bias": "down_proj_bias"}
TOP_K_NAMES = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k", "moe_topk", "moe_k",
               "moe_num_active_experts", "router_topk")


@dataclasses.dataclass(frozen=True)
class Experts:
    """The experts of a module. fields: of its MoeLayer; names: plain name of a tensor -> name of the module's Parameter."""

    fields: dict
    names: dict
    transposed: bool

    @property
    def text(self) -> str:
        f = self.fields
        return f"{f['experts']} experts of {f['hidden']} x {f['intermediate']} in {f['expert_w']}, {f['act']}"


def local(parameter: torch.Tensor) -> torch.Tensor:
    """Returns the tensor of a Parameter, or this rank's part of a distributed one."""
    tensor = parameter.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def top_k_of(module: torch.nn.Module) -> int | None:
    """Returns the experts per token from the module's config, or None."""
    return next((int(k) for name in TOP_K_NAMES if isinstance(k := getattr(module.config, name, None), int)), None)


def read_experts(module: torch.nn.Module) -> Experts:
    """Reads a module of transformers' `use_experts_implementation` with bf16 weights. Raises UnsupportedLayer with every reason if Sluice
    cannot run it."""
    kind, reasons = type(module).__name__, []
    up = "gate_up_proj" if module.has_gate else "up_proj"
    names = {"experts.up": up, "experts.down": "down_proj"}
    if module.has_bias:
        names |= {plain: name.format(up=up) for plain, name in _BIASES.items()}
    if getattr(module, "has_post_expert_norm", False):
        reasons.append("each expert is followed by a norm (has_post_expert_norm)")
    weights = {}
    for plain, name in names.items():
        weights[plain] = module._parameters.get(name)
        if (why := _unfit(name, weights[plain], rank=2 if plain.endswith("bias") else 3)) is not None:
            reasons.append(why)
    act = activations.of_module(module, local(weights["experts.down"]).device) if not reasons else None
    if not reasons and act is None:
        reasons.append(f"its activation ({_activation_text(module)}) equals none of Sluice's: "
                       + ", ".join(activations.names(module.has_gate)))
    shapes = None if reasons else _shapes(module, {plain: local(w).shape for plain, w in weights.items()}, reasons)
    if reasons:
        raise UnsupportedLayer(f"sluice_moe.transformers: {kind} cannot run on Sluice: " + "; ".join(reasons))
    fields = {**shapes, "expert_w": "bf16", "up_bias": module.has_bias, "down_bias": module.has_bias, **act}
    return Experts(fields, names, bool(module.is_transposed))


def _unfit(name: str, weight, rank: int) -> str | None:
    if weight is None:
        return f"wanted a Parameter {name}, found none (the module is quantized or has another layout)"
    if weight.device.type == "meta":
        return f"{name}: wanted weights in memory, found them on meta (offloaded or not loaded yet)"
    inner = local(weight)
    if type(inner) not in (torch.Tensor, torch.nn.Parameter):
        return f"{name}: wanted a plain tensor, found {type(inner).__name__}"
    if inner.dtype != torch.bfloat16:
        return f"{name}: wanted torch.bfloat16 (dtype=torch.bfloat16 in from_pretrained), found {inner.dtype}"
    if inner.dim() != rank:
        return f"{name}: wanted {rank} dimensions, found {inner.dim()}"
    return None


def _shapes(module, shapes: dict, reasons: list) -> dict | None:
    """Returns hidden, intermediate and experts. Adds contradictory shapes to the reasons."""
    experts, a, b = shapes["experts.up"]
    hidden, rows = (a, b) if module.is_transposed else (b, a)
    intermediate = rows // 2 if module.has_gate else rows
    down = (experts, intermediate, hidden) if module.is_transposed else (experts, hidden, intermediate)
    wanted = {"experts.down": down, "experts.up_bias": (experts, rows), "experts.down_bias": (experts, hidden)}
    for plain, shape in wanted.items():
        if plain in shapes and tuple(shapes[plain]) != shape:
            reasons.append(f"{plain}: wanted {list(shape)} with a first matrix of {list(shapes['experts.up'])}, "
                           f"found {list(shapes[plain])}")
    return {"hidden": hidden, "intermediate": intermediate, "experts": experts}


def _activation_text(module) -> str:
    return f"{type(module)._apply_gate.__qualname__}, act_fn {getattr(module, 'act_fn', None)!r}"
