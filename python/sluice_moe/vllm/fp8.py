"""The config of DeepSeek V4's checkpoints: vLLM's config, with Sluice computing the experts."""
from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

from sluice_moe.errors import UnsupportedLayer

from . import compat
from .compat import NAME
from .quant_method import install_gates, quant_method


class SluiceDeepseekV4Config(get_quantization_config("deepseek_v4_fp8")):
    sluice = True

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        compat.require_seams()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        install_gates()
        if not isinstance(layer, RoutedExperts):
            return super().get_quant_method(layer, prefix)
        if is_layer_skipped(prefix=prefix, ignored_layers=self.ignored_layers, fused_mapping=self.packed_modules_mapping):
            return quant_method(layer, prefix, "bf16")
        if self.expert_dtype != "fp4":
            raise UnsupportedLayer(f"--quantization {NAME}: {prefix}: wanted experts in MXFP4 (expert_dtype fp4), found "
                                   f"{self.expert_dtype}")
        return quant_method(layer, prefix, "mxfp4")
