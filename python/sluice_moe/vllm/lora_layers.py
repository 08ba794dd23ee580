"""LoRA layers of routed experts that Sluice runs. vLLM's LoRA manager makes one per layer, and gives it adapters and the adapter of each token.

vLLM's own classes compute the products of adapters next to the experts, with Triton. Here the MoeLayer computes them, and these classes only pass
on what the manager gives. The manager knows its classes by isinstance() and by name, so these derive from vLLM's and have the same names.
"""
from __future__ import annotations

import torch
import vllm.lora.layers.fused_moe as fused_moe
from vllm.lora.layers.base import BaseLayerWithLoRA

from sluice_moe.errors import UnsupportedLayer
from sluice_moe.lora_tensors import AdapterSizes, adapter_tensors, no_adapter


class _OnSluice:
    """The code of both classes, before vLLM's among the bases."""

    def __init__(self, base_layer) -> None:
        BaseLayerWithLoRA.__init__(self)  # vLLM's constructor would replace the quantization method
        self.base_layer = base_layer
        self.moe_config = base_layer.moe_config
        self._shared_experts = base_layer._shared_experts
        routed = base_layer.routed_experts
        routed.lora_base_layer_prefix = "base_layer."  # the names of parameters for a reload
        self.method = routed.quant_method
        self.sizes = adapter_sizes(routed, self.method)
        self.used: set[int] = set()  # the adapters that are not zero
        # create_lora_weights() of vLLM makes tensors of this device, of which only shapes and types are read.
        self.device = torch.device("meta")
        # The manager prepares adapters for the ranks of these sizes. This rank takes its part from the whole adapter instead, for any placement of experts.
        self.tp_size, self.tp_rank = 1, 0
        self._w13_slices = 2 if self.sizes.gated and not isinstance(self, fused_moe.FusedMoE3DWithLoRA) else 1
        self.enable_moe_shared_loras = False
        self.n_slices = self.local_num_experts * (self._w13_slices + 1)

    use_ep = property(lambda self: False)
    ep_rank = property(lambda self: 0)
    local_num_experts = property(lambda self: self.sizes.experts)
    global_num_experts = property(lambda self: self.sizes.experts)
    intermediate_size_per_partition = property(lambda self: self.sizes.intermediate)

    def set_mapping(self, punica_wrapper) -> None:
        BaseLayerWithLoRA.set_mapping(self, punica_wrapper)
        self.method.token_adapters.follow(punica_wrapper)

    def set_lora(self, index: int, lora_a, lora_b) -> None:
        if not isinstance(lora_a, list):
            raise UnsupportedLayer(f"LoRA on experts: {self.method.prefix}: wanted an adapter with a matrix per expert and projection, found the "
                                   "matrices of all experts as one: start vLLM with --enable-mixed-moe-lora-format and set "
                                   "is_3d_lora_weight in the request")
        if not any(b.any() for b in lora_b):  # vLLM's warm-up activates such adapters
            self.reset_lora(index)
            return
        alternates = getattr(self, "_base_model", None) == "GptOssForCausalLM"
        tensors = adapter_tensors(self.sizes, lora_a, lora_b, alternates=alternates)
        self.method.sluice_layer.replace_adapter(index, tensors)
        self.used.add(index)

    def reset_lora(self, index: int) -> None:
        if index in self.used:
            self.method.sluice_layer.replace_adapter(index, no_adapter(self.sizes))
            self.used.discard(index)


class FusedMoEWithLoRA(_OnSluice, fused_moe.FusedMoEWithLoRA):
    """Adapters with matrices for gate, up and down."""


class FusedMoE3DWithLoRA(_OnSluice, fused_moe.FusedMoE3DWithLoRA):
    """Adapters of models whose checkpoints have gate and up as one matrix (gpt-oss): one A for both."""


def adapter_sizes(layer: torch.nn.Module, method) -> AdapterSizes:
    """`layer`: vLLM's routed experts; `method`: its quantization method, whose layer is packed."""
    moe, fields = layer.moe_config, method.sluice_layer.fields
    width = int(fields["intermediate"])
    # gpt-oss's loader gives each rank whole blocks; other loaders give equal parts.
    step = width if method.kind == "gpt_oss" else moe.intermediate_size // moe.tp_size
    held = None
    if method.maps_ids:
        slots = layer._expert_map.tolist()
        held = tuple(sorted((expert for expert, slot in enumerate(slots) if slot >= 0), key=slots.__getitem__))
    return AdapterSizes(experts=moe.num_experts, hidden=moe.hidden_dim, intermediate=moe.intermediate_size,
                        rank=method.adapter_fields["expert_lora_rank"], gated=moe.is_act_and_mul,
                        split=bool(method.adapter_fields["expert_lora_split"]), gate_order=fields["gate_order"], first=moe.tp_rank * step,
                        width=width, held=held)


def layer_for(base_layer: torch.nn.Module, packed_modules: list[str]) -> BaseLayerWithLoRA | None:
    """Returns the LoRA layer of a module if Sluice runs its experts with adapters, otherwise None. `packed_modules` has one name if adapters have
    gate and up as one matrix."""
    method = getattr(getattr(base_layer, "routed_experts", None), "quant_method", None)
    if not getattr(method, "adapter_fields", None):
        return None
    return (FusedMoE3DWithLoRA if len(packed_modules) == 1 else FusedMoEWithLoRA)(base_layer)
