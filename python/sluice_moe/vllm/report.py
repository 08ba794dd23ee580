"""Lines of the log: one for each kind of layer, however many of them a model has."""
from __future__ import annotations

import sluice_moe

from . import compat

_said: set[str] = set()


def say_once(line: str, *, warning: bool = False) -> None:
    if line in _said:
        return
    _said.add(line)
    log = compat.logger()
    (log.warning if warning else log.info)("sluice %s: %s", sluice_moe.version(), line)
