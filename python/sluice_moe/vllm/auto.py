"""SLUICE_VLLM_AUTO=1: an unquantized MoE model gets the quantization "sluice_auto", as if its user had passed it. Layers that Sluice cannot run keep
vLLM's own experts; the log gives the reason."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import compat
from .compat import NAME_AUTO
from .config import SluiceConfig
from .quant_method import install_gates, quant_method
from .report import log_once

if TYPE_CHECKING:
    import torch


class SluiceAutoConfig(SluiceConfig):
    """The config of unquantized models that did not ask for Sluice by a flag."""

    @classmethod
    def get_name(cls) -> str:
        return NAME_AUTO

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None) -> str | None:
        return None  # quantized checkpoints keep their method

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        from vllm.model_executor.layers.fused_moe import RoutedExperts

        install_gates()
        if not isinstance(layer, RoutedExperts):
            return quant_method(layer, prefix, "bf16")
        from .choose import method_or_reasons

        made = method_or_reasons(layer, prefix, "bf16")
        if not isinstance(made, list):
            return made
        log_once(f"{compat.AUTO}=1: experts run on vLLM: {'; '.join(made)}", warning=True)
        return None  # vLLM's own method of unquantized experts


def install() -> None:
    """Makes vLLM choose "sluice_auto" where it verifies the quantization of a model, in the process that parses the flags. Once per process."""
    from vllm.config.model import ModelConfig

    original = ModelConfig._verify_quantization
    if getattr(original, "sluice", False):
        return

    def verify(self: Any) -> None:
        import torch

        original(self)
        if self.quantization is not None or not self.is_moe:
            return
        if self.dtype != torch.bfloat16:
            log_once(f"{compat.AUTO}=1: {self.model} runs on vLLM: wanted --dtype bfloat16, found {self.dtype}", warning=True)
            return
        self.quantization = NAME_AUTO
        original(self)  # checks the new name as vLLM checks a flag
        log_once(f"{compat.AUTO}=1: {self.model} is not quantized, so its experts and gates run on Sluice")

    verify.sluice = True
    ModelConfig._verify_quantization = verify
