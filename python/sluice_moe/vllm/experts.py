"""The experts of a layer as vLLM's FusedMoEExpertsModular. They run between vLLM's prepare step, which gathers the input, and its finalize step,
which reduces the output. Router weights are applied here.
"""
from __future__ import annotations

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP

import sluice_moe
from sluice_moe import activations


def equal_ranges(expert_map: list[int]) -> tuple[int, int] | None:
    """Returns (rank, size) if this rank holds one of `size` equal ranges of experts, in order; otherwise None. The map gives the local slot of each
    global expert, -1 for experts of other ranks."""
    here = [expert for expert, to in enumerate(expert_map) if to >= 0]
    count = len(here)
    if not count or len(expert_map) % count or here[0] % count or here != list(range(here[0], here[0] + count)):
        return None
    if [expert_map[expert] for expert in here] != list(range(count)):
        return None
    return here[0] // count, len(expert_map) // count


def local_ids(ids: torch.Tensor, expert_map: torch.Tensor) -> torch.Tensor:
    """Returns the local slots of global ids [tokens, top_k], -1 for experts of other ranks and for empty slots."""
    mapped = expert_map[ids.clamp(min=0).long()]
    return torch.where(ids < 0, -1, mapped)


class TokenAdapters:
    """The adapter of each token, i32 [tokens_max]; -1: none. The memory stays in place, because captured graphs hold its address."""

    def __init__(self, tokens_max: int, device: torch.device) -> None:
        self.numbers = torch.full((tokens_max,), -1, dtype=torch.int32, device=device)

    def follow(self, punica_wrapper) -> None:
        """Takes the numbers of a wrapper of vLLM, i64, whenever vLLM changes them, between runs. All layers of a wrapper share one copy."""
        shared = getattr(punica_wrapper, "sluice_token_adapters", None)
        if shared is not None:
            self.numbers = shared
            return
        numbers, original = self.numbers, punica_wrapper.update_metadata
        punica_wrapper.sluice_token_adapters = numbers

        def update_metadata(*args, **kwargs) -> None:
            original(*args, **kwargs)
            given = punica_wrapper.token_lora_indices
            numbers[: given.shape[0]].copy_(given)
            numbers[given.shape[0] :].fill_(-1)  # rows with which vLLM fills a batch

        punica_wrapper.update_metadata = update_metadata


class SluiceExperts(mk.FusedMoEExpertsModular):
    """One rank's experts. `layer` holds the packed weights. maps_ids: the layer takes local slots, so global ids are mapped to them.
    token_adapters: only for a layer with adapters."""

    def __init__(self, moe_config, quant_config, layer: sluice_moe.MoeLayer, maps_ids: bool,
                 token_adapters: TokenAdapters | None = None) -> None:
        super().__init__(moe_config=moe_config, quant_config=quant_config)
        self.layer = layer
        self.maps_ids = maps_ids
        self.token_adapters = token_adapters

    @staticmethod
    def activation_format():
        return mk.FusedMoEActivationFormat.Standard

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    # method.py has already rejected what cannot run, with the reasons, so every query of vLLM returns True.
    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(weight_key, activation_key) -> bool:
        return activation_key is None

    @staticmethod
    def _supports_activation(activation) -> bool:
        return activation.value in activations.VLLM

    @staticmethod
    def _supports_parallel_config(moe_parallel_config) -> bool:
        return True

    @staticmethod
    def _supports_batch_invariance() -> bool:
        return True

    def finalize_weight_and_reduce_impl(self):
        return TopKWeightAndReduceNoOP()

    def moe_problem_size(self, a1: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_ids: torch.Tensor):
        """Returns (experts, tokens, rows, hidden, top_k). Overridden because the shape of packed weights, [experts, bytes], does not show the rows."""
        return w1.shape[0], a1.shape[0], self.moe_config.intermediate_size_per_partition, a1.shape[-1], topk_ids.shape[1]

    def workspace_shapes(self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation):
        return (0,), (0,), (M, K)  # no workspace from vLLM: the operation allocates it with torch, during a capture from the graph's pool

    def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, a1q_scale,
              a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input) -> None:
        ids = local_ids(topk_ids, expert_map) if self.maps_ids and expert_map is not None else topk_ids
        adapter = self.token_adapters.numbers[: hidden_states.shape[0]] if self.token_adapters is not None else None
        self.layer(hidden_states, ids=ids, weights=topk_weights.float(), adapter=adapter, out=output)
