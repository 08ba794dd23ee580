"""The config of compressed-tensors checkpoints: vLLM's own config, with Sluice computing the experts."""
from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization import get_quantization_config

from .fp8 import ExpertsOnSluice

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class SluiceCompressedConfig(ExpertsOnSluice, get_quantization_config("compressed-tensors")):
    def kind_of_experts(self, layer: torch.nn.Module, prefix: str) -> str:
        from .compressed_method import method_of_schemes

        return method_of_schemes(self.schemes_of_experts(layer, prefix))

    def schemes_of_experts(self, layer: torch.nn.Module, prefix: str) -> list[dict[str, Any] | None]:
        """Returns the different schemes of the projections of a layer's experts; None: the checkpoint leaves them unquantized."""
        self._add_fused_moe_to_target_scheme_map()
        names = (getattr(layer, f"ckpt_{name}_name", name) for name in PROJECTIONS)  # None: experts without a gate have no up projection
        out: list[dict[str, Any] | None] = []
        for scheme in (self.get_scheme_dict(layer, f"{prefix}.0.{name}") for name in names if name):
            if scheme not in out:
                out.append(scheme)
        return out
