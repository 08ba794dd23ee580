"""LoRA in vLLM: adapters work on every module except routed experts that Sluice runs.

vLLM asks get_supported_lora_modules() which modules of a model take adapters. If the answer lacks the experts' name, vLLM leaves the
experts unwrapped, and rejects an adapter with weights for them when it is loaded.
"""
from __future__ import annotations

import torch
import vllm.lora.model_manager as model_manager
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from .report import log_once


def why_not(prefix: str) -> str | None:
    """Returns why the LoRA flags are not supported, or None. Only a target module that names the routed experts is refused: in vLLM they are one
    module, "experts" in nearly all models; gate_up_proj, down_proj and the like are dense layers and shared experts."""
    lora = get_current_vllm_config().lora_config
    if lora is None:
        return None
    names = {"experts", prefix.rsplit(".", 1)[-1]}
    of_experts = [target for target in lora.target_modules or () if names & set(target.split("."))]
    if of_experts:
        return f"wanted --lora-target-modules without experts, which have no LoRA, found {', '.join(of_experts)}"
    return None


def accept() -> None:
    """Takes routed experts out of vLLM's LoRA, and logs it. Called once Sluice runs the experts of a layer."""
    lora = get_current_vllm_config().lora_config
    if lora is None:
        return
    original = model_manager.get_supported_lora_modules
    if not getattr(original, "sluice", False):
        def supported(model: torch.nn.Module) -> list[str]:
            experts = names_of_experts(model)
            return [name for name in original(model) if name not in experts]

        supported.sluice = True
        model_manager.get_supported_lora_modules = supported
    where = ", ".join(lora.target_modules) if lora.target_modules else "every module"
    log_once(f"LoRA on {where} except routed experts: an adapter with weights for routed experts is refused when it is loaded", warning=True)


def names_of_experts(model: torch.nn.Module) -> set[str]:
    """The last names of the modules that hold routed experts on Sluice, and of the modules around them."""
    out: set[str] = set()
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, FusedMoEMethodBase) and getattr(method, "sluice", False):
            out |= set(name.split(".")[-2:])
    return out
