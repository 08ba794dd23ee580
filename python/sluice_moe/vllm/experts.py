"""The experts of a layer inside vLLM's modular kernel: what its prepare step gathered goes in, what its finalize step sums up comes
out, and the weights of a token's experts are applied here.
"""
from __future__ import annotations

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP

import sluice_moe

# vLLM's word for the activation -> Sluice's. A clamp makes swiglu swiglu_clamped.
ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "swigluoai": "swiglu_clamped",
               "swigluoai_uninterleave": "swiglu_clamped", "silu_no_mul": "silu", "gelu_no_mul": "gelu", "gelu_tanh_no_mul": "gelu_tanh",
               "relu2_no_mul": "relu2"}


def equal_ranges(expert_map: list[int]) -> tuple[int, int] | None:
    """(rank, size) if a map from global experts to local slots, -1 elsewhere, gives each rank a range of equal length; else None."""
    here = [expert for expert, to in enumerate(expert_map) if to >= 0]
    count = len(here)
    if not count or len(expert_map) % count or here[0] % count or here != list(range(here[0], here[0] + count)):
        return None
    if [expert_map[expert] for expert in here] != list(range(count)):
        return None
    return here[0] // count, len(expert_map) // count


def local_ids(ids: torch.Tensor, expert_map: torch.Tensor) -> torch.Tensor:
    """Global ids [tokens, top_k] as local slots; -1 for experts of other ranks and for slots that were empty before."""
    mapped = expert_map[ids.clamp(min=0).long()]
    return torch.where(ids < 0, -1, mapped)


class SluiceExperts(mk.FusedMoEExpertsModular):
    """One rank's experts. `layer` holds the packed weights; `maps_ids` says that ids are global and it knows none but its own slots."""

    def __init__(self, moe_config, quant_config, layer: sluice_moe.MoeLayer, maps_ids: bool) -> None:
        super().__init__(moe_config=moe_config, quant_config=quant_config)
        self.layer = layer
        self.maps_ids = maps_ids

    @staticmethod
    def activation_format():
        return mk.FusedMoEActivationFormat.Standard

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    # What runs was decided with reasons before this class is made (method.py): vLLM's own questions get the same answer.
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
        return activation.value in ACTIVATIONS

    @staticmethod
    def _supports_parallel_config(moe_parallel_config) -> bool:
        return True

    @staticmethod
    def _supports_batch_invariance() -> bool:
        return True

    def finalize_weight_and_reduce_impl(self):
        return TopKWeightAndReduceNoOP()

    def moe_problem_size(self, a1: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_ids: torch.Tensor):
        """(experts, tokens, rows, hidden, top_k): packed weights [experts, bytes] no longer say rows."""
        return w1.shape[0], a1.shape[0], self.moe_config.intermediate_size_per_partition, a1.shape[-1], topk_ids.shape[1]

    def workspace_shapes(self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation):
        return (0,), (0,), (M, K)  # the operation takes its scratch from torch, inside the graph's pool while one is captured

    def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, a1q_scale,
              a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input) -> None:
        ids = local_ids(topk_ids, expert_map) if self.maps_ids and expert_map is not None else topk_ids
        self.layer(hidden_states, ids=ids, weights=topk_weights.float(), out=output)
