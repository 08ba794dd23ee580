"""`--quantization sluice`: which checkpoints it reads, and what it gives each layer of them.

    mxfp4 (gpt-oss)               MXFP4 experts, all else as vLLM has it
    fp8 with fp4 experts (V4)     vLLM's own config of the checkpoint, MXFP4 experts
    no quantization_config        bf16 experts
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from . import NAME, compat

if TYPE_CHECKING:
    import torch

READABLE = "mxfp4 (gpt-oss), fp8 with expert_dtype fp4 (DeepSeek V4), and checkpoints without quantization_config (bf16)"


class SluiceConfig(QuantizationConfig):
    """Of a checkpoint without quantization_config; from_config() gives the others."""

    sluice = True  # gates look for it: a layer of another engine in this process is not ours

    def __init__(self) -> None:
        super().__init__()
        compat.require_seams()

    @classmethod
    def get_name(cls) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        import torch

        return [torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0  # a card that does not fit is refused with the library's reasons, which say more

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None) -> str | None:
        """vLLM asks this for every quantised checkpoint. Only who asks for Sluice gets it."""
        if user_quant != NAME:
            return None
        kind_of(hf_quant_cfg, hf_config)  # raises for what cannot be read
        return NAME

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        if kind_of(config) == "mxfp4":
            from .gpt_oss import SluiceGptOssConfig

            return SluiceGptOssConfig()
        from .deepseek_v4 import SluiceDeepseekV4Config

        return SluiceDeepseekV4Config.from_config(config)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        install_gates()
        return quant_method(layer, prefix, "bf16")


def kind_of(config: Any, hf_config: Any = None) -> str:
    """ "mxfp4" or "fp4_in_fp8" of a checkpoint's quantization_config; ValueError says what was wanted and found."""
    method = config.get("quant_method") if isinstance(config, dict) else None
    model_type = getattr(hf_config, "model_type", None)
    if method in ("mxfp4", "gpt_oss_mxfp4") and model_type in (None, "gpt_oss"):
        return "mxfp4"
    if method in ("fp8", "deepseek_v4_fp8") and model_type in (None, "deepseek_v4", "deepseek_mtp", "deepseek_v4_mtp"):
        if config.get("moe_quant_algo"):
            raise ValueError(f"--quantization {NAME}: wanted experts in MXFP4, found moe_quant_algo {config['moe_quant_algo']}")
        dtype = getattr(hf_config, "expert_dtype", "fp4")
        if dtype != "fp4":
            raise ValueError(f"--quantization {NAME}: wanted experts in MXFP4 (expert_dtype fp4), found {dtype}")
        return "fp4_in_fp8"
    raise ValueError(f"--quantization {NAME}: wanted one of {READABLE}; found quant_method {method!r} of model_type {model_type!r}")


def install_gates() -> None:
    """Called for every layer that asks for its method, which comes before the first gate: a process that got its config by pickle never
    ran the constructor."""
    from .gate import install

    install()


def quant_method(layer: torch.nn.Module, prefix: str, kind: str):
    """Sluice's method for experts, vLLM's unquantised one for linear layers, None for all else."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

    if isinstance(layer, RoutedExperts):
        from .method import expert_method

        return expert_method(layer, prefix, kind)
    return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
