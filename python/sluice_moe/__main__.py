"""python -m sluice_moe: the sluice command, and `doctor`, which reports what runs on this machine."""
from __future__ import annotations

import ctypes
import os
import sys

from . import capi


def main() -> int:
    why = capi.library_problem()
    if why:
        print(why, file=sys.stderr)
        return 2
    if sys.argv[1:2] == ["doctor"]:
        from .doctor import main as doctor

        return doctor(sys.argv[2:])
    try:
        command = capi.lib.sluice_command
    except AttributeError:
        print(f"sluice_moe: {capi.library_path()} does not contain the sluice command: use the library of the wheel", file=sys.stderr)
        return 2
    command.restype, command.argtypes = ctypes.c_int, [ctypes.c_int, ctypes.c_void_p]
    # The command's help shows this name, so its examples can be pasted.
    words = [b"python -m sluice_moe", *map(os.fsencode, sys.argv[1:])]
    return command(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))


if __name__ == "__main__":
    sys.exit(main())
