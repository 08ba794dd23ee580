"""Adapters on experts that Sluice runs. The MoeLayer holds the adapters and computes their products; SGLang's manager decides which slot holds which
adapter, and which slot each request uses.

SGLang's own wrapper computes the products next to the experts, with Triton, from buffers of its memory pool. Here the wrapper hands each loaded
adapter to the MoeLayer, and the pool's buffers for experts shrink to one expert.
"""
from __future__ import annotations

import functools
import types
from typing import Any, Callable, Mapping, NamedTuple, Optional, Union

import torch
from sglang.srt.lora.layers import BaseLayerWithLoRA, FusedMoEWithLoRA

from sluice_moe.errors import InvalidArgument
from sluice_moe.lora_tensors import AdapterSizes, adapter_tensors, no_adapter

UP, DOWN = "gate_up_proj", "down_proj"  # SGLang's target modules; both select the experts
BUFFERS = (f"{UP}_moe", f"{DOWN}_moe")  # their buffers in the memory pool
STEP_TOKENS_MAX = 1 << 20

# An adapter's matrices of one projection: those of single experts by number, or [experts, ...], or [1, ...] for all experts.
Matrices = Union[Mapping[int, torch.Tensor], torch.Tensor]


class Room(NamedTuple):
    """The adapters that SGLang may put on experts."""

    adapters: int
    rank: int


def room() -> Optional[Room]:
    """Returns the room that experts need, or None if no flag and no adapter of the command line targets experts."""
    from sglang.srt.runtime_context import get_lora

    flags = get_lora()
    if not flags.enable_lora:
        return None
    targets, rank = _normalized(flags.lora_target_modules), flags.max_lora_rank
    if not targets or rank is None:
        of_adapters, most = _of_adapters(tuple(adapter.lora_path for adapter in flags.lora_paths or ()))
        targets, rank = targets or of_adapters, most if rank is None else rank
    return Room(flags.max_loras_per_batch, rank) if "all" in targets or {UP, DOWN} <= targets else None


def _normalized(targets: Any) -> set[str]:
    """Returns target modules by the names of SGLang's modules: gate_proj and up_proj are gate_up_proj."""
    from sglang.srt.lora.utils import get_normalized_target_modules

    return get_normalized_target_modules(targets) if targets else set()


@functools.cache
def _of_adapters(paths: tuple[str, ...]) -> tuple[set[str], int]:
    """Returns the target modules and the largest rank of adapters."""
    from sglang.srt.lora.lora_config import LoRAConfig

    configs = [LoRAConfig(path) for path in paths]
    return set().union(*(_normalized(config.target_modules) for config in configs)), max((config.r for config in configs), default=0)


def fields(wanted: Room, gated: bool) -> dict[str, object]:
    """Returns the fields of a MoeLayer with this room. SGLang gives gate and up an A each."""
    return {"expert_lora_rank": wanted.rank, "lora_adapters": wanted.adapters, "lora_w": "bf16", "expert_lora_split": int(gated)}


def why_not() -> list[str]:
    """Returns the reasons why no experts of this process can have adapters."""
    from sglang.srt.layers.moe import is_tbo_enabled
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    by_data = getattr(parallel, "attn_dp_enabled", False) or getattr(parallel, "enable_dp_attention", False)  # from 0.5.22 on the first alone
    return [f"wanted LoRA on experts without {flag}, with which tokens reach the experts in another order than their adapters" for flag, found in (
        ("--enable-dp-attention", by_data), ("--attn-cp-size above 1", parallel.attn_cp_size > 1), ("--enable-two-batch-overlap", is_tbo_enabled()))
            if found]


# ---- The adapter of each token ----


class TokenAdapters:
    """The adapter of each token of a step, i32; -1: none. The memory stays in place, because captured graphs hold its address."""

    def __init__(self, device: torch.device) -> None:
        self.numbers = torch.full((STEP_TOKENS_MAX,), -1, dtype=torch.int32, device=device)
        self._used = 0

    def set(self, numbers: torch.Tensor) -> None:
        count = numbers.shape[0]
        if count > STEP_TOKENS_MAX:
            raise InvalidArgument(f"LoRA on experts: wanted at most {STEP_TOKENS_MAX} tokens in a step, found {count}")
        self.numbers[:count].copy_(numbers)
        self.numbers[count : max(count, self._used)].fill_(-1)
        self._used = count


@functools.cache
def token_adapters(device: torch.device) -> TokenAdapters:
    """Returns the numbers that all layers of a device share."""
    return TokenAdapters(device)


