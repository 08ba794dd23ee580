"""vLLM quantization methods for FP8 experts: e4m3 codes with one scale per 128 x 128 block, per row or per matrix. Activations stay in bf16."""
from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization.fp8 import Fp8MoEMethod

from .base_config import BLOCK
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
        if not layer.moe_config.is_act_and_mul and not hasattr(layer.moe_config, "w13_num_shards"):
            self.reasons.append(f"wanted experts with a gate, because this vLLM has no others in FP8, found {layer.activation.value}")


class SluiceCtFp8Method(SluiceMethod):
    """compressed-tensors. vLLM's loader recognizes its own methods by the word "compressed" in the name of the class."""

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        super().__init__(layer, prefix)
        schemes = layer.quant_config.schemes_of_experts(layer, prefix)
        self.reasons += why_not_schemes(schemes)
        if layer.moe_config.has_bias:
            self.reasons.append("wanted experts without biases, because vLLM's compressed-tensors experts have none, found biases")
        if self.reasons:
            self.kind = "fp8_rows"  # to find the other reasons
            return
        (scheme,) = schemes
        self.weight_quant, self.input_quant = scheme["weights"], scheme.get("input_activations")
        self.weight_block_size = self.weight_quant.block_structure if self.weight_quant.strategy == "block" else None
        self.block_quant = self.weight_block_size is not None
        self.static_input_scales = self.input_quant is not None and not self.input_quant.dynamic
        self.kind = "fp8_blocks" if self.block_quant else "fp8_rows"

    def create_weights(self, layer: torch.nn.Module, *args, **kwargs) -> None:
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_w8a8_fp8 import (
            CompressedTensorsW8A8Fp8MoEMethod)

        CompressedTensorsW8A8Fp8MoEMethod.create_weights(self, layer, *args, **kwargs)


def why_not_schemes(schemes: list[dict[str, Any] | None]) -> list[str]:
    """Returns every reason why experts of these schemes are not supported. Sluice does not quantize activations, so their scheme is free."""
    if len(schemes) != 1 or schemes[0] is None:
        return [f"wanted one scheme for the projections of experts, found {len(schemes)}"]
    weights, activations = schemes[0].get("weights"), schemes[0].get("input_activations")
    if weights is None:
        return ["wanted weights in FP8, found no scheme of weights"]
    why = []
    if (weights.type, weights.num_bits) != ("float", 8):
        why.append(f"wanted weights in FP8, found type {_word(weights.type)} of {weights.num_bits} bits")
    if weights.strategy not in ("tensor", "channel", "block"):
        why.append(f"wanted weights with the strategy tensor, channel or block, found {_word(weights.strategy)}")
    block = getattr(weights, "block_structure", None)
    if weights.strategy == "block" and list(block or ()) != BLOCK:
        why.append(f"wanted block_structure {BLOCK}, found {block}")
    if weights.dynamic or not weights.symmetric:
        why.append(f"wanted static symmetric weights, found dynamic={weights.dynamic} symmetric={weights.symmetric}")
    if activations is not None and activations.type != "float":
        why.append(f"wanted activations in FP8 or unquantized, found type {_word(activations.type)}")
    return why


def _word(value: Any) -> Any:
    return getattr(value, "value", value)
