"""LoRA: Sluice rejects adapters for experts and gates that it runs. SGLang runs all others.

SGLang wraps a module that an adapter targets and calls the module's parts itself. Wrapped experts need kernels that Sluice does not have,
and a wrapped gate would run without Sluice, with logits in bf16. SGLang silently ignores adapter weights for a module without a wrapper.
Sluice therefore checks the wrapping at the start of the server, and the weights of every adapter.
"""
from __future__ import annotations

import re
from typing import Any, Callable

import torch
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

from sluice_moe.errors import UnsupportedLayer

from . import experts, gates, state
from .state import logger, refused_layer

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# Names of target modules that SGLang applies to a layer's experts, which are one module, and also to dense layers and shared experts.
_OF_EXPERTS = ("gate_up_proj", "down_proj")


class _Unwrapped(torch.nn.Module):
    """A placeholder for experts that take no adapters; around_init() removes it."""


def around_init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Wraps LoRAManager.init_lora_modules. Leaves experts on Sluice unwrapped if the target modules that select them also select dense layers."""
    original(self, *args, **kwargs)
    skipped = [name for layer in self.lora_modules for name, module in layer.items() if isinstance(module, _Unwrapped)]
    if not skipped:
        return
    for layer in self.lora_modules:
        for name in skipped:
            layer.pop(name, None)
    dense = {name.rsplit(".", 1)[-1] for layer in self.lora_modules for name in layer} & set(_OF_EXPERTS)
    if not dense:
        raise _refused(self, skipped[0], "experts")
    logger.info("sluice: LoRA on %s: dense layers take adapters, experts do not; an adapter with weights for experts is refused when it is loaded",
                ", ".join(sorted(dense)))


def around_set_module(original: Callable, self: Any, module_name: str, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Wraps LoRAManager.set_lora_module, which replaces one module."""
    kind = _kind(module)
    if kind == "experts" and module_name.rsplit(".", 1)[-1] not in self.target_modules:
        return _Unwrapped()
    if kind:
        raise _refused(self, module_name, kind)
    return original(self, module_name, module, *args, **kwargs)


def _refused(manager: Any, module_name: str, kind: str) -> UnsupportedLayer:
    names = {module_name.rsplit(".", 1)[-1], *(_OF_EXPERTS if kind == "experts" else ())}
    targets = ", ".join(sorted(names & set(manager.target_modules)))
    return refused_layer(module_name, f"wanted LoRA target modules without {kind} that Sluice runs, found {targets}: name other modules in "
                                      f"--lora-target-modules, or serve without {state.asked_by()}")


def around_load(original: Callable, self: Any, lora_ref: Any, *args: Any, **kwargs: Any) -> None:
    """Wraps LoRAManager.load_lora_weights and load_lora_weights_from_tensors, which run at the start and later."""
    original(self, lora_ref, *args, **kwargs)
    found = _weights_on_sluice(self.base_model, self.loras[lora_ref.lora_id])
    if not found:
        return
    self.loras.pop(lora_ref.lora_id)
    self.configs.pop(lora_ref.lora_id)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    raise refused_layer(f"LoRA adapter {lora_ref.lora_name}", "wanted no weights for experts or gates that Sluice runs, found "
                        f"{found[0]}{more}: train it on other modules, or serve without {state.asked_by()}")


def _kind(module: torch.nn.Module) -> str | None:
    """Whether a module runs on Sluice: "experts", "gates", or None."""
    if isinstance(module, FusedMoE) and isinstance(module.quant_method, experts.SluiceExperts):
        return "experts"
    return "gates" if gates.runs(module) else None


def _weights_on_sluice(model: torch.nn.Module, adapter: Any) -> list[str]:
    """Returns the names of adapter weights for modules on Sluice: weights of the same layer with the module's name in their path."""
    modules: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        layer = _LAYER.search(name)
        if layer and _kind(module):
            modules.setdefault(int(layer[1]), set()).add(name.rsplit(".", 1)[-1])
    return [name for index, layer in enumerate(adapter.layers) for name in layer.weights
            if modules.get(index, set()) & set(name.split("."))]
