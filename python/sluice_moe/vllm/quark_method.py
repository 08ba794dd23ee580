"""The vLLM quantization method for MXFP4 experts of Quark checkpoints. Activations stay in bf16."""
from __future__ import annotations

import torch
from vllm.model_executor.layers.quantization.mxfp4 import Mxfp4MoEMethod

from .method import SluiceMethod


class SluiceQuarkMethod(SluiceMethod):
    """The tensors have the names and shapes of DeepSeek V4's."""

    kind = "mxfp4_groups"
    create_weights = Mxfp4MoEMethod.create_weights

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        super().__init__(layer, prefix)
        self.reasons += layer.quant_config.why_not_experts(layer, prefix)
        self._want_a_gate(layer, "MXFP4")
