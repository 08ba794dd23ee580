"""transformers' own experts in float64, and a bound on the error of Sluice's experts.

The bound follows docs/numerics.md, step by step: sums in f32, errors amplified by the activation's slope, h rounded to bf16 between the
products, each expert's output rounded to bf16 (g), the sum over slots, and y rounded to bf16. Nothing is tuned.
"""
from __future__ import annotations

import copy

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

UNIT = 2.0**-24  # rounding error of an f32 sum
HALF_ULP = 2.0**-9  # relative rounding error of bf16
SLOPE = 1.13  # largest slope of an activation (gelu)
ROUNDINGS = 16  # roundings inside an activation


def reference(module: torch.nn.Module, x, ids, weights, implementation: str = "eager") -> torch.Tensor:
    """The module's output, computed by transformers in float64 from the same weights."""
    double = copy.deepcopy(module).double()
    double.config = copy.copy(module.config)
    double.config._experts_implementation = implementation
    with torch.no_grad():
        if implementation == "eager":
            return double(x.double(), ids, weights.double())
        return ALL_EXPERTS_FUNCTIONS[implementation](double, x.double(), ids, weights.double())


def _rows(module, name: str) -> torch.Tensor:
    weight = getattr(module, name).detach().double()
    return weight.transpose(1, 2) if module.is_transposed else weight


def _bias(module, name: str, like: torch.Tensor) -> torch.Tensor:
    return getattr(module, name).detach().double() if module.has_bias else like.new_zeros(like.shape[:2])


@torch.no_grad()
def bound(module: torch.nn.Module, x, ids, weights) -> torch.Tensor:
    """|Sluice's y - reference| for each element of y, [tokens, hidden]. `module` must still have its Parameters."""
    x, weights = x.double(), weights.double().abs()
    up_name = "gate_up_proj" if module.has_gate else "up_proj"
    up, down = _rows(module, up_name), _rows(module, "down_proj")
    up_bias, down_bias = _bias(module, up_name + "_bias", up), _bias(module, "down_proj_bias", down)
    slots, top_k = ids.shape[1], ids.shape[1]
    total, sums = x.new_zeros(x.shape), x.new_zeros(x.shape)
    for slot in range(slots):
        e = ids[:, slot]
        real = (e < up.shape[0]).double()[:, None]
        e = e.clamp(max=up.shape[0] - 1)
        z = torch.einsum("trh,th->tr", up[e], x) + up_bias[e]
        # Twice, because parts of transformers' code also compute in f32.
        dz = 2 * (x.shape[1] + 5) * UNIT * (torch.einsum("trh,th->tr", up[e].abs(), x.abs()) + up_bias[e].abs())
        h, dh = _activated(module, z, dz)
        dh = dh + HALF_ULP * (h.abs() + dh)
        y = torch.einsum("thi,ti->th", down[e], h) + down_bias[e]
        dy = torch.einsum("thi,ti->th", down[e].abs(), dh)
        dy = dy + 2 * (h.shape[1] + 5) * UNIT * (torch.einsum("thi,ti->th", down[e].abs(), h.abs() + dh) + down_bias[e].abs())
        dy = dy + HALF_ULP * (y.abs() + dy)
        weight = weights[:, slot, None] * real
        total += weight * dy
        sums += weight * (y.abs() + dy)
    total += 2 * (top_k + 2) * UNIT * sums
    return total + HALF_ULP * (sums + total) + 2.0**-100


def _activated(module, z: torch.Tensor, dz: torch.Tensor):
    """h and its error bound, from z and its error bound."""
    if not module.has_gate:
        h = module.act_fn(z)
        slope = SLOPE * (1 + 2 * (z.abs() + dz)) if "relu2" in repr(module.act_fn).lower().replace("squared", "2") else SLOPE
        return h, slope * dz + ROUNDINGS * UNIT * h.abs()
    h = module._apply_gate(z)
    halves = [z.chunk(2, dim=-1), dz.chunk(2, dim=-1)] if module.is_concatenated else [(t[..., ::2], t[..., 1::2]) for t in (z, dz)]
    (gate, up), (dgate, dup) = halves
    # act(gate) (up + beta), with beta at most 1: a clamp makes neither factor larger or steeper.
    largest_up = up.abs() + dup + 1
    return h, SLOPE * (dgate * largest_up + (gate.abs() + dgate) * dup) + 2 * ROUNDINGS * UNIT * (gate.abs() + dgate) * largest_up
