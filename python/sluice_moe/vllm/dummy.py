"""Random MXFP4 weights for --load-format dummy. Older vLLM leaves them zero, and a model with zero weights routes every token to the same experts.
"""
from __future__ import annotations

import math
import zlib

import torch

_E2M1_RMS = math.sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)  # of uniformly random codes
_E8M0_BIAS = 127


def scale_code(width: int) -> int:
    """Returns the e8m0 scale of all blocks with which dot products of `width` random weights keep the magnitude of their input."""
    return _E8M0_BIAS + round(math.log2(1 / (_E2M1_RMS * math.sqrt(width))))


def fill_zeros(layer: torch.nn.Module, names: list[str], seed: int, prefix: str) -> None:
    """Fills zero codes and their scales with random ones. The same seed and prefix give the same bytes on one type of device."""
    for name in ("w13_weight", "w2_weight"):
        codes = getattr(layer, name).data
        if codes.dtype != torch.uint8 or f"{name}_scale" not in names or bool(codes.any()):
            continue
        generator = torch.Generator(device=codes.device)
        generator.manual_seed(seed * 1_000_003 + zlib.crc32(f"{prefix}.{name}".encode()))
        codes.random_(0, 256, generator=generator)
        getattr(layer, f"{name}_scale").data.fill_(scale_code(codes.shape[-1] * 2))
