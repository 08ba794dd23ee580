"""Tracks which weights SGLang's loaders have written into a layer, at the start and during an update."""
from __future__ import annotations

import threading

import torch


class Loads:
    """The pieces of a layer's weights that have been loaded. An update of a packed layer must load all of them again.

    Packing frees the storage of the parameters. An update allocates it again, and the last piece of the update packs again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # SGLang loads in several threads
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.storage = True
        self._shapes: dict[int, torch.Size] = {}
        self._pieces: set[tuple] = set()  # of the first load
        self._again: set[tuple] = set()

    def begin(self) -> None:
        """Allocates the parameters again if packing has freed them."""
        if self.storage:
            return
        for known in self.parameters.values():
            stored = torch.uint8 if known.element_size() == 1 else known.dtype  # torch cannot fill every type of 8 bits
            known.data = torch.zeros(self._shapes[id(known)], dtype=stored, device=known.device).view(known.dtype)
        self.storage = True

    def end(self, parameter: torch.nn.Parameter, args: tuple, kwargs: dict) -> bool:
        """Records a loaded piece. Returns True if it completes an update."""
        words = tuple(a for a in args if isinstance(a, (str, int))) + tuple(sorted((k, v) for k, v in kwargs.items() if v is not None))
        piece = (id(parameter), words)
        if not self._shapes:
            self._pieces.add(piece)
            return False
        self._again.add(piece)
        return self._again >= self._pieces > set()

    def any(self) -> bool:
        """Whether a loader has written a piece. Otherwise the weights are dummies."""
        return bool(self._pieces)

    def packed(self) -> None:
        """Call this after packing: it frees the storage of the parameters."""
        for parameter in self.parameters.values():
            if parameter.numel():
                self._shapes[id(parameter)] = parameter.shape
                parameter.data = parameter.data.new_empty((0,) * parameter.dim())
        self.storage = False
        self._again.clear()

    def half_done(self) -> bool:
        return bool(self._again) and not self._again >= self._pieces

    def progress(self) -> str:
        return f"{len(self._again & self._pieces)} of {len(self._pieces)} pieces"
