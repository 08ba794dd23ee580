"""Chooses the quantization method of a layer and installs the gates. Imports vLLM's layers only when a layer asks."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def install_gates() -> None:
    """Registers Sluice's gates with vLLM. Every get_quant_method() calls it, before the first gate is built. The constructor of a config cannot do it,
    because unpickled configs never run it."""
    from .gate import install

    install()


def quant_method(layer: torch.nn.Module, prefix: str, kind: str):
    """Returns Sluice's method for experts, vLLM's unquantized method for linear layers, and None for other layers."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

    if isinstance(layer, RoutedExperts):
        from .choose import expert_method

        return expert_method(layer, prefix, kind)
    return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
