"""Sluice, the Mixture-of-Experts layer, for PyTorch and the engines over it.

    layer = sluice_moe.MoeLayer("gpt-oss-20b", tokens_max=64, device="cpu")
    layer.load(tensors)           # as a checkpoint has them
    y = layer(x)                  # [tokens, hidden]

What needs no torch works without it: explain(), why_not(), version(), `python -m sluice_moe doctor`. The rest imports it when it is
asked for.
"""
from __future__ import annotations

import importlib

from .capi import CorruptData, DeviceFault, InvalidArgument, IoError_, OutOfMemory, SluiceError, Unsupported, version
from .explain import explain, why_not

__all__ = ["CorruptData", "DeviceFault", "InvalidArgument", "IoError_", "MoeLayer", "OutOfMemory", "SluiceError", "Unsupported",
           "explain", "ops", "version", "why_not"]
__version__ = "0.1.0"

_NEED_TORCH = {"MoeLayer": ".layer", "ops": ".ops", "layer": ".layer", "devices": ".devices"}


def __getattr__(name: str):
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'sluice_moe' has no attribute {name!r}")
    try:
        module = importlib.import_module(_NEED_TORCH[name], __name__)
    except ModuleNotFoundError as why:
        if why.name != "torch":
            raise
        raise ModuleNotFoundError(f"sluice_moe.{name}: wanted torch, found none: install it as pytorch.org says", name="torch") from why
    return module.MoeLayer if name == "MoeLayer" else module


def __dir__():
    return sorted(set(globals()) | set(__all__))
