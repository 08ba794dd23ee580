"""Unpacks packed weights into the rows of a checkpoint, bit for bit. state_dict() of packed experts returns these rows.

The input is the file of sluice_layer_write_packed: a safetensors file with the layer's fields in its metadata. The library inverts its own
layouts (sluice_unpack_panels; the operation pack_experts for fragments) on the CPU, whatever device packed the weights.
"""
from __future__ import annotations

import ctypes
import json
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p

import torch

from . import capi
from .activations import ACTIVATIONS, GATE_ORDERS
from .errors import CorruptData, InvalidArgument, Unsupported, error_of
from .packed import DTYPES


class _PanelMatrix(ctypes.Structure):
    _fields_ = [("features", c_int64), ("width", c_int64), ("gated", c_int32), ("gate_order", c_int32), ("dtype", c_int32)]


class _PanelViews(ctypes.Structure):
    _fields_ = [(name, capi.Tensor) for name in ("rows", "row_scales", "panels", "panel_scales")]


def read_packed(file: torch.Tensor) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Returns the fields and the tensors of a packed file, u8 [bytes]. The tensors are views of it."""
    header_bytes = int.from_bytes(bytes(file[:8].tolist()), "little")
    begin = 8 + header_bytes
    if not 0 < header_bytes <= file.numel() - 8:
        raise CorruptData(f"packed layer: wanted a header within {file.numel()} bytes, found one of {header_bytes}")
    header = json.loads(file[8:begin].numpy().tobytes())
    config = header.pop("__metadata__", {}).get("sluice.config")
    if config is None:
        raise CorruptData("packed layer: wanted sluice.config in its metadata, found none")
    fields = dict(word.split("=", 1) for word in config.split())
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] in DTYPES:
            first, last = (begin + at for at in entry["data_offsets"])
            tensors[name] = file[first:last].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return fields, tensors


def unpacked(file: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the experts of a packed file, u8 [bytes] on the CPU, by plain names and in the layer's gate_order.

    experts.up, experts.down    bf16 [experts, rows, width], or u8 [experts, rows, width / 2] with two e2m1 codes per byte and
                                experts.up_scale, experts.down_scale u8 [experts, rows, width / 32]
    experts.up_bias, experts.down_bias [experts, rows] if the layer has them
    """
    fields, tensors = read_packed(file)
    if fields["expert_w"] == "e4m3" or fields.get("expert_scales", "mx") != "mx":
        raise Unsupported(f"unpack: wanted experts in bf16 or MXFP4, found expert_w={fields['expert_w']} with expert_scales={fields['expert_scales']}")
    hidden, intermediate = int(fields["hidden"]), int(fields["intermediate"])
    columns = int(fields["latent"]) or hidden
    gated = ACTIVATIONS[fields["act"]].gated
    out = {name: tensors[name].clone() for name in ("experts.up_bias", "experts.down_bias") if name in tensors}
    for name, features, width, is_gated in (("experts.up", intermediate, columns, gated), ("experts.down", columns, intermediate, False)):
        matrix = {"features": features, "width": width, "gated": is_gated, "gate_order": fields["gate_order"], "w": fields["expert_w"]}
        rows, scales = _rows(fields["layout"], matrix, tensors[name], tensors.get(name + "_scale"))
        out[name] = rows
        if scales is not None:
            out[name + "_scale"] = scales
    return out