def after_prepare(result: Any, self: Any, forward_batch: Any) -> None:
    """Runs after LoRAManager.prepare_lora_batch, which SGLang calls before each step and before each capture."""
    from sglang.srt.lora.utils import generate_sequence_lengths

    wrapped = getattr(self, "sluice_experts", None)
    if not wrapped:
        return
    slots = self.memory_pool.uid_to_buffer_id
    numbers = torch.tensor([-1 if uid is None else slots.get(uid, -1) for uid in forward_batch.lora_ids], dtype=torch.int32, device="cpu")
    lengths = generate_sequence_lengths(forward_batch, device="cpu")
    wrapped[0].method.adapters.set(numbers.repeat_interleave(lengths.long()))


# ---- The adapters ----


class ExpertsWithLoRA(FusedMoEWithLoRA):
    """SGLang's wrapper of experts that Sluice runs. SGLang knows its wrappers by isinstance()."""

    def __init__(self, base_layer: torch.nn.Module, lora_backend: Any) -> None:
        BaseLayerWithLoRA.__init__(self, base_layer, lora_backend)  # SGLang's constructor of experts makes its runner
        self.method = base_layer.quant_method
        self.sizes = sizes_of(base_layer)
        self.tp_size, self.tp_rank = 1, 0  # the MoeLayer takes this rank's slice from the whole adapter
        # SGLang reads their device and sizes when it allocates buffers for captured graphs.
        self._quant_info = types.SimpleNamespace(**{f"{stack}_weight": getattr(base_layer, f"{stack}_{self.method.format.weight}") for stack in ("w13", "w2")})
        self._given: dict[tuple[str, str], Matrices] = {}
        self._used: set[int] = set()  # slots with an adapter that is not zero

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, hidden_states: torch.Tensor, topk_output: Any, **kwargs: Any) -> torch.Tensor:
        return self.base_layer.forward(hidden_states, topk_output, **kwargs)

    def set_lora_info(self, *buffers: Any, **named: Any) -> None:
        self.set_lora = True

    # The pool calls these two for the matrices that an adapter has. Without a result it copies nothing to its buffers.
    def slice_moe_lora_a_weights(self, A: Matrices, tp_rank: int, target_module: str) -> None:
        self._given[target_module, "A"] = A

    def slice_moe_lora_b_weights(self, B: Matrices, tp_rank: int, target_module: str) -> None:
        self._given[target_module, "B"] = B

    def forget(self) -> None:
        """Drops matrices of a load that failed."""
        self._given = {}

    def put(self, slot: int, scale: Optional[float], shared_outer: bool) -> None:
        """Puts the matrices that the pool has given into a slot. scale: the adapter's; None: the slot holds no adapter. shared_outer: the matrices on
        the outer sides, A of gate and up and B of down, are those of all experts, even if they have the number of one."""
        given, self._given = self._given, {}
        for outer in ((BUFFERS[0], "A"), (BUFFERS[1], "B")):
            if shared_outer and isinstance(given.get(outer), Mapping) and len(given[outer]) == 1:
                given[outer] = torch.stack(list(given[outer].values()))
        if scale is None or not given:
            if slot in self._used:
                self._replace(slot, no_adapter(self.sizes))
                self._used.discard(slot)
            return
        self._replace(slot, tensors_of(self.sizes, given, scale))
        self._used.add(slot)

    def _replace(self, slot: int, tensors: dict[str, torch.Tensor]) -> None:
        layer = self.method.layer
        if layer.device.type == "cuda":
            torch.cuda.synchronize(layer.device)  # the previous step may still run
        layer.replace_adapter(slot, tensors)


def around_slot(original: Callable, self: Any, uid: Optional[str], buffer_id: int, lora_adapter: Any, lora_modules: Any, *args: Any,
                **kwargs: Any) -> None:
    """Wraps LoRAMemoryPool.load_lora_weight_to_buffer, which puts an adapter into a slot."""
    wrapped = [module for layer in lora_modules for module in layer.values() if isinstance(module, ExpertsWithLoRA)]
    for module in wrapped:
        module.forget()
    original(self, uid, buffer_id, lora_adapter, lora_modules, *args, **kwargs)
    for module in wrapped:
        module.put(buffer_id, None if uid is None else float(lora_adapter.scaling), self.experts_shared_outer_loras)


