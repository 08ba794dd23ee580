"""Gates on router_gemm. They are found once a model's weights are in place: a gate is a module of a known class next to experts.

A gate that Sluice runs is changed to a subclass of its class, whose forward() calls the operation. Its parameters do not change, so code that reads
them still works. For a gate that SGLang runs, the log gives the reason.
"""
from __future__ import annotations

import functools
from typing import Any, Iterator, Optional

import torch
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

import sluice_moe.ops  # declares torch.ops.sluice
from sluice_moe.errors import Error

from . import compat, state
from .state import logger

_NAMES = ("gate", "router")  # of gates inside the modules that hold experts
_MODELS = "sglang.srt.models."
_DTYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}
# Classes with a weight [experts, hidden] and forward(hidden_states, ...) -> logits. The first group returns float32 logits, in some or all of
# SGLang's branches; the second group returns the type of hidden_states.
_FLOAT32 = tuple(_MODELS + name for name in ("deepseek_v2.MoEGate", "glm4_moe.Glm4MoeGate", "glm4_moe_lite.Glm4MoeLiteGate",
                                             "laguna.LagunaMoEGate", "mimo_v2.MoEGate"))
_SAME_TYPE = tuple(_MODELS + name for name in ("bailing_moe.BailingMoEGate", "bailing_moe_linear.BailingMoEGate", "ernie4.MoEGate",
                                               "dots3_common.modeling.Dots3MoEGate"))
# A ReplicatedLinear keeps the type that SGLang gives its logits, except gpt-oss's router: its logits are float32.
_TINY_GEMM = _MODELS + "gpt_oss.TinyGemmLinear"
# Models that multiply by the weight of their gate themselves: with torch.mm, and in other ways.
_MM = _MODELS + "nemotron_h"
_INLINE = tuple(_MODELS + name for name in ("beam", "grok", "sarvam_moe", "step3p5"))

_logged: set[str] = set()


class OnSluice:
    """The mixin of gates that Sluice runs."""


class _Linear(OnSluice):
    """For a ReplicatedLinear: x [..., hidden] -> (logits [..., experts], None)."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        if not _takes(x):
            return super().forward(x)
        return _logits(self, x, self.bias), None


class _Weight(OnSluice):
    """For a class with a weight alone: hidden_states [tokens, hidden] -> logits [tokens, experts]."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _takes(hidden_states):
            return super().forward(hidden_states, *args, **kwargs)
        return _logits(self, hidden_states, None)


class _Block:
    """The mixin for blocks of MiniMax M3, which do not call their gate if it is in bf16."""

    def _compute_router_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if not _takes(hidden_states) or not runs(self.gate):
            return super()._compute_router_logits(hidden_states)
        return torch.ops.sluice.router_gemm(hidden_states, self.gate.weight, None, torch.float32,
                                            batch_invariant=self.gate.sluice_deterministic)


class _MmWeight(torch.nn.Parameter):
    """The weight of a gate that Nemotron does not call: torch.mm(x, weight.t(), out_dtype=torch.float32) runs the operation."""

    deterministic = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.mm and isinstance(args[1], cls) and kwargs.get("out_dtype") is torch.float32 and _takes(args[0]):
                return torch.ops.sluice.router_gemm(args[0], args[1].t(), None, torch.float32, batch_invariant=cls.deterministic)
            out = func(*args, **kwargs)
            return out.as_subclass(cls) if func in (torch.Tensor.t, torch.t) else out


class _DeterministicMmWeight(_MmWeight):
    deterministic = True


def _takes(x: torch.Tensor) -> bool:
    return x.dim() == 2 and x.dtype in _DTYPES


