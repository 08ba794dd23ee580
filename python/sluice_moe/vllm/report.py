"""Lines in vLLM's log, each printed once, because a model has many equal layers."""
from __future__ import annotations

import sluice_moe

from . import compat

_logged: set[str] = set()


def log_once(line: str, *, warning: bool = False) -> None:
    if line in _logged:
        return
    _logged.add(line)
    log = compat.logger()
    (log.warning if warning else log.info)("sluice %s: %s", sluice_moe.version(), line)
