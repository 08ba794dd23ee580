"""The config of `--quantization sluice` if the plug-in cannot run: it raises an error with the reason. If the name were not registered, vLLM would
reject it for most models, but gpt-oss's checkpoints select their own method and would silently run without Sluice.
"""
from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from sluice_moe.errors import IncompatibleEngine

from .compat import NAME


def register(why: str) -> None:
    if NAME not in QUANTIZATION_METHODS:
        register_quantization_config(NAME)(type("SluiceRefusal", (SluiceRefusal,), {"why": why}))


class SluiceRefusal(QuantizationConfig):
    why = ""

    def __init__(self) -> None:
        raise self.error()

    @classmethod
    def error(cls) -> IncompatibleEngine:
        return IncompatibleEngine(f"--quantization {NAME}: {cls.why}")

    @classmethod
    def get_name(cls) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list:
        raise self.error()

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None) -> str | None:
        if user_quant == NAME:
            raise cls.error()
        return None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        raise cls.error()

    def get_quant_method(self, layer: Any, prefix: str):
        raise self.error()