def around_shape(original: Callable, self: Any, module_name: str, base_model: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[int, ...]:
    """Wraps LoRAMemoryPool.get_lora_A_shape and get_lora_B_shape. Buffers that no layer reads have one expert."""
    shape = original(self, module_name, base_model, *args, **kwargs)
    if module_name not in BUFFERS or not any(isinstance(module, ExpertsWithLoRA) for module in base_model.modules()):
        return shape
    return (shape[0], 1, *shape[2:])


# ---- Tensors ----


def sizes_of(layer: torch.nn.Module) -> AdapterSizes:
    """`layer`: a FusedMoE on Sluice with room for adapters."""
    method, inside = layer.quant_method, layer.intermediate_size_per_partition
    width = method.intermediate  # whole blocks, which is also how the loader slices
    shared = layer.num_fused_shared_experts  # the last experts of each rank, which have no adapters
    local, held = layer.num_local_experts - shared, None
    if layer.num_local_experts != layer.num_experts:
        held = (*range(layer.moe_ep_rank * local, (layer.moe_ep_rank + 1) * local), *range(layer.num_experts - shared, layer.num_experts))
    gated = layer.moe_runner_config.is_gated
    return AdapterSizes(experts=layer.num_experts, hidden=method.hidden, intermediate=inside * layer.moe_tp_size, rank=method.room.rank, gated=gated,
                        split=gated, gate_order=method.layer_fields.get("gate_order", "gate_first"), first=layer.moe_tp_rank * width, width=width,
                        held=held)


def tensors_of(sizes: AdapterSizes, given: Mapping[tuple[str, str], Matrices], scale: float) -> dict[str, torch.Tensor]:
    """Returns an adapter as MoeLayer.replace_adapter() takes it. `given`: matrices by buffer and factor. SGLang stacks gate's A on up's, and gate's
    B on up's. Matrices that the adapter lacks add nothing."""
    parts = 2 if sizes.gated else 1
    (up_a, up_b), (down_a, down_b) = (
        _pair(sizes, given, name, rows, width, stacked)
        for name, rows, width, stacked in ((BUFFERS[0], parts * sizes.intermediate, sizes.hidden, parts), (BUFFERS[1], sizes.hidden, sizes.intermediate, 1)))
    a, b = up_a.chunk(parts, 1), up_b.chunk(parts, 1)
    return adapter_tensors(sizes, [a[0], down_a, *a[1:]], [b[0], down_b, *b[1:]], scale=scale)


def _pair(sizes: AdapterSizes, given: Mapping[tuple[str, str], Matrices], name: str, rows: int, width: int,
          stacked: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns A [experts or 1, stacked * rank, width] and B [experts or 1, rows, rank] of a projection."""
    a, b = (given.get((name, factor)) for factor in "AB")
    if a is None or b is None or not len(a) or not len(b):
        return torch.zeros(1, stacked, width, dtype=torch.bfloat16), torch.zeros(1, rows, 1, dtype=torch.bfloat16)
    return _all(sizes, a), _all(sizes, b)


def _all(sizes: AdapterSizes, given: Matrices) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        shared = sizes.experts - given.shape[0] if given.shape[0] > 1 else 0
        return torch.cat((given, given.new_zeros(shared, *given.shape[1:]))) if shared else given
    some = next(iter(given.values()))
    out = some.new_zeros(sizes.experts, *some.shape)
    for expert, matrix in given.items():
        out[expert] = matrix
    return out


def why_not_fitting(sizes: AdapterSizes, name: str, matrix: torch.Tensor, rank: int) -> Optional[str]:
    """Returns why an adapter's matrix of experts is rejected when it is loaded, or None. `name`: SGLang's, after it has stacked gate and up. `rank`: of
    the adapter's config, by which its scale is computed."""
    words = name.split(".")
    number = next((word for before, word in zip(words, words[1:]) if before == "experts" and word.isdigit()), None)
    if (number is None) != (matrix.dim() == 3) or not {UP, DOWN} & set(words) or not {"lora_A", "lora_B"} & set(words):
        return "wanted gate_up_proj or gate_proj, up_proj and down_proj, by expert or with a dimension of experts"
    if number is not None and int(number) >= sizes.experts:
        return f"wanted an expert below {sizes.experts}"
    parts = 2 if sizes.gated else 1
    inner, outer = (sizes.hidden, parts * sizes.intermediate) if UP in words else (sizes.intermediate, sizes.hidden)
    is_a = "lora_A" in words
    wanted = inner if is_a else outer
    found = matrix.shape[-1 if is_a else -2]
    if found != wanted or (matrix.dim() == 3 and matrix.shape[0] > sizes.experts):
        first = f"{sizes.experts} x " if matrix.dim() == 3 else ""
        return f"wanted {first}{f'rank x {wanted}' if is_a else f'{wanted} x rank'}, found {' x '.join(map(str, matrix.shape))}"
    stacked = parts if is_a and UP in words else 1
    if matrix.shape[-2 if is_a else -1] != stacked * rank:
        return f"wanted the rank {rank} of the adapter's config, found {matrix.shape[-2 if is_a else -1] / stacked:g}"
    if not torch.isfinite(matrix.to(torch.bfloat16)).all():
        return "wanted numbers that are finite in bf16, found others"
    return None
