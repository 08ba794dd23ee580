"""The config of `--quantization sluice` depends on the checkpoint:

    mxfp4 (gpt-oss)               MXFP4 experts; vLLM's own layers otherwise
    fp8, compressed-tensors       vLLM's own config of the checkpoint, FP8 experts; MXFP4 or FP8 experts of DeepSeek V4
    no quantization_config        bf16 experts
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base_config import SluiceBaseConfig, kind_of
from .quant_method import install_gates, quant_method

if TYPE_CHECKING:
    import torch
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig


class SluiceConfig(SluiceBaseConfig):
    """The config of checkpoints without quantization_config. For a quantized checkpoint from_config() returns another config."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        kind = kind_of(config)
        if kind == "mxfp4":
            from .gpt_oss import SluiceGptOssConfig

            return SluiceGptOssConfig()
        if kind == "compressed":
            from .compressed import SluiceCompressedConfig

            return SluiceCompressedConfig.from_config(config)
        from .fp8 import SluiceDeepseekV4Config, SluiceFp8Config

        return (SluiceDeepseekV4Config if kind == "deepseek_v4" else SluiceFp8Config).from_config(config)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        install_gates()
        return quant_method(layer, prefix, "bf16")
