"""Sluice, the Mixture-of-Experts layer, for PyTorch and for inference engines.

    layer = sluice_moe.MoeLayer("gpt-oss-20b", tokens_max=64, device="cpu")
    layer.load(tensors)           # the tensors of a checkpoint, by name
    y = layer(x)                  # [tokens, hidden]

explain(), why_not(), version() and `python -m sluice_moe doctor` need no torch. MoeLayer, ops and devices import it at their first use.
Every error is a sluice_moe.Error; sluice_moe.errors lists the subclasses.
"""
from __future__ import annotations

import importlib

from .capi import version
from .errors import (CorruptData, DeviceFault, Error, IncompatibleEngine, InvalidArgument, IoError_, IoFailure, LibraryError, NoGradient,
                     OutOfMemory, SluiceError, Unsupported, UnsupportedLayer, UnsupportedModel)
from .explain import explain, why_not

__all__ = ["CorruptData", "DeviceFault", "Error", "IncompatibleEngine", "InvalidArgument", "IoError_", "IoFailure", "LibraryError",
           "MoeLayer", "NoGradient", "OutOfMemory", "SluiceError", "Unsupported", "UnsupportedLayer", "UnsupportedModel", "explain", "ops",
           "version", "why_not"]
__version__ = "0.2.0"

_NEED_TORCH = {"MoeLayer": ".layer", "ops": ".ops", "layer": ".layer", "devices": ".devices"}


def __getattr__(name: str):
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'sluice_moe' has no attribute {name!r}")
    try:
        module = importlib.import_module(_NEED_TORCH[name], __name__)
    except ModuleNotFoundError as why:
        if why.name != "torch":
            raise
        raise ModuleNotFoundError(f"sluice_moe.{name} needs torch, which is not installed: see pytorch.org", name="torch") from why
    return module.MoeLayer if name == "MoeLayer" else module


def __dir__():
    return sorted(set(globals()) | set(__all__))