def _logits(gate: torch.nn.Module, x: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    return torch.ops.sluice.router_gemm(x, gate.weight, bias, gate.sluice_logits or x.dtype, batch_invariant=gate.sluice_deterministic)


@functools.cache
def _subclass(cls: type, mixin: type) -> type:
    return type(cls.__name__, (mixin, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})


# ---- Finding them ----


def after_load(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Runs after ModelRunner.load_model."""
    take_over(runner.model)


def take_over(model: torch.nn.Module) -> None:
    """Gives Sluice the gates of a model. A draft model may have another backend than its target."""
    everywhere = state.chosen() or compat.switched_on(compat.GATES)
    if not everywhere and not state.automatic():
        return
    for parent, gate in list(gates_of(model)):
        if runs(gate) or not (everywhere or _unquantized(parent)):
            continue
        model_of = type(parent).__module__
        why = "the model multiplies by the gate's weight itself" if model_of in _INLINE else why_not(gate)
        if why is None:
            _take(gate)
            if model_of == _MM:
                gate.sluice_logits = torch.float32
                gate.weight.__class__ = _DeterministicMmWeight if gate.sluice_deterministic else _MmWeight
            if hasattr(parent, "_compute_router_logits"):
                parent.__class__ = _subclass(type(parent), _Block)
        _log(gate, why)


def _unquantized(parent: torch.nn.Module) -> bool:
    return any(isinstance(child, FusedMoE) and child.quant_config is None for child in parent.children())


def gates_of(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
    """Yields (parent, gate): modules named gate or router next to experts. A router that wraps one linear layer yields that layer."""
    for parent in model.modules():
        children = dict(parent.named_children())
        if not any(isinstance(child, FusedMoE) for child in children.values()):
            continue
        for name in _NAMES:
            gate = children.get(name)
            if gate is None:
                continue
            if not isinstance(gate, ReplicatedLinear):
                inside = [child for child in gate.children() if isinstance(child, ReplicatedLinear)]
                gate = inside[0] if len(inside) == 1 else gate
            yield parent, gate


def runs(module: torch.nn.Module) -> bool:
    """Whether a module is a gate that Sluice runs."""
    return isinstance(module, OnSluice)


def why_not(gate: torch.nn.Module) -> str | None:
    """Returns why Sluice cannot run a gate, or None."""
    if isinstance(gate, ReplicatedLinear):
        if not isinstance(gate.quant_method, UnquantizedLinearMethod):
            return f"wanted unquantized weights, found {type(gate.quant_method).__name__}"
        if gate.skip_bias_add:
            return "wanted a bias that is added, found skip_bias_add"
    elif _path(type(gate)) not in _FLOAT32 + _SAME_TYPE:
        known = ", ".join(name.removeprefix(_MODELS) for name in _FLOAT32 + _SAME_TYPE)
        return f"wanted ReplicatedLinear, {known}, found {_path(type(gate))}"
    if getattr(gate, "use_intel_amx_backend", False):
        return "wanted weights as loaded, found weights that SGLang packed for AMX"
    weight, bias = gate.weight, getattr(gate, "bias", None)
    if weight.dtype not in _DTYPES or weight.dim() != 2:
        return f"wanted weights in bf16 or f32 [experts, hidden], found {weight.dtype} {list(weight.shape)}"
    if bias is not None and bias.dtype is not weight.dtype:
        return f"wanted a bias in {weight.dtype}, found {bias.dtype}"
    return _no_kernel(gate)


def _no_kernel(gate: torch.nn.Module) -> str | None:
    experts, hidden = gate.weight.shape
    w = _DTYPES[gate.weight.dtype]
    try:
        text = sluice_moe.explain("router_gemm", device=gate.weight.device, tokens=1, hidden=hidden, experts=experts, x=w, w=w,
                                  y=_DTYPES[_logits_dtype(gate) or torch.bfloat16], bias=getattr(gate, "bias", None) is not None)
    except Error as why:
        return str(why)
    return None if "\n->" in text else text


def _logits_dtype(gate: torch.nn.Module) -> torch.dtype | None:
    """The type of a gate's logits; None: the type of its input."""
    path = _path(type(gate))
    if path in _SAME_TYPE:
        return None
    return gate.weight.dtype if isinstance(gate, ReplicatedLinear) and path != _TINY_GEMM else torch.float32


def _take(gate: torch.nn.Module) -> None:
    gate.sluice_logits = _logits_dtype(gate)
    gate.sluice_deterministic = deterministic()
    gate.__class__ = _subclass(type(gate), _Linear if isinstance(gate, ReplicatedLinear) else _Weight)


def _log(gate: torch.nn.Module, why: str | None) -> None:
    """Logs whether Sluice or SGLang runs a gate, once for all equal gates."""
    weight = getattr(gate, "weight", None)
    line = f"sluice: gate {type(gate).__name__} {list(weight.shape) if weight is not None else ''}".rstrip() + ": "
    line += f"runs on SGLang: {why}" if why else f"router_gemm, logits in {str(gate.sluice_logits or 'the type of x').removeprefix('torch.')}"
    if line not in _logged:
        _logged.add(line)
        logger.info(line)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def deterministic() -> bool:
    """Whether --enable-deterministic-inference is set: a row's result must not depend on the other rows."""
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().deterministic.enable_deterministic_inference)
