"""Sluice in SGLang: its Mixture-of-Experts layers run on Sluice's kernels, without a fork.

    sglang serve MODEL --moe-runner-backend sluice              # SGLang 0.5.19 and newer
    SLUICE_SGLANG=1 sglang serve MODEL --moe-runner-backend triton    # SGLang 0.5.17 and 0.5.18, which know no names but their own

SGLang finds `register` by the entry point `sglang.srt.plugins` and calls it in each of its processes. What was not asked for stays as
it was. What was asked for and cannot be done ends the start with its reasons.
"""
from __future__ import annotations


def register() -> None:
    """Called by SGLang's plug-in loader; imports neither torch nor models."""
    from . import hooks

    hooks.register()
