"""The method that a config returns for a layer, and the gates. Imports vLLM's layers only when a layer asks."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def install_gates() -> None:
    """Puts Sluice's gates into vLLM's registry. Called from every get_quant_method(), which runs before the first gate is built: a config
    that arrived by pickle never ran its constructor."""
    from .gate import install

    install()


def quant_method(layer: torch.nn.Module, prefix: str, kind: str):
    """Sluice's method for experts, vLLM's unquantised one for linear layers, None for other layers."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

    if isinstance(layer, RoutedExperts):
        from .method import expert_method

        return expert_method(layer, prefix, kind)
    return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
