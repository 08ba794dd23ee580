"""Where each tensor of a layer's packed weights lies: views of MoeLayer.packed, for engines that move experts between ranks."""
from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import torch

from . import capi

if TYPE_CHECKING:
    from .layer import MoeLayer

ALIGNMENT = 256  # each tensor begins at a multiple of it, in the order of the packed file (include/sluice/sluice.h)
_SIZES = {"F32": 4, "BF16": 2, "I32": 4, "U8": 1}
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32, "U8": torch.uint8}


def _header(native: int) -> dict:
    """The header of the safetensors file that sluice_layer_write_packed would write. The sink refuses all that follows it."""
    taken = []

    def take(_context, data, count):
        if taken:
            return capi.IO
        taken.append(capi.ctypes.string_at(data, count))
        return capi.OK

    try:
        capi.call("sluice_layer_write_packed", native, capi.SINK(take), None)
    except capi.SluiceError:
        if not taken:
            raise
    (length,) = struct.unpack_from("<Q", taken[0])
    return json.loads(taken[0][8 : 8 + length])


def packed_views(layer: MoeLayer) -> dict[str, torch.Tensor]:
    """Each tensor of the layer's weights by its plain name, packed, [experts, ...] where it has experts: a view of layer.packed."""
    named = {n: t for n, t in _header(layer._native).items() if n != "__metadata__" and not n.startswith("sluice.")}
    views, at = {}, 0
    for name, said in sorted(named.items(), key=lambda item: item[1]["data_offsets"][0]):
        count = said["data_offsets"][1] - said["data_offsets"][0]
        views[name] = layer.packed[at : at + count].view(_DTYPES[said["dtype"]]).view(said["shape"])
        at += -(-count // ALIGNMENT) * ALIGNMENT
    if at != layer.packed.numel():
        raise capi.SluiceError(f"packed weights: wanted {layer.packed.numel()} bytes of {', '.join(named)}, found {at}")
    return views
