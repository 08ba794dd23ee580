"""LoRA in SGLang: adapters on experts that Sluice runs, and on every module that SGLang runs. Gates that Sluice runs take none.

SGLang wraps a module that an adapter targets and calls the module's parts itself. Experts get a wrapper of expert_lora.py if their layer was made
with room for adapters; a wrapped gate would run without Sluice, with logits in bf16. SGLang silently ignores adapter weights for a module without a
wrapper. Sluice therefore checks the wrapping at the start of the server, and the weights of every adapter.
"""
from __future__ import annotations

import re
from typing import Any, Callable

import torch
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.utils import replace_submodule

from sluice_moe.errors import UnsupportedLayer

from . import expert_lora, experts, gates, state
from .state import logger, refused_layer

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# Names of target modules that SGLang applies to a layer's experts, which are one module, and also to dense layers and shared experts.
_OF_EXPERTS = ("gate_up_proj", "down_proj")


class _Unwrapped(torch.nn.Module):
    """A placeholder for experts that take no adapters; around_init() removes it."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


def around_init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Wraps LoRAManager.init_lora_modules. Leaves experts on Sluice unwrapped if the target modules that select them also select dense layers."""
    self.sluice_experts = []
    original(self, *args, **kwargs)
    if self.sluice_experts:
        adapters, rank = self.sluice_experts[0].method.room
        logger.info("sluice: LoRA on experts: %d layers have %d adapters of rank %d", len(self.sluice_experts), adapters, rank)
    skipped = {name: module for layer in self.lora_modules for name, module in layer.items() if isinstance(module, _Unwrapped)}
    if not skipped:
        return
    for layer in self.lora_modules:
        for name in skipped:
            layer.pop(name, None)
    dense = {name.rsplit(".", 1)[-1] for layer in self.lora_modules for name in layer} & set(_OF_EXPERTS)
    name, module = next(iter(skipped.items()))
    if not dense:
        raise _refused(self, name, "experts", module.why)
    logger.info("sluice: LoRA on %s: dense layers take adapters, experts do not%s; an adapter with weights for experts is refused when it is loaded",
                ", ".join(sorted(dense)), f" ({module.why})" if module.why else "")


def around_set_module(original: Callable, self: Any, module_name: str, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Wraps LoRAManager.set_lora_module, which replaces one module."""
    kind = _kind(module)
    if kind == "experts" and module.quant_method.room:
        wrapper = expert_lora.ExpertsWithLoRA(module, self.lora_backend)
        replace_submodule(self.base_model, module_name, wrapper)
        self.sluice_experts.append(wrapper)
        return wrapper
    if kind == "experts" and module_name.rsplit(".", 1)[-1] not in self.target_modules:
        return _Unwrapped(module.quant_method.why_no_room)
    if kind:
        raise _refused(self, module_name, kind)
    return original(self, module_name, module, *args, **kwargs)


def _refused(manager: Any, module_name: str, kind: str, why: str = "") -> UnsupportedLayer:
    names = {module_name.rsplit(".", 1)[-1], *(_OF_EXPERTS if kind == "experts" else ())}
    targets = ", ".join(sorted(names & set(manager.target_modules)))
    return refused_layer(module_name, f"wanted LoRA target modules without {kind} that Sluice runs, found {targets}{f' ({why})' if why else ''}: "
                                      f"name other modules in --lora-target-modules, or serve without {state.asked_by()}")


def around_load(original: Callable, self: Any, lora_ref: Any, *args: Any, **kwargs: Any) -> None:
    """Wraps LoRAManager.load_lora_weights and load_lora_weights_from_tensors, which run at the start and later."""
    original(self, lora_ref, *args, **kwargs)
    why = _why_not(self.base_model, self.loras[lora_ref.lora_id])
    if not why:
        return
    self.loras.pop(lora_ref.lora_id)
    self.configs.pop(lora_ref.lora_id)
    raise refused_layer(f"LoRA adapter {lora_ref.lora_name}", f"{why}, or serve without {state.asked_by()}")


def _kind(module: torch.nn.Module) -> str | None:
    """Whether a module runs on Sluice: "experts", "gates", or None."""
    if isinstance(module, FusedMoE) and isinstance(module.quant_method, experts.SluiceExperts):
        return "experts"
    return "gates" if gates.runs(module) else None


def _why_not(model: torch.nn.Module, adapter: Any) -> str:
    """Returns the reason why an adapter has weights that Sluice's modules cannot take, or "". A weight belongs to a module of the same layer whose name
    is in the weight's path."""
    modules: dict[int, dict[str, torch.nn.Module]] = {}
    for name, module in model.named_modules():
        layer = _LAYER.search(name)
        if layer and _kind(module):
            modules.setdefault(int(layer[1]), {})[name.removesuffix(".base_layer").rsplit(".", 1)[-1]] = module
    refused = []
    for index, layer in enumerate(adapter.layers):
        for name, matrix in layer.weights.items():
            found = next((modules[index][word] for word in name.split(".") if word in modules.get(index, ())), None)
            if found is None:
                continue
            if _kind(found) == "experts" and found.quant_method.room:
                why = expert_lora.why_not_fitting(expert_lora.sizes_of(found), name, matrix, adapter.config.r)
                if why:
                    return f"{name}: {why}"
                continue
            refused.append(name)
    if not refused:
        return ""
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"wanted no weights for gates, or for experts without room for adapters, that Sluice runs, found {refused[0]}{more}: train it on other modules"
