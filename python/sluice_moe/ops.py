"""torch.ops.sluice: operations on torch's current stream.

    router_gemm(x, w, bias=None, out_dtype=None, *, batch_invariant=False) -> logits
        x [tokens, hidden], w [experts, hidden], bias [experts], logits [tokens, experts] (f32 unless out_dtype is bf16)
    route_topk(logits, top_k, *, method="renormalize", correction_bias=None, groups=1, topk_groups=1, scale=1.0) -> (weights, ids)
        logits [tokens, experts], weights f32 [tokens, top_k], ids i32 [tokens, top_k]
    moe_layer(x, packed, handle, *, residual=None, token_ids=None, adapter=None, ids=None, weights=None, packed_in=None,
              tokens_valid=None) -> y
    moe_layer_out(..., *, out, captured=None) -> nothing
        a MoeLayer; x, y, out [tokens, hidden]. MoeLayer.forward() calls these two operations
    expert_mlp(x, ids, weights, packed, handle) -> y
        the experts of a MoeLayer with input="precomputed": ids i32 or i64 [tokens, top_k], -1 is an empty slot

Each operation has an implementation for the CPU and for CUDA, and a fake one for torch.compile and torch.export. None has a backward
pass. `handle` is MoeLayer.handle, the number of a MoeLayer of this process.
"""
from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from typing import Optional

import torch

from . import capi
from .devices import Device, open_device
from .errors import IncompatibleEngine, InvalidArgument
from .launch import Launches

TOKENS_MAX = 16384  # per launch of router_gemm and route_topk; more tokens take several launches

if "_layers" not in globals():  # importlib.reload() keeps the layers and the registered operations
    _layers: dict[int, weakref.ref] = {}  # handle -> MoeLayer


# ---- Operations without a layer: one table for each problem, made at its first call ----


class _Table:
    """The kernels of an operation on one device, for any number of tokens. It can be made during a capture, because that needs only the host."""

    def __init__(self, device: Device, op: str, fields: dict, batch_invariant: bool):
        handle = ctypes.c_void_p()
        policy = capi.Policy(None, int(batch_invariant))
        capi.call("sluice_table_create", device.handle, op.encode(), capi.words(fields), TOKENS_MAX, policy, handle)
        self.handle = handle.value
        self.workspace_bytes = capi.lib.sluice_table_workspace_bytes(self.handle)
        self.launches = Launches(device)

    def run(self, tokens: int, names: tuple[str, ...], tensors: list[torch.Tensor]) -> None:
        self.launches.run(names, tensors, capi.lib.sluice_table_run, self.handle, self.workspace_bytes, tokens)


# Keys: device and problem. A forked child opens its own devices, so it never uses tables of its parent.
_tables: dict[tuple, _Table] = {}
_making = threading.Lock()


def _table(op: str, device: torch.device, key: tuple, fields, batch_invariant: bool = False) -> _Table:
    opened = open_device(device)
    key = (op, opened, key, batch_invariant)
    known = _tables.get(key)
    if known is not None:
        return known
    with _making:
        if key not in _tables:
            _tables[key] = _Table(opened, op, fields(), batch_invariant)
        return _tables[key]


def _need_rank(name: str, tensor: torch.Tensor, rank: int, shape: str) -> None:
    if tensor.dim() != rank:
        raise InvalidArgument(f"{name}: wanted {shape}, found {list(tensor.shape)}")


def _pieces(tokens: int):
    """Returns [begin, end) of each launch; one empty range for zero tokens."""
    return [(begin, min(begin + TOKENS_MAX, tokens)) for begin in range(0, max(tokens, 1), TOKENS_MAX)]


def _logits_like(x: torch.Tensor, w: torch.Tensor, out_dtype: Optional[torch.dtype]) -> torch.Tensor:
    _need_rank("x", x, 2, "[tokens, hidden]")
    _need_rank("w", w, 2, "[experts, hidden]")
    return x.new_empty((x.shape[0], w.shape[0]), dtype=out_dtype or torch.float32)


def _router_gemm(x, w, bias=None, out_dtype=None, *, batch_invariant=False):
    y = _logits_like(x, w, out_dtype)
    experts, hidden = w.shape
    table = _table("router_gemm", x.device, (experts, hidden, x.dtype, w.dtype, y.dtype, bias is not None),
                   lambda: {"experts": experts, "hidden": hidden, "x": x.dtype, "w": w.dtype, "y": y.dtype, "bias": bias is not None},
                   batch_invariant)
    names = ("x", "w", "y") if bias is None else ("x", "w", "y", "bias")
    for begin, end in _pieces(x.shape[0]):
        part = (x, y) if end - begin == x.shape[0] else (x[begin:end], y[begin:end])
        table.run(end - begin, names, [part[0], w, part[1]] if bias is None else [part[0], w, part[1], bias])
    return y


def _router_gemm_fake(x, w, bias=None, out_dtype=None, *, batch_invariant=False):
    return _logits_like(x, w, out_dtype)


