"""What Sluice would run, and why: without torch, without a GPU, without weights."""
from __future__ import annotations

import ctypes
from typing import Mapping, Optional, Sequence

from . import capi


class LayerOptions:
    """A sluice_layer_options and what it points to."""

    def __init__(self, model: Optional[str], *, tokens_max: int, tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1),
                 kernel: Optional[str] = None, batch_invariant: bool = False, threads: int = 0,
                 fields: Optional[Mapping[str, object]] = None):
        self._policy = capi.Policy(capi.encoded(kernel), int(batch_invariant))
        self.struct = capi.LayerOptions(
            ctypes.sizeof(capi.LayerOptions), capi.encoded(model), capi.words(fields or {}), tokens_max, tp[0], tp[1], ep[0], ep[1],
            ctypes.pointer(self._policy), threads)


def _device_of(device) -> tuple[Optional[bytes], Optional[int]]:
    """(name, None) of a known device, or (None, handle) of one that is here: a torch.device, "cpu", "cuda", "cuda:1"."""
    if isinstance(device, str) and device.split(":")[0] not in ("cpu", "cuda"):
        return device.encode(), None
    from .devices import open_device

    return None, open_device(device).handle


def explain(op_or_model: str, *, device="h200", tokens: int | Sequence[int] = 1, kernel: Optional[str] = None,
            batch_invariant: bool = False, tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1), **fields) -> str:
    """Which kernel would run, and why not the others.

    op_or_model  an operation ("router_gemm", then **fields are its problem's) or a known layer ("gpt-oss-120b", then **fields change its)
    device       a known device ("h200"), or one that is here: a torch.device, "cpu", "cuda"
    tokens       one count, or several for a layer

    A problem that no kernel takes is no error here: the text has the reasons.
    """
    name, handle = _device_of(device)
    if op_or_model in capi.op_names():
        policy = capi.Policy(capi.encoded(kernel), int(batch_invariant))
        if any(field["name"] == "tokens" for field in capi.op_fields(op_or_model)):
            fields = {"tokens": tokens, **fields}
        question = capi.Question(op_or_model.encode(), capi.words(fields), name, handle, ctypes.pointer(policy))
        return _said("sluice_explain", question)[1]
    counts = [tokens] if isinstance(tokens, int) else list(tokens)
    options = LayerOptions(op_or_model, tokens_max=max([1, *counts]), tp=tp, ep=ep, kernel=kernel, batch_invariant=batch_invariant,
                           fields=fields)
    return describe(options, name, handle, counts)[1]


def why_not(model: Optional[str] = None, *, device="h200", tokens_max: int = 8192, tp: tuple[int, int] = (0, 1),
            ep: tuple[int, int] = (0, 1), kernel: Optional[str] = None, batch_invariant: bool = False, **fields) -> Optional[str]:
    """None if a MoeLayer of these arguments can run on the device, or else every reason against it."""
    options = LayerOptions(model, tokens_max=tokens_max, tp=tp, ep=ep, kernel=kernel, batch_invariant=batch_invariant, fields=fields)
    name, handle = _device_of(device)
    try:
        status, text = describe(options, name, handle, [tokens_max])
    except (capi.InvalidArgument, capi.Unsupported) as why:
        return str(why)
    return None if status == capi.OK else text


def describe(options: LayerOptions, name: Optional[bytes], handle: Optional[int], counts: Sequence[int]) -> tuple[int, str]:
    """(status, text) of a layer on a known device, by its name, or on an open one, by its handle."""
    question = capi.LayerQuestion(ctypes.pointer(options.struct), name, handle)
    return _said("sluice_layer_describe", question, (ctypes.c_int64 * len(counts))(*counts), len(counts))


def _said(function: str, *arguments) -> tuple[int, str]:
    """(status, text), where a refusal is an answer as well if the text has its reasons."""
    status, text, message = capi.written(function, *arguments)
    if status == capi.OK or (text and status in (capi.UNSUPPORTED, capi.INVALID_ARGUMENT)):
        return status, text
    raise capi.error_of(status, message)
