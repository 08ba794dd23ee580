"""LoRA in vLLM: adapters on every module, routed experts included.

A layer of experts gets room for --max-loras adapters if vLLM may put adapters on it. Otherwise vLLM's LoRA leaves the experts out: it asks
get_supported_lora_modules() which modules of a model take adapters, and rejects an adapter with weights for other modules.
"""
from __future__ import annotations

import torch
import vllm.lora.model_manager as model_manager
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.model_loader.utils import get_model_cls

from .report import log_once

WITHOUT_EXPERTS = "or use --lora-target-modules without experts"


def is_wanted(prefix: str) -> bool:
    """Whether vLLM may put adapters on these experts: with --enable-lora alone, or if a target module names them. In vLLM routed experts are one module,
    "experts" in nearly all models; gate_up_proj, down_proj and the like are dense layers and shared experts."""
    config = get_current_vllm_config()
    lora = config.lora_config
    if lora is None or config.model_config.runner_type == "draft":  # vLLM's LoRA leaves draft models alone
        return False
    names = {"experts", prefix.rsplit(".", 1)[-1]}
    return lora.target_modules is None or any(names & set(target.split(".")) for target in lora.target_modules)


def adapter_fields(layer: torch.nn.Module, prefix: str) -> dict[str, object]:
    """Returns the MoeLayer's fields of adapters on experts, none without adapters."""
    if not is_wanted(prefix):
        return {}
    config = get_current_vllm_config()
    lora = config.lora_config
    split = layer.moe_config.is_act_and_mul and not shares_a(config)
    return {"expert_lora_rank": lora.max_lora_rank, "lora_adapters": lora.max_loras, "lora_w": "bf16", "expert_lora_split": int(split)}


def shares_a(config: VllmConfig) -> bool:
    """Whether every adapter has gate and up as one matrix, so that they share an A."""
    lora = config.lora_config
    if getattr(lora, "enable_mixed_moe_lora_format", False) or getattr(lora, "enable_moe_shared_loras", False):
        return False
    return bool(getattr(get_model_cls(config.model_config), "is_3d_moe_weight", False))


def why_not(layer: torch.nn.Module, prefix: str) -> list[str]:
    """Returns every reason why these experts cannot have the adapters that vLLM may put on them."""
    if not is_wanted(prefix):
        return []
    why, lora, parallel = [], get_current_vllm_config().lora_config, layer.moe_config.moe_parallel_config
    if lora.lora_dtype != torch.bfloat16:
        why.append(f"wanted LoRA on experts in bf16, found --lora-dtype {lora.lora_dtype}: use --lora-dtype auto, {WITHOUT_EXPERTS}")
    if parallel.dp_size > 1 or parallel.pcp_size > 1 or parallel.is_sequence_parallel:
        why.append("wanted LoRA on experts without data parallelism, because tokens of other ranks come without their adapters, found "
                   f"dp={parallel.dp_size} pcp={parallel.pcp_size} sp={parallel.sp_size}: use one data-parallel rank, {WITHOUT_EXPERTS}")
    if parallel.enable_eplb:
        why.append(f"wanted LoRA on experts without --enable-eplb, which does not move adapters, found both: omit it, {WITHOUT_EXPERTS}")
    return why


def accept(adapters: dict[str, object]) -> None:
    """Puts Sluice's LoRA layers into vLLM's LoRA, and takes routed experts without adapters out of it, and logs it. Called once Sluice runs the experts of
    a layer, with its adapter_fields()."""
    config = get_current_vllm_config()
    lora = config.lora_config
    if lora is None or config.model_config.runner_type == "draft":
        return
    _leave_experts_out()
    if adapters:
        _add_layers()
    where = ", ".join(lora.target_modules) if lora.target_modules else "every module"
    if adapters:
        log_once(f"LoRA on {where}: routed experts have {lora.max_loras} adapters of rank {lora.max_lora_rank}")
    else:
        log_once(f"LoRA on {where} except routed experts: an adapter with weights for routed experts is refused when it is loaded", warning=True)


def _leave_experts_out() -> None:
    original = model_manager.get_supported_lora_modules
    if getattr(original, "sluice", False):
        return

    def supported(model: torch.nn.Module) -> list[str]:
        experts = names_of_experts(model)
        return [name for name in original(model) if name not in experts]

    supported.sluice = True
    model_manager.get_supported_lora_modules = supported


def _add_layers() -> None:
    original = model_manager.from_layer
    if getattr(original, "sluice", False):
        return
    from .lora_layers import layer_for

    def from_layer(layer, max_loras, lora_config, packed_modules_list, model_config=None):
        made = layer_for(layer, packed_modules_list)
        if made is None:
            return original(layer, max_loras, lora_config, packed_modules_list, model_config)
        made.create_lora_weights(max_loras, lora_config, model_config)
        return made

    from_layer.sluice = True
    model_manager.from_layer = from_layer


def names_of_experts(model: torch.nn.Module) -> set[str]:
    """The last names of the modules that hold routed experts without adapters on Sluice, and of the modules around them."""
    out: set[str] = set()
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, FusedMoEMethodBase) and getattr(method, "sluice", False) and not method.adapter_fields:
            out |= set(name.split(".")[-2:])
    return out
