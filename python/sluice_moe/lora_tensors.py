"""Adapters on routed experts: converts the tensors of vLLM and SGLang to the tensors that MoeLayer.replace_adapter() takes."""
from __future__ import annotations

from typing import NamedTuple, Sequence

import torch
from torch.nn.functional import pad

from .errors import InvalidArgument


class AdapterSizes(NamedTuple):
    """The adapters of one layer, and this rank's part of it."""

    experts: int  # of the whole layer
    hidden: int
    intermediate: int  # of the whole layer
    rank: int  # of every adapter in the MoeLayer; the missing ranks of a smaller adapter are zeros
    gated: bool
    split: bool  # gate and up have an A each in the MoeLayer
    gate_order: str  # of the rows of gate and up in the MoeLayer
    first: int  # this rank's slice of the intermediate size, for tensor parallelism
    width: int  # of the slice; columns and rows past the end of the intermediate size are zeros
    held: tuple[int, ...] | None = None  # the experts of this rank by slot; None: the MoeLayer takes the tensors of all experts


def adapter_tensors(sizes: AdapterSizes, lora_a: Sequence[torch.Tensor], lora_b: Sequence[torch.Tensor], *,
                    alternates: bool = False, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Returns an adapter as bf16 tensors by the names of replace_adapter().

    lora_a, lora_b  [experts, rank, width] and [experts, rows, rank] of the whole layer: gate, down and up; or gate and up as one matrix, and down.
                    Without a gate the first is up, and a third is not read. One expert instead of all: the matrix is the same for all experts
    alternates      whether the rows of gate and up in one matrix alternate; otherwise gate's rows come first
    scale           the adapter's scale, unless it is multiplied into B
    """
    if len(lora_a) == 2 and sizes.gated:
        _check("gate_up_proj", sizes, lora_a[0], lora_b[0], sizes.hidden, 2 * sizes.intermediate)
        names, up_a, up_b = ("gate_up_proj",) * 2, [lora_a[0]] * 2, list(halves(lora_b[0], alternates))
    elif sizes.gated:
        names, up_a, up_b = ("gate_proj", "up_proj"), [lora_a[0], lora_a[2]], [lora_b[0], lora_b[2]]
    else:
        names, up_a, up_b = ("up_proj",), [lora_a[0]], [lora_b[0]]
    for name, a, b in zip(names, up_a, up_b):
        _check(name, sizes, a, b, sizes.hidden, sizes.intermediate)
    _check("down_proj", sizes, lora_a[1], lora_b[1], sizes.intermediate, sizes.hidden)
    if sizes.gated and not sizes.split and up_a[0] is not up_a[1]:
        raise InvalidArgument("LoRA on experts: wanted one A for gate_proj and up_proj, because the model has them as one matrix, found two")
    distinct = up_a if sizes.split or not sizes.gated else up_a[:1]
    up_b = [_slice(_ranks(_experts(b, sizes), sizes, 2), sizes, 1) for b in up_b]
    return {
        "experts.up_lora_a": torch.cat([_ranks(_experts(a, sizes), sizes, 1) for a in distinct], dim=1),
        "experts.up_lora_b": joined(up_b[0], up_b[1], sizes.gate_order) if sizes.gated else up_b[0].contiguous(),
        "experts.down_lora_a": _slice(_ranks(_experts(lora_a[1], sizes), sizes, 1), sizes, 2).contiguous(),
        "experts.down_lora_b": _ranks(_experts(lora_b[1], sizes), sizes, 2).contiguous(),
        "experts.lora_scale": torch.full((1,), scale, dtype=torch.float32, device=lora_a[1].device),
    }


def no_adapter(sizes: AdapterSizes) -> dict[str, torch.Tensor]:
    """Returns the tensors of an adapter that adds nothing."""
    up = [(sizes.hidden, sizes.intermediate)] * 3
    up[1] = (sizes.intermediate, sizes.hidden)
    a = [torch.zeros(1, 1, width, dtype=torch.bfloat16) for width, _ in up]
    if not sizes.split:
        a[2] = a[0]
    return adapter_tensors(sizes, a, [torch.zeros(1, rows, 1, dtype=torch.bfloat16) for _, rows in up])


def halves(rows: torch.Tensor, alternate: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns gate's and up's rows of [experts, rows, rank]."""
    return (rows[:, ::2], rows[:, 1::2]) if alternate else tuple(rows.chunk(2, dim=1))


def joined(gate: torch.Tensor, up: torch.Tensor, order: str) -> torch.Tensor:
    """Returns the rows [experts, rows, rank] of gate and up in one matrix, in this order."""
    if order == "interleaved":
        return torch.stack((gate, up), dim=2).flatten(1, 2)
    return torch.cat((gate, up) if order == "gate_first" else (up, gate), dim=1)


def _check(name: str, sizes: AdapterSizes, a: torch.Tensor, b: torch.Tensor, width: int, rows: int) -> None:
    rank = a.shape[1] if a.dim() == 3 else 0
    for part, tensor, wanted in (("lora_A", a, (rank, width)), ("lora_B", b, (rows, rank))):
        if tensor.dim() != 3 or tensor.shape[0] not in (1, sizes.experts) or tensor.shape[1:] != wanted:
            raise InvalidArgument(f"LoRA on experts: {name}.{part}: wanted {[sizes.experts, *wanted]}, found {list(tensor.shape)}")
    if rank > sizes.rank:
        raise InvalidArgument(f"LoRA on experts: {name}: wanted a rank of at most {sizes.rank} (--max-lora-rank), found {rank}")


def _experts(tensor: torch.Tensor, sizes: AdapterSizes) -> torch.Tensor:
    tensor = tensor.to(torch.bfloat16).expand(sizes.experts, -1, -1)
    return tensor if sizes.held is None else tensor[list(sizes.held)]


def _ranks(tensor: torch.Tensor, sizes: AdapterSizes, dim: int) -> torch.Tensor:
    missing = sizes.rank - tensor.shape[dim]
    return pad(tensor, (0, missing) if dim == 2 else (0, 0, 0, missing)) if missing else tensor


def _slice(tensor: torch.Tensor, sizes: AdapterSizes, dim: int) -> torch.Tensor:
    count = max(0, min(sizes.width, sizes.intermediate - sizes.first))
    part = tensor.narrow(dim, min(sizes.first, sizes.intermediate), count)
    missing = sizes.width - count
    return pad(part, (0, missing) if dim == 2 else (0, 0, 0, missing)) if missing else part
