"""Views of the tensors inside MoeLayer.packed, for engines that move experts between ranks."""
from __future__ import annotations

import ctypes
import json
import struct
from typing import TYPE_CHECKING

import torch

from . import capi
from .errors import CorruptData, Error

if TYPE_CHECKING:
    from .layer import MoeLayer

ALIGNMENT = 256  # of each tensor; they follow each other in the order of the packed file (include/sluice/sluice.h)
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32, "U8": torch.uint8}


def _header(native: int) -> dict:
    """Returns the header of a layer's packed file. The sink accepts the first write and rejects the rest."""
    taken = []

    def take(_context, data, count):
        if taken:
            return capi.IO
        taken.append(ctypes.string_at(data, count))
        return capi.OK

    try:
        capi.call("sluice_layer_write_packed", native, capi.SINK(take), None)
    except Error:  # the sink rejected the second write
        if not taken:
            raise
    (length,) = struct.unpack_from("<Q", taken[0])
    return json.loads(taken[0][8 : 8 + length])


def packed_views(layer: MoeLayer) -> dict[str, torch.Tensor]:
    """Returns {plain name: tensor}, where the tensors are views of layer.packed; tensors of experts are [experts, ...]."""
    named = {n: t for n, t in _header(layer._native).items() if n != "__metadata__" and not n.startswith("sluice.")}
    views, at = {}, 0
    for name, entry in sorted(named.items(), key=lambda item: item[1]["data_offsets"][0]):
        count = entry["data_offsets"][1] - entry["data_offsets"][0]
        views[name] = layer.packed[at : at + count].view(DTYPES[entry["dtype"]]).view(entry["shape"])
        at += -(-count // ALIGNMENT) * ALIGNMENT
    if at != layer.packed.numel():
        raise CorruptData(f"packed weights: wanted {layer.packed.numel()} bytes in {', '.join(named)}, found {at} bytes")
    return views
