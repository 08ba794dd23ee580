"""Explains which kernels Sluice would run. Needs no torch, no GPU and no weights."""
from __future__ import annotations

import ctypes
from typing import Mapping, Optional, Sequence

from . import capi
from .errors import InvalidArgument, Unsupported, error_of


class LayerOptions:
    """A sluice_layer_options and the objects that it points to."""

    def __init__(self, model: Optional[str], *, tokens_max: int, tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1),
                 kernel: Optional[str] = None, batch_invariant: bool = False, threads: int = 0, kernel_decode: Optional[str] = None,
                 kernel_prefill: Optional[str] = None, decode_tokens: int = 0, fields: Optional[Mapping[str, object]] = None):
        self._policy = capi.Policy(capi.encoded(kernel, "kernel"), int(bool(batch_invariant)))
        self.struct = capi.LayerOptions(
            ctypes.sizeof(capi.LayerOptions), capi.encoded(model, "model"), capi.words(fields or {}), capi.integer(tokens_max, "tokens_max"),
            *capi.pair(tp, "tp"), *capi.pair(ep, "ep"), ctypes.pointer(self._policy), capi.integer(threads, "threads", 32),
            backend_decode=capi.encoded(kernel_decode, "kernel_decode"), backend_prefill=capi.encoded(kernel_prefill, "kernel_prefill"),
            decode_tokens=capi.integer(decode_tokens, "decode_tokens"))


def _device_of(device) -> tuple[Optional[bytes], Optional[int]]:
    """(name, None) for a known device, or (None, handle) for a device of this machine: a torch.device, "cpu", "cuda", "cuda:1"."""
    if isinstance(device, str) and device.split(":")[0] not in ("cpu", "cuda"):
        return device.encode(), None
    from .devices import open_device

    return None, open_device(device).handle


def explain(op_or_model: str, *, device="h200", tokens: int | Sequence[int] = 1, kernel: Optional[str] = None,
            batch_invariant: bool = False, tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1), kernel_decode: Optional[str] = None,
            kernel_prefill: Optional[str] = None, decode_tokens: int = 0, **fields) -> str:
    """Returns text: the kernels that would run, and why others would not.

    op_or_model  an operation ("router_gemm"; **fields describe its problem) or a known layer ("gpt-oss-120b"; **fields override its fields)
    device       a known device ("h200"), or a device of this machine: a torch.device, "cpu", "cuda"
    tokens       a number of tokens; several numbers for a layer
    kernel_decode, kernel_prefill, decode_tokens  for a layer only, as in MoeLayer

    If no kernel accepts the problem, the text gives the reasons; no error is raised.
    """
    name, handle = _device_of(device)
    if op_or_model in capi.op_names():
        if kernel_decode or kernel_prefill or decode_tokens:
            raise InvalidArgument(f"kernel_decode, kernel_prefill, decode_tokens: wanted a layer, found the operation {op_or_model}; use "
                                  "kernel")
        policy = capi.Policy(capi.encoded(kernel), int(batch_invariant))
        if any(field["name"] == "tokens" for field in capi.op_fields(op_or_model)):
            fields = {"tokens": tokens, **fields}
        question = capi.Question(op_or_model.encode(), capi.words(fields), name, handle, ctypes.pointer(policy))
        return _status_and_text("sluice_explain", question)[1]
    counts = [capi.integer(count, "tokens") for count in ([tokens] if isinstance(tokens, int) else tokens)]
    options = LayerOptions(op_or_model, tokens_max=max([1, *counts]), tp=tp, ep=ep, kernel=kernel, batch_invariant=batch_invariant,
                           kernel_decode=kernel_decode, kernel_prefill=kernel_prefill, decode_tokens=decode_tokens, fields=fields)
    return describe(options, name, handle, counts)[1]


def why_not(model: Optional[str] = None, *, device="h200", tokens_max: int = 8192, tp: tuple[int, int] = (0, 1),
            ep: tuple[int, int] = (0, 1), kernel: Optional[str] = None, batch_invariant: bool = False, kernel_decode: Optional[str] = None,
            kernel_prefill: Optional[str] = None, decode_tokens: int = 0, **fields) -> Optional[str]:
    """Returns None if a MoeLayer with these arguments can run on the device, otherwise the reasons as text."""
    options = LayerOptions(model, tokens_max=tokens_max, tp=tp, ep=ep, kernel=kernel, batch_invariant=batch_invariant,
                           kernel_decode=kernel_decode, kernel_prefill=kernel_prefill, decode_tokens=decode_tokens, fields=fields)
    name, handle = _device_of(device)
    try:
        status, text = describe(options, name, handle, [tokens_max])
    except (InvalidArgument, Unsupported) as why:
        return str(why)
    return None if status == capi.OK else text


def describe(options: LayerOptions, name: Optional[bytes], handle: Optional[int], counts: Sequence[int]) -> tuple[int, str]:
    """Explains a layer on a known device, given by name, or on an open device, given by handle. Returns (status, text)."""
    question = capi.LayerQuestion(ctypes.pointer(options.struct), name, handle)
    return _status_and_text("sluice_layer_describe", question, capi.counts(counts, "tokens"), len(counts))


def _status_and_text(function: str, *arguments) -> tuple[int, str]:
    """Returns (status, text). Raises an error only if the text does not contain the reasons."""
    status, text, message = capi.written(function, *arguments)
    if status == capi.OK or (text and status in (capi.UNSUPPORTED, capi.INVALID_ARGUMENT)):
        return status, text
    raise error_of(status, message)
