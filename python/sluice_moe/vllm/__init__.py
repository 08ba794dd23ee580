"""Sluice inside vLLM: `--quantization sluice`, and nothing without it.

vLLM calls register() in each of its processes (entry point vllm.general_plugins). It makes the name known and imports nothing heavy;
gates and experts come in when a model asks for them.
"""
from __future__ import annotations

from .compat import NAME


def register() -> None:
    """Makes `--quantization sluice` known. Where it cannot be had, one line of vLLM's log says why, and so does the error for who asks for
    it; all else is as without it."""
    from . import compat

    why = compat.why_not_here()
    if why:
        compat.logger().warning("sluice: %s; --quantization sluice is refused, all else is as without it", why)
        try:
            from . import refusal
        except ImportError:  # a vLLM that is too different knows no such name, either
            return
        refusal.register(why)
        return
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    if NAME in QUANTIZATION_METHODS:
        return
    from .config import SluiceConfig

    register_quantization_config(NAME)(SluiceConfig)
