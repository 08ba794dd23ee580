"""The vLLM plug-in: `--quantization sluice` runs experts and gates on Sluice. Without the flag vLLM is not affected.

vLLM calls register() in each of its processes (entry point vllm.general_plugins). register() only registers the name;
the modules of gates and experts are imported when a model needs them.
"""
from __future__ import annotations

from .compat import NAME


def register() -> None:
    """Registers `--quantization sluice`. If the plug-in cannot run, one line of vLLM's log gives the reason, and the flag is rejected with it. vLLM
    is otherwise unaffected."""
    from . import compat

    why = compat.why_not_here()
    if why:
        compat.logger().warning("sluice: %s; --quantization sluice is rejected, vLLM is otherwise unaffected", why)
        try:
            from . import refusal
        except ImportError:  # this vLLM lacks the names that the plug-in needs, so the flag stays unknown
            return
        refusal.register(why)
        return
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    if NAME in QUANTIZATION_METHODS:
        return
    from .config import SluiceConfig

    register_quantization_config(NAME)(SluiceConfig)
