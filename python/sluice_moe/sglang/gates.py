"""The routers of gpt-oss and of the DeepSeek family on Sluice's router_gemm: scores in float32."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import sluice_moe.ops  # noqa: F401  declares torch.ops.sluice

from . import state
from .state import logger

_said: set[str] = set()


def around_gpt_oss(original: Callable, self: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """TinyGemmLinear.forward. x [tokens, hidden] -> (scores [tokens, experts], None)."""
    if self.skip_bias_add or not _takes(self, x, self.bias):
        return original(self, x)
    return _scores(self, x, self.bias), None


def around_deepseek(original: Callable, self: torch.nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """MoEGate.forward. hidden_states [tokens, hidden] -> scores [tokens, experts]."""
    if not _takes(self, hidden_states, None):
        return original(self, hidden_states, *args, **kwargs)
    return _scores(self, hidden_states, None)


def runs(module: torch.nn.Module) -> bool:
    """Whether a module of a model whose weights are there is a gate that Sluice runs."""
    from sglang.srt.models.deepseek_v2 import MoEGate
    from sglang.srt.models.gpt_oss import TinyGemmLinear

    forward = type(module).forward
    if forward is TinyGemmLinear.forward:
        return not module.skip_bias_add and _settled(module, module.bias)
    return forward is MoEGate.forward and _settled(module, None)


def _takes(gate: torch.nn.Module, x: torch.Tensor, bias: Optional[torch.Tensor]) -> bool:
    """Whether this call of a gate is Sluice's: only x differs from call to call."""
    return _settled(gate, bias) and x.dim() == 2 and x.dtype is torch.bfloat16


def _settled(gate: torch.nn.Module, bias: Optional[torch.Tensor]) -> bool:
    """Whether this gate is Sluice's, decided once for each."""
    settled = gate.__dict__.get("_sluice_gate")
    if settled is None:
        settled = gate.__dict__["_sluice_gate"] = _settle(gate, bias)
    return settled


def _settle(gate: torch.nn.Module, bias: Optional[torch.Tensor]) -> bool:
    if not state.chosen():
        return False
    weight = gate.weight
    why = None
    if weight.dtype is not torch.bfloat16 or weight.dim() != 2:
        why = f"its weights are {weight.dtype} {list(weight.shape)}, wanted torch.bfloat16 [experts, hidden]"
    elif bias is not None and bias.dtype is not torch.bfloat16:
        why = f"its bias is {bias.dtype}, wanted torch.bfloat16"
    gate.__dict__["_sluice_deterministic"] = deterministic()
    shape = f"{type(gate).__name__} {list(weight.shape)}"
    line = f"sluice: gate {shape}: " + ("router_gemm, scores in float32" if why is None else f"left to SGLang: {why}")
    if line not in _said:
        _said.add(line)
        logger.info(line)
    return why is None


def _scores(gate: torch.nn.Module, x: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    return torch.ops.sluice.router_gemm(x, gate.weight, bias, torch.float32, batch_invariant=gate.__dict__["_sluice_deterministic"])


def deterministic() -> bool:
    """--enable-deterministic-inference: no row may depend on the others."""
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().deterministic.enable_deterministic_inference)
