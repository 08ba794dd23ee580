"""What the hooks of this process share: the version of SGLang that they hook into, the logger, and how a request for Sluice is refused.

hooks.py sets the version once; the modules of the layers only read it, so they need not import the module that installs them.
"""
from __future__ import annotations

import logging
from typing import Optional

from . import compat

logger = logging.getLogger("sluice_moe.sglang")

_seams: Optional[compat.Seams] = None


class NotInstalled(RuntimeError):
    """Sluice was asked for and cannot run; the message says what was wanted and what was found."""


def use(seams: compat.Seams) -> None:
    """Sets the version of this process."""
    global _seams
    _seams = seams


def seams() -> Optional[compat.Seams]:
    """The version of this process; None before register()."""
    return _seams


def takes_method() -> bool:
    """Whether FusedMoE takes a quant_method."""
    return _seams.method_argument


def asked_by() -> str:
    """The flag or variable by which a user asks for Sluice."""
    return _seams.asked_by


def chosen() -> bool:
    """Whether Sluice runs the layers that are built or run now: a draft model may have another backend than its target."""
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    return get_moe_runner_backend().value == _seams.backend


def refused(reason: str, where: str = "") -> NotInstalled:
    """The error for a request that cannot be met. It is logged too: SGLang does not print every exception."""
    line = f"sluice: {where}: {reason}" if where else f"sluice: {reason}"
    logger.error("%s", line)
    return NotInstalled(line)
