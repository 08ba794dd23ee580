"""Gates on router_gemm: vLLM's GateLinear, and the ReplicatedLinear that older versions use as gpt-oss's router.

Both replace vLLM's class in its registry of out-of-tree layers. The registry is global to the process, so each layer checks whether its
model selects Sluice. If not, it behaves as vLLM's own class.
"""
from __future__ import annotations

import functools

import torch
import vllm.envs as envs
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
from vllm.model_executor.layers.linear import ReplicatedLinear, UnquantizedLinearMethod

import sluice_moe
import sluice_moe.ops  # noqa: F401  registers torch.ops.sluice
from sluice_moe import environment

from . import compat
from .report import log_once

_TYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}


class _KeptWeight(UnquantizedLinearMethod):
    """Keeps the weight as loaded. On the CPU vLLM's method would pack it for its own GEMM and free it."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        pass


def _asked_for() -> bool:
    config = get_current_vllm_config_or_none()
    return config is not None and (getattr(config.quant_config, "sluice", False) or environment.switch(compat.GATES))


def _why_not(layer: torch.nn.Module, out_dtype: torch.dtype | None) -> str | None:
    """Returns why router_gemm cannot run this gate, or None."""
    if not isinstance(layer.quant_method, UnquantizedLinearMethod):
        return f"wanted unquantized weights, found {type(layer.quant_method).__name__}"
    weight, y = layer.weight, out_dtype or layer.params_dtype
    for what, dtype in (("weights", weight.dtype), ("logits", y)):
        if dtype not in _TYPES:
            return f"wanted {what} in bf16 or f32, found {dtype}"
    experts, hidden = weight.shape
    fields = {"hidden": hidden, "experts": experts, "x": "bf16", "w": _TYPES[weight.dtype], "y": _TYPES[y], "bias": layer.bias is not None}
    text = sluice_moe.explain("router_gemm", device=weight.device, tokens=1, **fields)
    return None if "\n->" in text else text


class _Gate:
    """The shared code of both layers."""

    def _decide(self, kind: str) -> None:
        """Decides once, when the layer is built, whether it runs router_gemm, and logs it."""
        self.sluice = False
        if not _asked_for():
            return
        out_dtype = getattr(self, "out_dtype", None)
        why = _why_not(self, out_dtype)
        y = out_dtype or self.weight.dtype
        shape = f"gate {kind} {tuple(self.weight.shape)} {_TYPES.get(self.weight.dtype, self.weight.dtype)}"
        if why:
            log_once(f"{shape}: runs on vLLM: {why}", warning=True)
            return
        self.sluice = True
        self.batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)
        self.quant_method = _KeptWeight()
        log_once(f"{shape}: torch.ops.sluice.router_gemm" + (" with bias" if self.bias is not None else "") + f", logits {_TYPES[y]}")

    def _product(self, x: torch.Tensor):
        """x [tokens, hidden] -> logits [tokens, experts], and the bias if vLLM's caller adds it."""
        bias = None if self.skip_bias_add else self.bias
        out = torch.ops.sluice.router_gemm(x, self.weight, bias, getattr(self, "out_dtype", None) or x.dtype,
                                           batch_invariant=self.batch_invariant)
        if not self.return_bias:
            return out
        return out, self.bias if self.skip_bias_add else None


class SluiceGateLinear(_Gate, GateLinear):
    def __init__(self, *args, **kwargs) -> None:
        GateLinear.__init__(self, *args, **kwargs)
        self._decide("GateLinear")

    def forward(self, x: torch.Tensor):
        return self._product(x) if self.sluice else GateLinear.forward(self, x)


class SluiceRouter(_Gate, ReplicatedLinear):
    """gpt-oss's router in versions in which it is not a GateLinear. Other ReplicatedLinear layers are unchanged."""

    def __init__(self, *args, **kwargs) -> None:
        ReplicatedLinear.__init__(self, *args, **kwargs)
        self.sluice = False
        if self.prefix.endswith(".router"):
            self._decide("ReplicatedLinear")

    def forward(self, x: torch.Tensor):
        return self._product(x) if self.sluice else ReplicatedLinear.forward(self, x)


def install() -> None:
    """Registers both layers, once per process."""
    _replace("GateLinear", GateLinear, SluiceGateLinear)
    # ReplicatedLinear is replaced only for gpt-oss, and only in versions where its router is one. vLLM's LoRA looks for instances of the
    # replacement, so it would miss the GateLinear layers of other models.
    config = get_current_vllm_config_or_none()
    model = config.model_config.hf_config.model_type if config is not None and config.model_config is not None else None
    if model == "gpt_oss" and compat.gpt_oss_router_is_replicated():
        _replace("ReplicatedLinear", ReplicatedLinear, SluiceRouter)


def install_for_every_model() -> None:
    """Registers both layers before any model is built. Called once per process, when no model's config is known yet."""
    # vLLM's cache of compiled graphs must distinguish graphs with these gates from graphs without them; the model's config does not differ.
    envs.environment_variables.setdefault(compat.GATES, lambda: "1")
    _replace("GateLinear", GateLinear, SluiceGateLinear)
    if not compat.gpt_oss_router_is_replicated():
        return
    from vllm.model_executor.models.gpt_oss import MLPBlock  # in these versions this block builds the router

    original = MLPBlock.__init__
    if getattr(original, "sluice", False):
        return

    @functools.wraps(original)
    def build(self, *args, **kwargs) -> None:
        install()
        original(self, *args, **kwargs)

    build.sluice = True
    MLPBlock.__init__ = build


def _replace(name: str, original: type, replacement: type) -> None:
    known = op_registry_oot.get(name)
    if known is None:
        original.register_oot(replacement)
    elif known is not replacement:
        log_once(f"gates: {name} is already replaced by {known.__module__}.{known.__qualname__} of another plug-in, which runs these gates",
                 warning=True)
