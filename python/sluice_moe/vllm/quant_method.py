"""What a config gives each layer: Sluice's method for experts, and the gates."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def install_gates() -> None:
    """Called for every layer that asks for its method, which comes before the first gate: a process that got its config by pickle never
    ran the constructor."""
    from .gate import install

    install()


def quant_method(layer: torch.nn.Module, prefix: str, kind: str):
    """Sluice's method for experts, vLLM's unquantised one for linear layers, None for all else."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

    if isinstance(layer, RoutedExperts):
        from .method import expert_method

        return expert_method(layer, prefix, kind)
    return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
