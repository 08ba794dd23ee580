"""The vLLM plug-in. `--quantization sluice` runs experts and gates on Sluice. SLUICE_VLLM_GATES=1 does so for the gates of every model, and
SLUICE_VLLM_AUTO=1 for experts and gates of every unquantized model. Without the flag and the variables, vLLM is not affected.

vLLM calls register() in each of its processes (entry point vllm.general_plugins). register() only registers the name;
the modules of gates and experts are imported when a model needs them.
"""
from __future__ import annotations

from sluice_moe.errors import IncompatibleEngine

from .compat import NAME, NAME_AUTO


def register() -> None:
    """Registers `--quantization sluice`. If the plug-in cannot run, one line of vLLM's log gives the reason, and the flag is rejected with it. vLLM
    is otherwise unaffected. With an environment variable that asks for Sluice, vLLM does not start then."""
    from . import compat

    asked = compat.asked_by_environment()
    why = compat.why_not_here()
    if why and asked:
        raise IncompatibleEngine(f"{asked[0]}=1: {why}")
    if why:
        compat.logger().warning("sluice: %s; --quantization sluice is rejected, vLLM is otherwise unaffected", why)
        try:
            from . import refusal
        except ImportError:  # this vLLM lacks the names that the plug-in needs, so the flag stays unknown
            return
        refusal.register(why)
        return
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    if NAME not in QUANTIZATION_METHODS:
        from .config import SluiceConfig

        register_quantization_config(NAME)(SluiceConfig)
    if compat.AUTO in asked:
        from . import auto

        if NAME_AUTO not in QUANTIZATION_METHODS:
            register_quantization_config(NAME_AUTO)(auto.SluiceAutoConfig)
        auto.install()
    if compat.GATES in asked:
        compat.require_seams()
        from .gate import install_for_every_model

        install_for_every_model()
