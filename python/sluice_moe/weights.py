"""Passes tensors of a checkpoint to the C ABI, and receives the packed weights that it writes."""
from __future__ import annotations

import ctypes
from typing import Mapping, Optional

import torch

from . import capi
from .devices import Device, is_capturing
from .errors import InvalidArgument, Unsupported

# torch's types and their names in safetensors files.
_STORED = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
for _name, _stored in (("float8_e8m0fnu", "F8_E8M0"), ("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"),
                       ("float4_e2m1fn_x2", "F4")):
    if hasattr(torch, _name):
        _STORED[getattr(torch, _name)] = _stored


class CallersWeights:
    """A sluice_weights of torch tensors. It keeps the tensors alive."""

    def __init__(self, device: Device, tensors: Mapping[str, torch.Tensor], naming: Optional[str], layer: int):
        self._kept = []
        self._weights = (capi.Weight * len(tensors))()
        for weight, (name, tensor) in zip(self._weights, tensors.items()):
            self._write(weight, name, tensor)
        self.struct = capi.Weights(self._weights, len(tensors), capi.encoded(naming), layer)
        self.wait(device)

    @staticmethod
    def wait(device: Device) -> None:
        """Waits until the GPU has finished writing the tensors and running the layer."""
        if device.where != capi.CUDA:
            return
        if is_capturing():
            raise InvalidArgument("weights: cannot be loaded inside a captured region: load them before the capture")
        torch.cuda.synchronize(device.torch_device)

    def _write(self, weight: capi.Weight, name: str, tensor: torch.Tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"weights: {name}: wanted a torch.Tensor, found {type(tensor).__name__}")
        stored = _STORED.get(tensor.dtype)
        if stored is None:
            raise Unsupported(f"weights: {name}: wanted a type that safetensors files have, found {tensor.dtype}")
        if tensor.device.type not in ("cpu", "cuda"):
            raise InvalidArgument(f"weights: {name}: wanted a tensor on cpu or cuda, found one on {tensor.device}")
        tensor = tensor.detach()
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        sizes = list(tensor.shape)
        if stored == "F4" and sizes:
            sizes[-1] *= 2  # torch counts e2m1 values in pairs
        shape = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        self._kept += [tensor, shape]
        weight.name, weight.type = name.encode(), stored.encode()
        weight.where = capi.CUDA if tensor.is_cuda else capi.CPU
        weight.rank, weight.shape = len(sizes), shape
        weight.data, weight.bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()


def packed_bytes_of(layer: int) -> torch.Tensor:
    """Returns the file that sluice_layer_write_packed writes for a layer: u8 [bytes] on the CPU."""
    wanted = ctypes.c_size_t()
    capi.call("sluice_layer_packed_bytes", layer, wanted)
    out = torch.empty(wanted.value, dtype=torch.uint8)
    begin, at = out.data_ptr(), 0

    def take(_context, data, count):
        nonlocal at
        if at + count > wanted.value:
            return capi.IO
        ctypes.memmove(begin + at, data, count)
        at += count
        return capi.OK

    capi.call("sluice_layer_write_packed", layer, capi.SINK(take), None)
    return out
