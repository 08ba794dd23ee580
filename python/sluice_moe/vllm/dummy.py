"""Random weights of 4 and 8 bits for --load-format dummy. vLLM leaves codes of 4 bits zero or as they were in memory, and the codes and scales of FP8
nearly zero, and a model with zero weights routes every token to the same experts. vLLM 0.33 leaves random codes and small scales.
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


def scale_of(codes: torch.Tensor, scales: torch.Tensor) -> float:
    """Returns the scale with which dot products of random weights keep the magnitude of their input; an e8m0 code if the scales are codes."""
    rms, width = (_E4M3_RMS, codes.shape[-1]) if codes.dtype == torch.float8_e4m3fn else (_E2M1_RMS, codes.shape[-1] * 2)
    scale = 1 / (rms * math.sqrt(width))
    return scale if scales.dtype != torch.uint8 else _E8M0_BIAS + round(math.log2(scale))


def fill(layer: torch.nn.Module, names: list[str], seed: int, prefix: str) -> None:
    """Fills codes and their scales. The same seed and prefix give the same bytes on one type of device."""
    for name in ("w13_weight", "w2_weight"):
        codes = getattr(layer, name).data
        found = [getattr(layer, n).data for n in (f"{name}_scale_2", f"{name}_scale", f"{name}_scale_inv") if n in names]
        is_fp8 = codes.dtype == torch.float8_e4m3fn
        if not found or not (is_fp8 or codes.dtype == torch.uint8):
            continue
        bits = codes.view(torch.uint8)
        generator = torch.Generator(device=codes.device)
        generator.manual_seed(seed * 1_000_003 + zlib.crc32(f"{prefix}.{name}".encode()))
        bits.random_(0, 256, generator=generator)
        if is_fp8:
            bits.bitwise_and_(_E4M3_MASK)
        scales, *of_blocks = found  # NVFP4 has scales of matrices and of blocks
        scales.fill_(scale_of(codes, scales))
        for more in of_blocks:
            more.fill_(1)
