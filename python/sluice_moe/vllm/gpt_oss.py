"""The config of gpt-oss's checkpoints. It is in a separate module because it imports vLLM's MXFP4 layers, and because vLLM
pickles configs by the name of their class."""
from __future__ import annotations

import torch
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config

from .base_config import SluiceBaseConfig
from .quant_method import install_gates, quant_method


class SluiceGptOssConfig(SluiceBaseConfig, GptOssMxfp4Config):
    def __init__(self) -> None:
        SluiceBaseConfig.__init__(self)
        self.ignored_layers = None

    @classmethod
    def get_name(cls) -> str:
        return "gpt_oss_mxfp4"  # read by vLLM's loader of gpt-oss

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        install_gates()
        return quant_method(layer, prefix, "gpt_oss")
