"""The devices of a process, one per torch.device, and their streams.

The CPU device uses as many threads as torch has when the device is opened. On a GPU, launches run on torch's streams. Each torch
stream has a wrapper. A few wrappers are allocated in advance, because no memory can be allocated during a capture.
"""
from __future__ import annotations

import ctypes
import os
import threading
from typing import Callable

import torch

from . import capi
from .errors import Unsupported

# How many stream wrappers to allocate when a GPU is opened, and again whenever all are in use. Each takes a little more than 2 MiB of GPU memory.
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
        self.index = device.index if self.where == capi.CUDA else -1  # equals Tensor.get_device()
        # A Sluice stream takes one thread at a time, but two threads may share a torch stream, and the CPU has a single stream.
        self.lock = threading.Lock()
        self.forked = False  # a parent process opened it
        self._streams: dict[int, int] = {}  # cudaStream_t of torch -> native of its wrapper
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
        """A description, for example "cpu (8 threads; avx2 avx512)"."""
        return capi.lib.sluice_device_text(self.handle).decode()

    # ---- Streams ----

    def stream(self) -> int:
        """Returns the `native` of torch's current stream on this device. Allocates nothing as long as there is a spare wrapper."""
        if self.where == capi.CPU:
            return self._own_stream
        raw = torch._C._cuda_getCurrentRawStream(self.index)
        known = self._streams.get(raw)
        return known if known is not None else self._wrapped(raw)

    def _wrapped(self, raw: int) -> int:
        """Assigns a spare wrapper to a new torch stream."""
        with self.lock:
            known = self._streams.get(raw)
            if known is not None:
                return known
            if not self._spare_streams:
                if is_capturing():
                    raise Unsupported(
                        f"stream: wanted one of the {len(self._streams)} streams of {self.torch_device} that were used before, found a new "
                        "one inside a captured region, where no memory can be allocated: run once on this stream before the capture")
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
        """Returns workspace for one launch, u8 [at least count]. Release it with give_back()."""
        if self.where == capi.CUDA:  # from torch's allocator, on the current stream; inside a capture from the pool of the graph
            return torch.empty(count, dtype=torch.uint8, device=self.torch_device)
        try:
            memory = self._spare_memory.pop()
        except IndexError:
            return aligned_bytes(count, self.torch_device)
        return memory if memory.numel() >= count else aligned_bytes(count, self.torch_device)

    def give_back(self, memory: torch.Tensor) -> None:
        if self.where == capi.CPU:  # kept for reuse: CPU launches are synchronous, and torch would unmap large blocks
            self._spare_memory.append(memory)

    def retire(self, destroy: Callable[[int], None], handle: int) -> None:
        """Destroys a handle. During a capture the handle is kept until the next call, because destroying it would invalidate the capture."""
        if self.forked:
            return  # the handle belongs to the parent process
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
    """Allocates u8 [count] on a device, aligned to 256 bytes. Large CPU buffers request huge pages, because each call reads all weights once, and
    TLB misses with 4 KiB pages would slow the reads."""
    huge = device.type == "cpu" and count >= 2 * _HUGE_PAGE
    alignment = _HUGE_PAGE if huge else 256
    memory = torch.empty(count + alignment, dtype=torch.uint8, device=device)
    skip = -memory.data_ptr() % alignment
    memory = memory[skip : skip + count]
    if huge:
        _madvise(memory.data_ptr(), count // _HUGE_PAGE * _HUGE_PAGE, _MADV_HUGEPAGE)  # only a hint, so an error is ignored
    return memory


def wanted_device(device: torch.device | str | int | None) -> torch.device:
    """Returns the torch.device, with an index if it is a GPU. None means torch's default device."""
    device = torch.get_default_device() if device is None else torch.device(device)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise Unsupported(f"device: wanted cpu or cuda, found {device}")
    if _forked_after_cuda:  # checked before torch, whose error would not mention the parent process
        raise Unsupported(f"device: {device} cannot be opened, because this process is a fork of a process in which Sluice had opened a "
                          "GPU: start processes with spawn, or fork before using the GPU")
    if device.index is not None:
        return device
    if not torch.cuda.is_available():
        raise Unsupported("device: wanted cuda, found no GPU (torch.cuda.is_available() is False): use device=\"cpu\", or see "
                          "python -m sluice_moe doctor")
    return torch.device("cuda", torch.cuda.current_device())


def open_device(device: torch.device | str | int | None = None) -> Device:
    """Returns the device of a torch.device, and opens it at its first use. A GPU cannot be opened inside a captured region."""
    device = wanted_device(device)
    known = _opened.get(device)
    if known is not None:
        return known
    if device.type == "cuda":
        if is_capturing():
            raise Unsupported(f"device: {device} cannot be opened inside a captured region: call "
                              f"sluice_moe.devices.open_device('{device}') before the capture")
        torch.cuda.init()
    with _opening:
        if device not in _opened:
            _opened[device] = Device(device)
        return _opened[device]


def _after_fork() -> None:
    # The threads of the CPU device and all CUDA objects belong to the parent. The child must not even destroy them.
    global _opening, _forked_after_cuda
    for device in _opened.values():
        device.forked = True
        _forked_after_cuda |= device.where == capi.CUDA
    _opened.clear()
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
