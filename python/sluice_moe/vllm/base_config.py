"""The base class of the configs, and the kinds of checkpoints that `--quantization sluice` reads."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from sluice_moe.errors import UnsupportedModel

from . import compat
from .compat import NAME

if TYPE_CHECKING:
    import torch

READABLE = "quant_method mxfp4 (gpt-oss), fp8 with expert_dtype fp4 (DeepSeek V4), or no quantization_config (bf16)"


def kind_of(config: Any, hf_config: Any = None) -> str:
    """Returns the kind of a checkpoint from its quantization_config, "mxfp4" or "fp4_in_fp8". Raises UnsupportedModel for others."""
    method = config.get("quant_method") if isinstance(config, dict) else None
    model_type = getattr(hf_config, "model_type", None)
    if method in ("mxfp4", "gpt_oss_mxfp4") and model_type in (None, "gpt_oss"):
        return "mxfp4"
    if method in ("fp8", "deepseek_v4_fp8") and model_type in (None, "deepseek_v4", "deepseek_mtp", "deepseek_v4_mtp"):
        if config.get("moe_quant_algo"):
            raise UnsupportedModel(f"--quantization {NAME}: wanted experts in MXFP4, found moe_quant_algo {config['moe_quant_algo']}")
        dtype = getattr(hf_config, "expert_dtype", "fp4")
        if dtype != "fp4":
            raise UnsupportedModel(f"--quantization {NAME}: wanted experts in MXFP4 (expert_dtype fp4), found {dtype}")
        return "fp4_in_fp8"
    raise UnsupportedModel(f"--quantization {NAME}: wanted {READABLE}, found quant_method {method!r} of model_type {model_type!r}")


class SluiceBaseConfig(QuantizationConfig):
    """The base class of all configs. Subclasses add from_config() and get_quant_method()."""

    sluice = True  # read by gates, because other engines in this process may not use Sluice

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
        return 0  # any GPU: the library rejects unsupported ones, with better reasons than a minimum capability

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None) -> str | None:
        """vLLM calls this for every quantized checkpoint. Only `--quantization sluice` selects Sluice."""
        if user_quant != NAME:
            return None
        kind_of(hf_quant_cfg, hf_config)  # raises UnsupportedModel
        return NAME
