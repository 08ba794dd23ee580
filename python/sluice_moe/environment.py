"""The environment variables of the plug-ins for vLLM and SGLang. They apply to all models on a host. The library does not read them."""
from __future__ import annotations

import os

from .errors import InvalidArgument

DECODE_KERNEL, PREFILL_KERNEL, DECODE_TOKENS = "SLUICE_DECODE_KERNEL", "SLUICE_PREFILL_KERNEL", "SLUICE_DECODE_TOKENS"
ACTIVATIONS = "SLUICE_MOE_ACTIVATIONS"


def switch(name: str) -> bool:
    """Whether a variable is 1. Raises InvalidArgument unless it is 0, 1 or not set."""
    word = os.environ.get(name, "0")
    if word not in ("0", "1"):
        raise InvalidArgument(f"{name}: wanted 0 or 1, found {word!r}")
    return word == "1"


def expert_kernels_text() -> str:
    """The variables that expert_kernels() reads, as a prefix of an error: "SLUICE_DECODE_KERNEL=dot: "; empty if none is set."""
    given = [f"{name}={os.environ[name]}" for name in (DECODE_KERNEL, PREFILL_KERNEL, DECODE_TOKENS, ACTIVATIONS) if os.environ.get(name)]
    return " ".join(given) + ": " if given else ""


def expert_kernels() -> dict[str, object]:
    """The arguments of MoeLayer that choose the kernels of the experts by phase, and whether they may round activations to FP8; empty if
    no variable is set."""
    out: dict[str, object] = {}
    for name, argument in ((DECODE_KERNEL, "kernel_decode"), (PREFILL_KERNEL, "kernel_prefill")):
        if os.environ.get(name):
            out[argument] = os.environ[name]
    tokens = os.environ.get(DECODE_TOKENS)
    if tokens:
        if not tokens.isdecimal() or int(tokens) < 1:
            raise InvalidArgument(f"{DECODE_TOKENS}: wanted a number of tokens, 1 or more, found {tokens!r}")
        out["decode_tokens"] = int(tokens)
    activations = os.environ.get(ACTIVATIONS, "bf16")
    if activations not in ("bf16", "fp8"):
        raise InvalidArgument(f"{ACTIVATIONS}: wanted bf16 or fp8, found {activations!r}")
    if activations == "fp8":
        out["fp8_activations"] = True
    return out
