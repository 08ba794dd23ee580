"""vLLM quantization methods for experts of compressed-tensors checkpoints: FP8, NVFP4, MXFP4 and MXFP8. Activations stay in bf16. vLLM's loader
recognizes its own methods by the word "compressed" in the name of the class."""
from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch

from .base_config import BLOCK
from .method import SluiceMethod


class Form(NamedTuple):
    """Weights of floats, as a scheme describes them."""

    text: str
    num_bits: int
    strategies: tuple[str, ...]
    group_size: int | None = None


# By the name in choose.METHODS.
FORMS = {"compressed_fp8": Form("FP8 (8 bits, by tensor, channel or block)", 8, ("tensor", "channel", "block")),
         "compressed_nvfp4": Form("NVFP4 (4 bits, by tensor_group of 16)", 4, ("tensor_group",), 16),
         "compressed_mxfp4": Form("MXFP4 (4 bits, by group of 32)", 4, ("group",), 32),
         "compressed_mxfp8": Form("MXFP8 (8 bits, by group of 32 with scales in uint8)", 8, ("group",), 32)}
WANTED = f"wanted weights in {', '.join(form.text for form in FORMS.values())}"
_MODULES = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_"


def form_of(weights: Any) -> str | None:
    """Returns the key of FORMS of a scheme's weights."""
    for name, form in FORMS.items():
        size = weights.group_size if form.group_size else None
        if (_word(weights.type), weights.num_bits, size) != ("float", form.num_bits, form.group_size) or weights.strategy not in form.strategies:
            continue
        if name != "compressed_mxfp8" or getattr(weights, "scale_dtype", None) == torch.uint8:
            return name
    return None


def method_of_schemes(schemes: list[dict[str, Any] | None]) -> str:
    """Returns the method for experts of these schemes, one of choose.METHODS. compressed_fp8 is also for schemes that it will reject."""
    if schemes == [None]:
        return "bf16"
    weights = schemes[0].get("weights") if len(schemes) == 1 else None
    return (weights and form_of(weights)) or "compressed_fp8"


class SluiceCtMethod(SluiceMethod):
    """The shared code. Subclasses name vLLM's class whose create_weights() they use; vLLM's constructors would select a backend."""

    theirs = ("", "")  # the end of the name of the module, and the class
    without_gate = True  # vLLM's function creates experts without a gate in every version

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        super().__init__(layer, prefix)
        self.schemes = layer.quant_config.schemes_of_experts(layer, prefix)
        self.reasons += why_not_schemes(self.schemes)
        if layer.moe_config.has_bias:
            self.reasons.append("wanted experts without biases, because vLLM's compressed-tensors experts have none, found biases")
        if not self.without_gate:
            self._want_a_gate(layer, "MXFP4")

    def create_weights(self, layer: torch.nn.Module, *args, **kwargs) -> None:
        module, name = self.theirs
        getattr(importlib.import_module(_MODULES + module), name).create_weights(self, layer, *args, **kwargs)


class SluiceCtFp8Method(SluiceCtMethod):
    kind = "fp8_rows"  # also to find the other reasons against a scheme
    theirs = ("w8a8_fp8", "CompressedTensorsW8A8Fp8MoEMethod")

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        super().__init__(layer, prefix)
        if self.reasons:
            return
        (scheme,) = self.schemes
        self.weight_quant, self.input_quant = scheme["weights"], scheme.get("input_activations")
        self.weight_block_size = self.weight_quant.block_structure if self.weight_quant.strategy == "block" else None
        self.block_quant = self.weight_block_size is not None
        self.static_input_scales = self.input_quant is not None and not self.input_quant.dynamic
        self.kind = "fp8_blocks" if self.block_quant else "fp8_rows"


class SluiceCtMxfp8Method(SluiceCtMethod):
    kind = "mxfp8"
    theirs = ("w8a8_mxfp8", "CompressedTensorsW8A8Mxfp8MoEMethod")


class SluiceCtMxfp4Method(SluiceCtMethod):
    kind = "mxfp4_groups"
    theirs = ("w4a4_mxfp4", "CompressedTensorsW4A4Mxfp4MoEMethod")
    without_gate = False
    group_size = 32

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        for matrix in ("w13", "w2"):
            self._rename(layer, matrix)
        super().process_weights_after_loading(layer)

    def _rename(self, layer: torch.nn.Module, matrix: str) -> None:
        """Gives a matrix the name of other formats, as vLLM does."""
        codes = getattr(layer, f"{matrix}_weight_packed")
        delattr(layer, f"{matrix}_weight_packed")
        setattr(layer, f"{matrix}_weight", codes)


class SluiceCtNvfp4Method(SluiceCtMxfp4Method):
    kind = "nvfp4"
    theirs = ("w4a4_nvfp4", "CompressedTensorsW4A4Nvfp4MoEMethod")
    without_gate = True
    group_size = 16

    def _rename(self, layer: torch.nn.Module, matrix: str) -> None:
        """The scale of a matrix is a divisor in these checkpoints. The scales of activations are not used."""
        super()._rename(layer, matrix)
        divisors = getattr(layer, f"{matrix}_weight_global_scale").data
        setattr(layer, f"{matrix}_weight_scale_2", torch.nn.Parameter(1 / divisors, requires_grad=False))
        for name in ("weight_global_scale", "input_global_scale"):
            delattr(layer, f"{matrix}_{name}")


def why_not_schemes(schemes: list[dict[str, Any] | None]) -> list[str]:
    """Returns every reason why experts of these schemes are not supported. Sluice does not quantize activations, so their scheme is free."""
    if len(schemes) != 1 or schemes[0] is None:
        return [f"wanted one scheme for the projections of experts, found {len(schemes)}"]
    weights, activations = schemes[0].get("weights"), schemes[0].get("input_activations")
    if weights is None:
        return [f"{WANTED}, found no scheme of weights"]
    why = []
    if form_of(weights) is None:
        group = f" of {weights.group_size}" if weights.group_size else ""
        why.append(f"{WANTED}, found type {_word(weights.type)} of {weights.num_bits} bits by {_word(weights.strategy)}{group}")
    block = getattr(weights, "block_structure", None)
    if weights.strategy == "block" and list(block or ()) != BLOCK:
        why.append(f"wanted block_structure {BLOCK}, found {block}")
    if weights.dynamic or not weights.symmetric:
        why.append(f"wanted static symmetric weights, found dynamic={weights.dynamic} symmetric={weights.symmetric}")
    if activations is not None and activations.type != "float":
        why.append(f"wanted activations in floats or unquantized, found type {_word(activations.type)}")
    return why


def _word(value: Any) -> Any:
    return getattr(value, "value", value)
