"""State that the hooks of a process share: the version of SGLang, the logger, and the errors for unsupported requests.

hooks.py sets the version once. Other modules read it here, because hooks.py imports them.
"""
from __future__ import annotations

import contextlib
import logging
from typing import Optional

from sluice_moe.errors import IncompatibleEngine, UnsupportedLayer

from . import compat

logger = logging.getLogger("sluice_moe.sglang")

_seams: Optional[compat.Seams] = None
_trying = False


def use(seams: compat.Seams) -> None:
    """Sets the version of this process."""
    global _seams
    _seams = seams


def seams() -> Optional[compat.Seams]:
    """The version of this process; None before register()."""
    return _seams


def takes_method() -> bool:
    """Whether FusedMoE takes a quant_method."""
    return _seams.names


def asked_by() -> str:
    """The flag or the environment variable that selects Sluice."""
    if chosen():
        return _seams.asked_by
    return " and ".join(f"{name}=1" for name in (compat.GATES, compat.AUTO) if compat.switched_on(name))


def chosen() -> bool:
    """Whether Sluice runs the layers that are built or called now. A draft model may have another backend than its target."""
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    backend = get_moe_runner_backend().value == _seams.backend
    return backend and (_seams.names or compat.switched_on())


def automatic() -> bool:
    """Whether Sluice runs unquantized experts that are built now, because no flag chose a backend."""
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    return compat.switched_on(compat.AUTO) and get_moe_runner_backend().value == "auto"


@contextlib.contextmanager
def trying():
    """A context in which layers that Sluice cannot run are not logged as errors, because SGLang runs them."""
    global _trying
    _trying = True
    try:
        yield
    finally:
        _trying = False


def refused(reason: str) -> IncompatibleEngine:
    """Returns the error for a process that cannot use Sluice. Also logs it, because SGLang does not print every exception."""
    logger.error("sluice: %s", reason)
    return IncompatibleEngine(f"sluice: {reason}")


def refused_layer(prefix: str, reason: str) -> UnsupportedLayer:
    """Returns and logs the error for a module that Sluice cannot run."""
    line = f"{prefix or 'experts'}: {reason}"
    if not _trying:
        logger.error("sluice: %s", line)
    return UnsupportedLayer(f"sluice: {line}")
