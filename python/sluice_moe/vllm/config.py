"""The config of `--quantization sluice` depends on the checkpoint:

    mxfp4 (gpt-oss)                 MXFP4 experts; vLLM's own layers otherwise
    fp8                             vLLM's own config of the checkpoint, FP8 experts; MXFP4 or FP8 experts of DeepSeek V4
    compressed-tensors              vLLM's own config of the checkpoint, FP8, NVFP4, MXFP4 or MXFP8 experts
    modelopt, mxfp8, quark          vLLM's own config of the checkpoint, NVFP4, MXFP8, FP8 or MXFP4 experts
    no quantization_config          bf16 experts
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .base_config import SluiceBaseConfig, kind_of
from .quant_method import install_gates, quant_method

if TYPE_CHECKING:
    import torch
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig


# The kind of a checkpoint -> the module and the class of its config. Modules are imported when needed, because they import vLLM's layers.
CONFIGS = {"mxfp4": ("gpt_oss", "SluiceGptOssConfig"), "fp8": ("fp8", "SluiceFp8Config"), "deepseek_v4": ("fp8", "SluiceDeepseekV4Config"),
           "compressed": ("compressed", "SluiceCompressedConfig"), "modelopt_nvfp4": ("modelopt", "SluiceNvFp4Config"),
           "modelopt_mxfp8": ("modelopt", "SluiceMxFp8Config"), "modelopt_fp8": ("modelopt", "SluiceModelOptFp8Config"),
           "modelopt_mixed": ("modelopt", "SluiceMixedConfig"), "quark": ("quark", "SluiceQuarkConfig")}


class SluiceConfig(SluiceBaseConfig):
    """The config of checkpoints without quantization_config. For a quantized checkpoint from_config() returns another config."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        kind = kind_of(config)
        module, name = CONFIGS[kind]
        made = getattr(importlib.import_module(f".{module}", __package__), name)
        return made() if kind == "mxfp4" else made.from_config(config)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        install_gates()
        return quant_method(layer, prefix, "bf16")
