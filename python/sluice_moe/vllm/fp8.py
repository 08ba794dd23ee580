"""The configs of checkpoints with quant_method fp8: vLLM's own configs, with Sluice computing the experts."""
from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

from . import compat
from .quant_method import install_gates, quant_method


class ExpertsOnSluice:
    """The code that such configs share, before vLLM's config among the bases. Subclasses define kind_of_experts()."""

    sluice = True

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        compat.require_seams()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        install_gates()
        if not isinstance(layer, RoutedExperts):
            return super().get_quant_method(layer, prefix)
        return quant_method(layer, prefix, self.kind_of_experts(layer, prefix))


class SluiceFp8Config(ExpertsOnSluice, get_quantization_config("fp8")):
    """DeepSeek V3, Qwen3, MiniMax M2, Mixtral."""

    def kind_of_experts(self, layer: torch.nn.Module, prefix: str) -> str:
        mode = getattr(self, "ignored_layers_match_mode", None)  # not in vLLM 0.26
        skipped = is_layer_skipped(prefix=prefix, ignored_layers=self.ignored_layers, fused_mapping=self.packed_modules_mapping,
                                   **({"match_mode": mode} if mode else {}))
        return "bf16" if skipped else "fp8"


class SluiceDeepseekV4Config(SluiceFp8Config, get_quantization_config("deepseek_v4_fp8")):
    def kind_of_experts(self, layer: torch.nn.Module, prefix: str) -> str:
        kind = super().kind_of_experts(layer, prefix)
        return "mxfp4" if kind == "fp8" and self.expert_dtype == "fp4" else kind
