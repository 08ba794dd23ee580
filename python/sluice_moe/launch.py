"""The arguments of a launch in the C ABI. They are kept between calls, and only changed fields are written."""
from __future__ import annotations

import ctypes
from typing import Sequence

import torch

from . import capi
from .devices import Device
from .errors import InvalidArgument, error_of

DTYPES = {torch.float32: capi.F32, torch.bfloat16: capi.BF16, torch.int32: capi.I32, torch.int64: capi.I64, torch.int16: capi.I16,
          torch.uint8: capi.U8, torch.float8_e4m3fn: capi.E4M3}
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64, "i16": torch.int16,
                "u8": torch.uint8, "e4m3": torch.float8_e4m3fn}
_NOWHERE = 256  # the address of tensors without elements: aligned, never read


class _Slot:
    """One tensor of a launch. Type and shape are written only if they differ from the previous call's."""

    __slots__ = ("name", "view", "data", "dtype", "shape", "stride")

    def __init__(self, name: str, view: capi.Tensor, where: int, data: int):
        self.name, self.view, self.data = name, view, data
        view.where = where
        self.dtype = self.shape = self.stride = None

    def describe(self, tensor: torch.Tensor, device: Device) -> None:
        if tensor.device != device.torch_device:
            raise InvalidArgument(f"{self.name}: wanted a tensor on {device.torch_device}, found one on {tensor.device}")
        number = DTYPES.get(tensor.dtype)
        if number is None:
            raise InvalidArgument(
                f"{self.name}: type: wanted one of {', '.join(TORCH_DTYPES)}, found {str(tensor.dtype).removeprefix('torch.')}")
        shape, stride = tuple(tensor.shape), list(tensor.stride())
        if len(shape) > capi.RANK_MAX:
            raise InvalidArgument(f"{self.name}: wanted at most {capi.RANK_MAX} dimensions, found {list(shape)}")
        # The stride of a dimension with at most one element is arbitrary in torch; the C ABI requires the contiguous one.
        contiguous = 1
        for at in reversed(range(len(shape))):
            if shape[at] <= 1:
                stride[at] = contiguous
            contiguous = stride[at] * max(shape[at], 1)
        self.view.dtype, self.view.rank = number, len(shape)
        self.view.shape[: len(shape)] = shape
        self.view.stride[: len(shape)] = stride
        self.dtype, self.shape, self.stride = tensor.dtype, tensor.shape, tensor.stride()


class Launch:
    """A sluice_launch with these tensors, by their names in the C ABI. One thread may use it at a time."""

    def __init__(self, device: Device, names: tuple[str, ...]):
        self.device = device
        self._args = (capi.Arg * len(names))()
        self._launch = capi.Launch(self._args, len(names))
        self._launch.stream.backend = device.where
        self._message = capi.Message()
        # Addresses are written into the structs as machine words, 3x faster than through ctypes attributes.
        self._arg_words, self._words = _words(self._args), _words(self._launch)
        self._slots = []
        for at, (arg, name) in enumerate(zip(self._args, names)):
            arg.name = name.encode()
            self._slots.append(_Slot(name, arg.tensor, device.where, at * _ARG_WORDS + _DATA_WORD))
        self.address = ctypes.addressof(self._launch)
        self.message_address = ctypes.addressof(self._message)

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Writes the tensors, in the order of `names`."""
        device = self.device
        index, words = device.index, self._arg_words
        for slot, tensor in zip(self._slots, tensors):
            address = tensor.data_ptr()
            if (tensor.shape != slot.shape or tensor.stride() != slot.stride or tensor.dtype is not slot.dtype
                    or tensor.get_device() != index or not address):
                slot.describe(tensor, device)
            words[slot.data] = address or _NOWHERE

    def run(self, function, handle: int, workspace_bytes: int, *arguments: int) -> None:
        """Calls a launch function of the C ABI, function(handle, *arguments, launch, message), on torch's current stream."""
        device, words = self.device, self._words
        words[_STREAM_WORD] = device.stream()
        if workspace_bytes:
            memory = device.borrow(workspace_bytes)
            words[_WORKSPACE_WORD] = memory.data_ptr()
            words[_WORKSPACE_WORD + 1] = workspace_bytes
        with device.lock:
            status = function(handle, *arguments, self.address, self.message_address)
        if workspace_bytes:
            device.give_back(memory)
        if status:
            raise error_of(status, self._message.read())


def _words(struct) -> memoryview:
    return memoryview(struct).cast("B").cast("N")


_ARG_WORDS = ctypes.sizeof(capi.Arg) // 8
_DATA_WORD = (capi.Arg.tensor.offset + capi.Tensor.data.offset) // 8
_WORKSPACE_WORD = capi.Launch.workspace.offset // 8
_STREAM_WORD = (capi.Launch.stream.offset + capi.Stream.native.offset) // 8


class Launches:
    """Launches of one handle, by the names of their tensors. A thread takes one and returns it after the call."""

    def __init__(self, device: Device):
        self.device = device
        self._free: dict[tuple[str, ...], list[Launch]] = {}

    def run(self, names: tuple[str, ...], tensors: Sequence[torch.Tensor], function, handle: int, workspace_bytes: int,
            *arguments: int) -> None:
        try:
            free = self._free[names]
            launch = free.pop()
        except (KeyError, IndexError):
            free = self._free.setdefault(names, [])
            launch = Launch(self.device, names)
        launch.fill(tensors)
        launch.run(function, handle, workspace_bytes, *arguments)
        free.append(launch)  # not returned after an exception, because it may be half written
