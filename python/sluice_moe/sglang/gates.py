"""The gates of gpt-oss and of the DeepSeek family on router_gemm, with logits in float32."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import sluice_moe.ops  # noqa: F401  declares torch.ops.sluice

from . import state
from .state import logger

_logged: set[str] = set()


def around_gpt_oss(original: Callable, self: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Wraps TinyGemmLinear.forward. x [tokens, hidden] -> (logits [tokens, experts], None)."""
    if self.skip_bias_add or not _takes(self, x, self.bias):
        return original(self, x)
    return _logits(self, x, self.bias), None


def around_deepseek(original: Callable, self: torch.nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Wraps MoEGate.forward. hidden_states [tokens, hidden] -> logits [tokens, experts]."""
    if not _takes(self, hidden_states, None):
        return original(self, hidden_states, *args, **kwargs)
    return _logits(self, hidden_states, None)


def runs(module: torch.nn.Module) -> bool:
    """Whether a module is a gate that Sluice runs. Its weights must be loaded."""
    from sglang.srt.models.deepseek_v2 import MoEGate
    from sglang.srt.models.gpt_oss import TinyGemmLinear

    forward = type(module).forward
    if forward is TinyGemmLinear.forward:
        return not module.skip_bias_add and _runs_gate(module, module.bias)
    return forward is MoEGate.forward and _runs_gate(module, None)


def _takes(gate: torch.nn.Module, x: torch.Tensor, bias: Optional[torch.Tensor]) -> bool:
    """Whether Sluice runs this call. Only x differs between the calls of a gate."""
    return _runs_gate(gate, bias) and x.dim() == 2 and x.dtype is torch.bfloat16


def _runs_gate(gate: torch.nn.Module, bias: Optional[torch.Tensor]) -> bool:
    """Whether Sluice runs this gate, decided at the first call."""
    decided = gate.__dict__.get("_sluice_gate")
    if decided is None:
        decided = gate.__dict__["_sluice_gate"] = _decide(gate, bias)
    return decided


def _decide(gate: torch.nn.Module, bias: Optional[torch.Tensor]) -> bool:
    if not state.chosen():
        return False
    weight = gate.weight
    why = None
    if weight.dtype is not torch.bfloat16 or weight.dim() != 2:
        why = f"wanted weights in torch.bfloat16 [experts, hidden], found {weight.dtype} {list(weight.shape)}"
    elif bias is not None and bias.dtype is not torch.bfloat16:
        why = f"wanted a bias in torch.bfloat16, found {bias.dtype}"
    gate.__dict__["_sluice_deterministic"] = deterministic()
    shape = f"{type(gate).__name__} {list(weight.shape)}"
    line = f"sluice: gate {shape}: " + ("router_gemm, logits in float32" if why is None else f"runs on SGLang: {why}")
    if line not in _logged:
        _logged.add(line)
        logger.info(line)
    return why is None


def _logits(gate: torch.nn.Module, x: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    return torch.ops.sluice.router_gemm(x, gate.weight, bias, torch.float32, batch_invariant=gate.__dict__["_sluice_deterministic"])


def deterministic() -> bool:
    """Whether --enable-deterministic-inference is set: a row's result must not depend on the other rows."""
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().deterministic.enable_deterministic_inference)
