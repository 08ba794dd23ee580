"""Sluice's devices, one for each torch.device of a process, and its streams.

The CPU has as many threads as torch has when it is opened. A GPU is opened once for each index; its streams are torch's: a stream of
torch's that Sluice sees for the first time gets one of a few wrappings made ahead, so that this is possible inside a captured region.
"""
from __future__ import annotations

import ctypes
import os
import threading
from typing import Callable

import torch

from . import capi

# Wrappings made when a GPU is opened, and whenever they have run out: each takes a little more than 2 MiB of its memory.
STREAMS_AHEAD = 4

_HUGE_PAGE, _MADV_HUGEPAGE = 2 << 20, 14
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_opened: dict[torch.device, "Device"] = {}
_opening = threading.Lock()
_forked_after_cuda = False


class Device:
    """One opened sluice_device. It stays open until the process ends."""

    def __init__(self, device: torch.device):
        self.torch_device = device
        self.where = capi.CUDA if device.type == "cuda" else capi.CPU
        self.index = device.index if self.where == capi.CUDA else -1  # what Tensor.get_device() says
        # The CPU's one stream belongs to one thread at a time; so does a wrapped one, and two threads may share torch's stream.
        self.lock = threading.Lock()
        self.forked = False  # this process is a child of the one that opened it
        self._streams: dict[int, int] = {}  # torch's, as a cudaStream_t, and the wrapping's own word for it
        self._spare_streams: list[capi.Stream] = []
        self._spare_memory: list[torch.Tensor] = []
        self._retired: list[tuple[Callable[[int], None], int]] = []
        options = capi.DeviceOptions(ctypes.sizeof(capi.DeviceOptions), self.where)
        if self.where == capi.CUDA:
            options.index = device.index
        else:
            options.threads = torch.get_num_threads()
        handle = ctypes.c_void_p()
        capi.call("sluice_open", options, handle)
        self.handle: int = handle.value
        if self.where == capi.CUDA:
            self._add_streams()
        else:
            self._own_stream: int = capi.lib.sluice_device_stream(self.handle).native

    @property
    def text(self) -> str:
        """"cpu (8 threads; avx2 avx512)"."""
        return capi.lib.sluice_device_text(self.handle).decode()

    # ---- Streams ----

    def stream(self) -> int:
        """Torch's current stream on this device, as `native` of a sluice_stream. Takes no memory when one of those made ahead is left."""
        if self.where == capi.CPU:
            return self._own_stream
        raw = torch._C._cuda_getCurrentRawStream(self.index)
        known = self._streams.get(raw)
        return known if known is not None else self._first_sight(raw)

    def _first_sight(self, raw: int) -> int:
        with self.lock:
            known = self._streams.get(raw)
            if known is not None:
                return known
            if not self._spare_streams:
                if is_capturing():
                    raise capi.Unsupported(
                        f"stream: wanted one that Sluice has run on before, or one of the first {len(self._streams)} on {self.torch_device}, "
                        "found a new one inside a captured region, where no memory can be taken: run once on this stream before")
                self._add_streams()
            stream = self._spare_streams[-1]
            capi.call("sluice_stream_retarget", self.handle, stream, raw or None)
            self._streams[raw] = self._spare_streams.pop().native
            return self._streams[raw]

    def _add_streams(self) -> None:
        for _ in range(STREAMS_AHEAD):
            stream = capi.Stream()
            capi.call("sluice_stream_wrap", self.handle, None, stream)
            self._spare_streams.append(stream)

    # ---- Memory ----

    def borrow(self, count: int) -> torch.Tensor:
        """Memory for one launch, u8 [at least count]. give_back() ends the loan."""
        if self.where == capi.CUDA:  # of torch's allocator, on the current stream: inside a capture from the graph's own pool
            return torch.empty(count, dtype=torch.uint8, device=self.torch_device)
        try:
            memory = self._spare_memory.pop()
        except IndexError:
            return aligned_bytes(count, self.torch_device)
        return memory if memory.numel() >= count else aligned_bytes(count, self.torch_device)

    def give_back(self, memory: torch.Tensor) -> None:
        if self.where == capi.CPU:  # its work has run when a launch returns; torch would give large blocks back to the system
            self._spare_memory.append(memory)

    def retire(self, destroy: Callable[[int], None], handle: int) -> None:
        """Destroys a handle, or keeps it until the next time where that would end a capture."""
        if self.forked:
            return  # the parent's
        if self.where == capi.CUDA and is_capturing():
            self._retired.append((destroy, handle))
            return
        destroy(handle)
        while self._retired:
            late, at = self._retired.pop()
            late(at)


def is_capturing() -> bool:
    """Whether this thread's current stream is being captured into a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def aligned_bytes(count: int, device: torch.device) -> torch.Tensor:
    """u8 [count] on a device, aligned to 256 bytes; on the CPU much of it lies in huge pages, where the system has them: weights are read
    once a call and in order, and with small pages address translation would stop that every 4 KiB."""
    huge = device.type == "cpu" and count >= 2 * _HUGE_PAGE
    alignment = _HUGE_PAGE if huge else 256
    memory = torch.empty(count + alignment, dtype=torch.uint8, device=device)
    skip = -memory.data_ptr() % alignment
    memory = memory[skip : skip + count]
    if huge:
        _madvise(memory.data_ptr(), count // _HUGE_PAGE * _HUGE_PAGE, _MADV_HUGEPAGE)  # a hint: refusal is no error
    return memory


def wanted_device(device: torch.device | str | int | None) -> torch.device:
    """A device as torch names it, with its index if it is a GPU. None: torch's default device."""
    device = torch.get_default_device() if device is None else torch.device(device)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise capi.Unsupported(f"device: wanted cpu or cuda, found {device}")
    if _forked_after_cuda:  # before torch is asked, whose own error does not know of the parent
        raise capi.Unsupported(f"device: wanted a process that opens {device} by itself, found a fork of one in which Sluice had opened a "
                               "GPU: start processes by spawn, or fork before")
    if device.index is not None:
        return device
    if not torch.cuda.is_available():
        raise capi.Unsupported("device: wanted cuda, found that torch sees no GPU (torch.cuda.is_available() is False)")
    return torch.device("cuda", torch.cuda.current_device())


def open_device(device: torch.device | str | int | None = None) -> Device:
    """The opened device that belongs to a torch.device. A GPU is opened outside of captured regions."""
    device = wanted_device(device)
    known = _opened.get(device)
    if known is not None:
        return known
    if device.type == "cuda":
        if is_capturing():
            raise capi.Unsupported(f"device: wanted {device} opened before a capture begins, found the first use inside one: call "
                                   f"sluice_moe.devices.open_device('{device}') before")
        torch.cuda.init()
    with _opening:
        if device not in _opened:
            _opened[device] = Device(device)
        return _opened[device]


def _after_fork() -> None:
    # Threads of the CPU's device and all of CUDA are the parent's: nothing of them may be touched here, not even to end it.
    global _opening, _forked_after_cuda
    for device in _opened.values():
        device.forked = True
        _forked_after_cuda |= device.where == capi.CUDA
    _opened.clear()
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