def _rows(layout: str, matrix: dict, packed: torch.Tensor, packed_scales: torch.Tensor | None):
    """Returns the rows and the scales (None for bf16) of all experts in a packed tensor [experts, bytes]."""
    experts, rows, width = packed.shape[0], matrix["features"] * (2 if matrix["gated"] else 1), matrix["width"]
    if matrix["w"] not in ("bf16", "e2m1"):
        raise Unsupported(f"unpacking: wanted experts in bf16 or e2m1, found {matrix['w']}")
    fp4 = matrix["w"] == "e2m1"
    out = torch.empty(experts, rows, width // 2 if fp4 else 2 * width, dtype=torch.uint8)
    scales = torch.empty(experts, rows, width // 32, dtype=torch.uint8) if fp4 else None
    if layout == "panels16":
        for e in range(experts):
            _unpack_panels(matrix, out[e], scales[e] if fp4 else None, packed[e], packed_scales[e] if fp4 else None)
    elif layout == "fragments":
        _unpack_fragments(matrix, out, scales, packed, packed_scales)
    else:
        raise Unsupported(f"unpacking: wanted layout panels16 or fragments, found {layout}")
    return (out if fp4 else out.view(torch.bfloat16)), scales


def _view(data: torch.Tensor | None, dtype: int, *shape: int) -> capi.Tensor:
    """Describes a contiguous CPU tensor for the C ABI. Without data its rank is 0."""
    view = capi.Tensor(dtype=dtype, where=capi.CPU, rank=len(shape))
    if data is None:
        view.rank = 0
        return view
    if not data.is_contiguous():
        raise InvalidArgument(f"unpacking: wanted a contiguous tensor, found {list(data.shape)} with strides {list(data.stride())}")
    view.data = data.data_ptr()
    stride = 1
    for i in reversed(range(len(shape))):
        view.shape[i], view.stride[i] = shape[i], stride
        stride *= shape[i]
    return view


def _unpack_panels(matrix: dict, rows: torch.Tensor, scales, packed: torch.Tensor, packed_scales) -> None:
    fp4 = matrix["w"] == "e2m1"
    count, width = rows.shape[0], matrix["width"]
    order = GATE_ORDERS.index(matrix["gate_order"])
    shape = _PanelMatrix(matrix["features"], width, matrix["gated"], order, capi.E2M1 if fp4 else capi.BF16)
    views = _PanelViews(_view(rows, shape.dtype, count, width), _view(scales, capi.U8, count, width // 32),
                        _view(packed, capi.U8, packed.numel()), _view(packed_scales, capi.U8, packed_scales.numel() if fp4 else 0))
    function = capi.lib.sluice_unpack_panels
    function.restype, function.argtypes = c_int32, [POINTER(_PanelMatrix), POINTER(_PanelViews), POINTER(capi.Text)]
    capi.call("sluice_unpack_panels", byref(shape), byref(views))


def _unpack_fragments(matrix: dict, rows: torch.Tensor, scales, packed: torch.Tensor, packed_scales) -> None:
    named = [(b"rows", rows), (b"row_scales", scales), (b"packed", packed), (b"packed_scales", packed_scales)]
    args = [capi.Arg(name, _view(tensor, capi.U8, *tensor.shape)) for name, tensor in named if tensor is not None]
    problem = capi.words({**matrix, "experts": rows.shape[0], "unpack": True})
    options = capi.DeviceOptions(size=ctypes.sizeof(capi.DeviceOptions), backend=capi.CPU)
    device, table = c_void_p(), c_void_p()
    capi.call("sluice_open", byref(options), byref(device))
    try:
        capi.call("sluice_table_create", device, b"pack_experts", problem, rows.shape[0], None, byref(table))
        scratch = torch.empty(capi.lib.sluice_table_workspace_bytes(table) + 256, dtype=torch.uint8)
        stream = capi.lib.sluice_device_stream(device)
        launch = capi.Launch((capi.Arg * len(args))(*args), len(args), -(-scratch.data_ptr() // 256) * 256, scratch.numel() - 256, stream)
        message = capi.Message()
        status = capi.lib.sluice_table_run(table, rows.shape[0], ctypes.addressof(launch), ctypes.addressof(message))
        if status != capi.OK:
            raise error_of(status, message.read())
        capi.call("sluice_wait", device, stream)
    finally:
        capi.lib.sluice_table_destroy(table)
        capi.lib.sluice_close(device)
