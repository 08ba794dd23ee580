"""The base class of the configs, and the kinds of checkpoints that `--quantization sluice` reads."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from sluice_moe.errors import UnsupportedModel

from . import compat
from .compat import NAME

if TYPE_CHECKING:
    import torch

READABLE = ("quant_method mxfp4 (gpt-oss), fp8 (FP8 experts; MXFP4 experts of DeepSeek V4), compressed-tensors (FP8, NVFP4, MXFP4 or MXFP8 "
            "experts), modelopt (NVFP4, MXFP8 or FP8 experts), mxfp8, quark (MXFP4 experts), or no quantization_config (bf16)")
BLOCK = [128, 128]  # weights per scale of FP8 in blocks
# quant_algo of experts in ModelOpt checkpoints -> the method, one of choose.METHODS.
MODELOPT = {"NVFP4": "modelopt_nvfp4", "W4A16_NVFP4": "modelopt_nvfp4", "MXFP8": "modelopt_mxfp8", "FP8": "modelopt_fp8"}
MIXED = "MIXED_PRECISION"  # a quant_algo by layer


def kind_of(config: Any, hf_config: Any = None) -> str:
    """Returns the kind of a checkpoint from its quantization_config, one of config.CONFIGS. Raises UnsupportedModel for others."""
    method = config.get("quant_method") if isinstance(config, dict) else None
    model_type = getattr(hf_config, "model_type", None)
    if method in ("mxfp4", "gpt_oss_mxfp4") and model_type in (None, "gpt_oss"):
        return "mxfp4"
    if method == "compressed-tensors":
        return "compressed"
    if method == "quark" and model_type not in ("gpt_oss", "deepseek_v4", "deepseek_v41"):  # their loaders take Quark's tensors apart
        return "quark"
    if method == "mxfp8":
        return "modelopt_mxfp8"
    if str(method).startswith("modelopt"):
        return modelopt_kind(config)
    if method not in ("fp8", "deepseek_v4_fp8") or model_type == "deepseek_v41":
        raise UnsupportedModel(f"--quantization {NAME}: wanted {READABLE}, found quant_method {method!r} of model_type {model_type!r}")
    why = why_not_fp8(config, getattr(hf_config, "expert_dtype", None))
    if why:
        raise UnsupportedModel(f"--quantization {NAME}: {'; '.join(why)}")
    return "deepseek_v4" if is_deepseek_v4(method, hf_config) else "fp8"


def modelopt_kind(config: dict[str, Any]) -> str:
    """Like kind_of(), for ModelOpt's quantization_config, or hf_quant_config.json with it under "quantization"."""
    given = config.get("quantization", config)
    algo = str(given.get("quant_algo", "")).upper()
    layers = given.get("quantized_layers") or {}
    nvfp4 = [item for item in (given | {"quant_algo": algo}, *layers.values()) if item.get("quant_algo", "").upper() in ("NVFP4", "W4A16_NVFP4")]
    why = [f"wanted a group_size of 16 for NVFP4, found {size}" for size in sorted({int(item.get("group_size") or 16) for item in nvfp4} - {16})]
    if algo != MIXED and algo not in MODELOPT:
        why.append(f"wanted a quant_algo of {', '.join(MODELOPT)} or {MIXED}, found {given.get('quant_algo')}")
    if algo == MIXED and not layers:
        why.append("wanted quantized_layers in the quantization_config of config.json, found none")
    if why:
        raise UnsupportedModel(f"--quantization {NAME}: {'; '.join(why)}")
    return "modelopt_mixed" if algo == MIXED else MODELOPT[algo]


def why_not_fp8(config: dict[str, Any], expert_dtype: str | None) -> list[str]:
    """Returns every reason why the experts of a checkpoint with quant_method fp8 are not supported."""
    why = []
    if config.get("moe_quant_algo"):
        why.append(f"wanted experts in FP8 or MXFP4, found moe_quant_algo {config['moe_quant_algo']}")
    if expert_dtype not in (None, "fp4", "fp8"):
        why.append(f"wanted expert_dtype fp4 (MXFP4) or fp8, found {expert_dtype}")
    if config.get("fmt") not in (None, "e4m3"):
        why.append(f"wanted fmt e4m3, found {config['fmt']}")
    if config.get("store_dtype"):
        why.append(f"wanted experts in FP8, found store_dtype {config['store_dtype']}")
    block = config.get("weight_block_size")
    if block is not None and list(block) != BLOCK:
        why.append(f"wanted weight_block_size {BLOCK}, or none (a scale per tensor), found {list(block)}")
    return why


def is_deepseek_v4(method: str, hf_config: Any) -> bool:
    """Whether a checkpoint with quant_method fp8 is DeepSeek V4, or its draft, which has the model_type of DeepSeek V3's drafts."""
    names = getattr(hf_config, "architectures", None) or ()
    return (method == "deepseek_v4_fp8" or getattr(hf_config, "model_type", None) in ("deepseek_v4", "deepseek_v4_mtp")
            or any(name.lower().startswith("deepseekv4") for name in names))


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
        # from_config() sees only the quantization_config. vLLM writes the same name, for the architecture of the target alone.
        given = getattr(hf_config, "quantization_config", None)
        if kind_of(hf_quant_cfg, hf_config) == "deepseek_v4" and isinstance(given, dict):
            given["quant_method"] = "deepseek_v4_fp8"
        return NAME
