"""A Mixture-of-Experts layer in float64, and a bound per element on the error of an implementation that rounds to bf16 between steps.

The bound follows from arithmetic alone: float32 sums of n terms have an error of n * 2^-24 of the sum of magnitudes, a bf16 value has an
error of 2^-8 of the value, and activations amplify errors by their slopes.
"""

from __future__ import annotations

import dataclasses

import torch

BF16 = 2.0**-8
F32 = 2.0**-24
SLOPE = 1.13  # the largest slope of x * sigmoid(a * x), for any a, and of gelu


@dataclasses.dataclass
class Experts:
    """up [experts, rows, hidden] ([gate; up] if gated), down [experts, hidden, width], biases [experts, rows] and [experts, hidden]."""

    up: torch.Tensor
    down: torch.Tensor
    up_bias: torch.Tensor
    down_bias: torch.Tensor
    act: str  # silu, relu2: without gate; swiglu, clamped: with gate
    alpha: float = 1.0
    beta: float = 0.0
    limit: float = float("inf")

    def activate(self, x: torch.Tensor, off: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [rows] with error `off` -> (value, bound) [width]."""
        if self.act == "relu2":
            x = x.clamp(min=0)
            return x * x, 2 * x * off + off * off
        if self.act == "silu":
            return x * x.sigmoid(), SLOPE * off
        gate, up = x.chunk(2)
        gate_off, up_off = off.chunk(2)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit) + self.beta
        value = gate * (self.alpha * gate).sigmoid()
        return value * up, SLOPE * gate_off * (up.abs() + up_off) + value.abs() * up_off

    def one(self, expert: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One expert's output for one token, [hidden], and its bound, with a rounding to bf16 after each step."""
        up, bias = self.up[expert], self.up_bias[expert]
        off = (up.shape[1] + 4) * F32 * (up.abs() @ x.abs() + bias.abs())
        value, off = self.activate(up @ x + bias, off)
        off = off + (BF16 + 16 * F32) * (value.abs() + off)
        down, bias = self.down[expert], self.down_bias[expert]
        out = down @ value + bias
        off = down.abs() @ off + (down.shape[1] + 4) * F32 * (down.abs() @ (value.abs() + off) + bias.abs())
        return out, off + BF16 * (out.abs() + off)


def layer(experts: Experts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, weights_off: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x [tokens, hidden] in float64; weights [tokens, top_k] with relative error `weights_off` -> (y, bound) [tokens, hidden]. An id below 0
    is an empty slot."""
    y, off = torch.zeros_like(x), torch.zeros_like(x)
    for t in range(x.shape[0]):
        for expert, weight in zip(ids[t].tolist(), weights[t].tolist()):
            if expert < 0:
                continue
            value, error = experts.one(expert, x[t])
            y[t] += weight * value
            off[t] += abs(weight) * (error + (weights_off + 8 * F32) * (value.abs() + error))
    return y, off + BF16 * (y.abs() + off)


def softmax_off(logits_off: torch.Tensor) -> float:
    """The relative error of softmax weights whose scores have this error."""
    return float(torch.expm1(2 * logits_off.max())) + 16 * F32


def assert_within(found: torch.Tensor, wanted: torch.Tensor, bound: torch.Tensor) -> None:
    """Checks every element; reports the element with the largest error, and fails if the bound is too loose to prove anything."""
    error = (found.double() - wanted).abs()
    assert torch.isfinite(found).all(), "wanted finite numbers"
    assert bound.max() < 0.1 * wanted.abs().max(), f"a bound of {bound.max():.3g} is too loose for outputs up to {wanted.abs().max():.3g}"
    worst = (error / bound).argmax()
    at = tuple(int(i) for i in torch.unravel_index(worst, error.shape))
    assert error[at] <= bound[at], f"at {at}: wanted {wanted[at]:.6g} within {bound[at]:.3g}, found {found[at]:.6g}"
