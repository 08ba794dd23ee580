"""Chooses the quantization method of an expert layer by the kind of its checkpoint."""
from __future__ import annotations

import torch

from sluice_moe.errors import UnsupportedLayer

from . import lora
from .compat import NAME
from .compressed_method import SluiceCtFp8Method, SluiceCtMxfp4Method, SluiceCtMxfp8Method, SluiceCtNvfp4Method
from .fp8_method import SluiceFp8Method
from .method import SluiceBf16Method, SluiceGptOssMethod, SluiceMethod, SluiceMxfp4Method, why_not
from .modelopt_method import SluiceModelOptFp8Method, SluiceModelOptMxFp8Method, SluiceModelOptNvFp4Method
from .quark_method import SluiceQuarkMethod

METHODS = {"gpt_oss": SluiceGptOssMethod, "mxfp4": SluiceMxfp4Method, "bf16": SluiceBf16Method, "fp8": SluiceFp8Method,
           "compressed_fp8": SluiceCtFp8Method, "compressed_nvfp4": SluiceCtNvfp4Method, "compressed_mxfp4": SluiceCtMxfp4Method,
           "compressed_mxfp8": SluiceCtMxfp8Method, "modelopt_nvfp4": SluiceModelOptNvFp4Method, "modelopt_mxfp8": SluiceModelOptMxFp8Method,
           "modelopt_fp8": SluiceModelOptFp8Method, "quark_mxfp4": SluiceQuarkMethod}


def method_or_reasons(layer: torch.nn.Module, prefix: str, kind: str) -> SluiceMethod | list[str]:
    """Returns the method of an expert layer, before it has parameters, or every reason why Sluice cannot run it."""
    made = METHODS[kind](layer, prefix)
    why = made.reasons + why_not(layer, prefix, made.kind, made.tokens_max, torch.device(layer.moe_config.device))
    if why:
        return why
    lora.accept(made.adapter_fields)
    return made


def expert_method(layer: torch.nn.Module, prefix: str, kind: str) -> SluiceMethod:
    """Like method_or_reasons(), but raises UnsupportedLayer with the reasons."""
    made = method_or_reasons(layer, prefix, kind)
    if isinstance(made, list):
        raise UnsupportedLayer(f"--quantization {NAME}: {prefix}: {'; '.join(made)}")
    return made
