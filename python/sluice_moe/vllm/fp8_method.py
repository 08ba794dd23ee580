"""vLLM quantization methods for FP8 experts: e4m3 codes with one scale per 128 x 128 block, per row or per matrix. Activations stay in bf16."""
from __future__ import annotations

import torch
from vllm.model_executor.layers.quantization.fp8 import Fp8MoEMethod

from .method import SluiceMethod


class SluiceFp8Method(SluiceMethod):
    """quant_method fp8. It has the attributes that vLLM's function reads; vLLM's constructor would select a backend."""

    create_weights = Fp8MoEMethod.create_weights

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        super().__init__(layer, prefix)
        self.quant_config = layer.quant_config
        self.weight_block_size = self.moe_block_shape = self.quant_config.weight_block_size
        self.block_quant = self.weight_block_size is not None
        self.weight_scale_name = "weight_scale_inv" if self.block_quant else "weight_scale"
        self.weight_scale_refine = None  # no smaller blocks for slices that cut a block: method.py rejects such slices
        self.kind = "fp8_blocks" if self.block_quant else "fp8_rows"
        self._want_a_gate(layer, "fp8")