def _choice_like(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    _need_rank("logits", logits, 2, "[tokens, experts]")
    shape = (logits.shape[0], top_k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


def _route_topk(logits, top_k, *, method="renormalize", correction_bias=None, groups=1, topk_groups=1, scale=1.0):
    if top_k < 1:
        raise InvalidArgument(f"top_k: wanted at least 1, found {top_k}")
    weights, ids = _choice_like(logits, top_k)
    experts = logits.shape[1]
    table = _table("route_topk", logits.device,
                   (experts, top_k, logits.dtype, method, correction_bias is not None, groups, topk_groups, scale),
                   lambda: {"experts": experts, "top_k": top_k, "logits": logits.dtype, "method": method,
                            "bias": correction_bias is not None, "groups": groups, "topk_groups": topk_groups, "scale": float(scale)})
    names = ("logits", "weights", "ids") if correction_bias is None else ("logits", "weights", "ids", "bias")
    for begin, end in _pieces(logits.shape[0]):
        parts = [t if end - begin == logits.shape[0] else t[begin:end] for t in (logits, weights, ids)]
        table.run(end - begin, names, parts if correction_bias is None else [*parts, correction_bias])
    return weights, ids


def _route_topk_fake(logits, top_k, *, method="renormalize", correction_bias=None, groups=1, topk_groups=1, scale=1.0):
    return _choice_like(logits, top_k)


# ---- Operations of a layer ----


def register_layer(handle: int, layer) -> None:
    """Registers a layer under a number, by which operations find it as long as it exists."""
    _layers[handle] = weakref.ref(layer, lambda _: _layers.pop(handle, None))


def _layer_of(handle: int, packed: torch.Tensor):
    found = _layers.get(handle)
    layer = found and found()
    if layer is None:
        raise InvalidArgument(f"handle: wanted MoeLayer.handle of a layer that exists in this process, found {handle}")
    # Kernels read the layer's own memory, so a copy of `packed`, which tracers make, is accepted.
    if packed.numel() != layer.weight_bytes:
        raise InvalidArgument(f"packed: wanted MoeLayer.packed of layer {handle}, {layer.weight_bytes} bytes, found "
                              f"{packed.numel()} bytes")
    return layer


# _OPTIONAL: the optional tensors' names in the C ABI, in the order of moe_layer_out's arguments. _NAMES: which optional tensors are passed -> the
# names of all tensors of the launch.
_OPTIONAL = ("residual", "token_ids", "adapter", "ids_in", "weights_in", "packed_in", "tokens_valid", "captured")
_NAMES = {given: ("x", "y", *itertools.compress(_OPTIONAL, given)) for given in itertools.product((False, True), repeat=len(_OPTIONAL))}


def _moe_layer_out(x, packed, handle, *, residual=None, token_ids=None, adapter=None, ids=None, weights=None, packed_in=None,
                   tokens_valid=None, out, captured=None):
    layer = _layer_of(handle, packed)
    if ids is not None and ids.dtype is torch.int64:
        ids = ids.clamp(-1, 2**31 - 1).to(torch.int32)  # an id outside int32 is outside the experts, too
    names = _NAMES[residual is not None, token_ids is not None, adapter is not None, ids is not None, weights is not None,
                   packed_in is not None, tokens_valid is not None, captured is not None]
    layer._run(names, [t for t in (x, out, residual, token_ids, adapter, ids, weights, packed_in, tokens_valid, captured) if t is not None])


def _moe_layer(x, packed, handle, **optional):
    out = x.new_empty(x.shape)
    _moe_layer_out(x, packed, handle, **optional, out=out)
    return out


def _moe_layer_fake(x, packed, handle, **optional):
    return x.new_empty(x.shape)


def _moe_layer_out_fake(x, packed, handle, **optional):
    return None


def _expert_mlp(x, ids, weights, packed, handle):
    return _moe_layer(x, packed, handle, ids=ids, weights=weights)


def _expert_mlp_fake(x, ids, weights, packed, handle):
    return x.new_empty(x.shape)


# ---- Registration ----

_INPUTS = ("Tensor x, Tensor packed, int handle, *, Tensor? residual=None, Tensor? token_ids=None, Tensor? adapter=None, "
           "Tensor? ids=None, Tensor? weights=None, Tensor? packed_in=None, Tensor? tokens_valid=None")
DECLARED = {
    "router_gemm": ("(Tensor x, Tensor w, Tensor? bias=None, ScalarType? out_dtype=None, *, bool batch_invariant=False) -> Tensor",
                    _router_gemm, _router_gemm_fake),
    "route_topk": ("(Tensor logits, int top_k, *, str method=\"renormalize\", Tensor? correction_bias=None, int groups=1, "
                   "int topk_groups=1, float scale=1.0) -> (Tensor, Tensor)", _route_topk, _route_topk_fake),
    "moe_layer": (f"({_INPUTS}) -> Tensor", _moe_layer, _moe_layer_fake),
    "moe_layer_out": (f"({_INPUTS}, Tensor(a!) out, Tensor(b!)? captured=None) -> ()", _moe_layer_out, _moe_layer_out_fake),
    "expert_mlp": ("(Tensor x, Tensor ids, Tensor weights, Tensor packed, int handle) -> Tensor", _expert_mlp, _expert_mlp_fake),
}


def _declare() -> torch.library.Library:
    # Compilers must not change strides, which are part of the contract.
    tags = [torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)]
    library = torch.library.Library("sluice", "FRAGMENT")
    for name, (schema, run, fake) in DECLARED.items():
        if hasattr(torch.ops.sluice, name):
            raise IncompatibleEngine(f"sluice_moe: torch.ops.sluice.{name} is already registered by another module of this process: do not "
                                     "import that module")
        library.define(name + schema, tags=tags)
        for key in ("CPU", "CUDA"):
            library.impl(name, run, key)
        torch.library.register_fake(f"sluice::{name}", fake, lib=library)
    return library


if "_library" not in globals():
    _library = _declare()

router_gemm = torch.ops.sluice.router_gemm
route_topk = torch.ops.sluice.route_topk
moe_layer = torch.ops.sluice.moe_layer
moe_layer_out = torch.ops.sluice.moe_layer_out
expert_mlp = torch.ops.sluice.expert_mlp
