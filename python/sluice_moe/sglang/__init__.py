"""The SGLang plug-in: its Mixture-of-Experts layers run on Sluice's kernels, without a fork.

    sglang serve MODEL --moe-runner-backend sluice                    # SGLang 0.5.21 and newer
    SLUICE_SGLANG=1 sglang serve MODEL --moe-runner-backend triton    # SGLang 0.5.17, whose list of backends is closed
    SLUICE_SGLANG_GATES=1, SLUICE_SGLANG_AUTO=1                       # gates of every model; experts and gates of every unquantized model

SGLang finds `register` by the entry point `sglang.srt.plugins` and calls it in each of its processes.
Without these flags and variables, SGLang is not affected.
With the flag, SGLang does not start if Sluice does not support the model or the version; the error gives the reasons.
"""
from __future__ import annotations


def register() -> None:
    """Called by SGLang's plug-in loader. Imports neither torch nor models."""
    from . import hooks

    hooks.register()
