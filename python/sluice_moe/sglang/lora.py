"""LoRA beside Sluice: adapters on experts and gates that Sluice runs are refused, all others are SGLang's.

SGLang puts a wrapper around a module that an adapter targets and calls the module's parts by itself: experts need kernels that Sluice
does not have, and a gate would run without Sluice, with scores in bf16. Weights of an adapter for a module without a wrapper are left
out in silence. So both are looked at: what gets a wrapper, when the server starts, and what an adapter brings, whenever one is loaded.
"""
from __future__ import annotations

import re
from typing import Any, Callable

import torch
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

from . import experts, gates, state

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# By these target modules SGLang means a layer's experts, which are one module.
_OF_EXPERTS = ("gate_up_proj", "down_proj")


def around_set_module(original: Callable, self: Any, module_name: str, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """LoRAManager.set_lora_module: the wrapper around one module."""
    kind = _kind(module)
    if kind:
        names = {module_name.rsplit(".", 1)[-1], *(_OF_EXPERTS if kind == "experts" else ())}
        targets = ", ".join(sorted(names & set(self.target_modules)))
        raise experts.refused(module_name, f"wanted LoRA target modules without {kind} that Sluice runs, found {targets}: name other modules "
                                           f"in --lora-target-modules, or serve without {state.asked_by()}")
    return original(self, module_name, module, *args, **kwargs)


def around_load(original: Callable, self: Any, lora_ref: Any, *args: Any, **kwargs: Any) -> None:
    """LoRAManager.load_lora_weights and load_lora_weights_from_tensors: at the start and while the server runs."""
    original(self, lora_ref, *args, **kwargs)
    found = _weights_for_ours(self.base_model, self.loras[lora_ref.lora_id])
    if not found:
        return
    self.loras.pop(lora_ref.lora_id)
    self.configs.pop(lora_ref.lora_id)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    raise experts.refused(f"LoRA adapter {lora_ref.lora_name}", f"wanted no weights for experts or gates that Sluice runs, found {found[0]}{more}: "
                          f"train it on other modules, or serve without {state.asked_by()}")


def _kind(module: torch.nn.Module) -> str | None:
    """What of Sluice's a module is: "experts", "gates", or nothing."""
    if isinstance(module, FusedMoE) and isinstance(module.quant_method, experts.SluiceExperts):
        return "experts"
    return "gates" if gates.runs(module) else None


def _weights_for_ours(model: torch.nn.Module, adapter: Any) -> list[str]:
    """Names of an adapter's weights that belong to modules of Sluice's: of the same layer, with the module's own name in their path."""
    ours: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        layer = _LAYER.search(name)
        if layer and _kind(module):
            ours.setdefault(int(layer[1]), set()).add(name.rsplit(".", 1)[-1])
    return [name for index, layer in enumerate(adapter.layers) for name in layer.weights if ours.get(index, set()) & set(name.split("."))]
