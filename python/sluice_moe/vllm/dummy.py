"""Random MXFP4 and FP8 weights for --load-format dummy. vLLM leaves MXFP4 codes zero, and the codes and scales of FP8 nearly zero, and a model with
zero weights routes every token to the same experts.
"""
from __future__ import annotations

import math
import zlib

import torch

_E2M1_RMS = math.sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)  # of uniformly random codes
_E8M0_BIAS = 127
# FP8 codes without the highest bit of the exponent, so that no code is NaN or large.
_E4M3_MASK = 0xBF
_E4M3_RMS = torch.arange(64, dtype=torch.uint8).view(torch.float8_e4m3fn).double().square().mean().sqrt().item()


def scale_code(width: int) -> int:
    """Returns the e8m0 scale of all blocks with which dot products of `width` random weights keep the magnitude of their input."""
    return _E8M0_BIAS + round(math.log2(1 / (_E2M1_RMS * math.sqrt(width))))


def fill_zeros(layer: torch.nn.Module, names: list[str], seed: int, prefix: str) -> None:
    """Fills dummy codes and their scales with random ones. The same seed and prefix give the same bytes on one type of device."""
    for name in ("w13_weight", "w2_weight"):
        codes = getattr(layer, name).data
        scales = next((n for n in (f"{name}_scale", f"{name}_scale_inv") if n in names), None)
        is_fp8 = codes.dtype == torch.float8_e4m3fn
        if scales is None or not (is_fp8 or codes.dtype == torch.uint8):
            continue
        bits = codes.view(torch.uint8)
        # vLLM's dummy values, at most 0.001, round to FP8 codes 0 and 1 and their negatives.
        if bool(((bits & 0x7F) > 1).any() if is_fp8 else bits.any()):
            continue
        generator = torch.Generator(device=codes.device)
        generator.manual_seed(seed * 1_000_003 + zlib.crc32(f"{prefix}.{name}".encode()))
        bits.random_(0, 256, generator=generator)
        if is_fp8:
            bits.bitwise_and_(_E4M3_MASK)
        scale = 1 / (_E4M3_RMS * math.sqrt(codes.shape[-1])) if is_fp8 else scale_code(codes.shape[-1] * 2)
        getattr(layer, scales).data.fill_(scale)
