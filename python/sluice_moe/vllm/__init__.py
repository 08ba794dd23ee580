"""The vLLM plug-in: `--quantization sluice` runs experts and gates on Sluice. Without the flag vLLM is not affected.

vLLM calls register() in each of its processes (entry point vllm.general_plugins). register() only makes the name known; the modules of
gates and experts are imported when a model asks for them.
"""
from __future__ import annotations

from .compat import NAME


def register() -> None:
    """Registers `--quantization sluice`. Where the plug-in cannot run, vLLM logs the reason in one line, and the flag is an error with the
    same reason; vLLM is otherwise unaffected."""
    from . import compat

    why = compat.why_not_here()
    if why:
        compat.logger().warning("sluice: %s; --quantization sluice is refused, vLLM is otherwise unaffected", why)
        try:
            from . import refusal
        except ImportError:  # this vLLM has other names, so it will not know "sluice" either
            return
        refusal.register(why)
        return
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    if NAME in QUANTIZATION_METHODS:
        return
    from .config import SluiceConfig

    register_quantization_config(NAME)(SluiceConfig)
