"""The configs of ModelOpt checkpoints (NVFP4, MXFP8, FP8, or a mixture by layer): vLLM's own configs, with Sluice computing the experts."""
from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization import get_quantization_config

from .base_config import MODELOPT
from .fp8 import ExpertsOnSluice


class ModelOptExperts(ExpertsOnSluice):
    """The code that such configs share. vLLM's bases define is_layer_excluded()."""

    algo = ""  # of every layer

    def kind_of_experts(self, layer: torch.nn.Module, prefix: str) -> str:
        algos = [] if self.is_layer_excluded(prefix) else self.algos_of_experts(prefix)
        return next((MODELOPT[name] for name in algos if name in MODELOPT), "modelopt_fp8") if algos else "bf16"

    def algos_of_experts(self, prefix: str) -> list[str]:
        """Returns the different algorithms of a layer's experts; none: they are unquantized."""
        return [self.algo]

    def config_of_experts(self, kind: str) -> Any:
        """Returns the config of vLLM that describes experts of a kind."""
        return self


class SluiceModelOptFp8Config(ModelOptExperts, get_quantization_config("modelopt")):
    algo = "FP8"


class SluiceNvFp4Config(ModelOptExperts, get_quantization_config("modelopt_fp4")):
    algo = "NVFP4"


class SluiceMxFp8Config(ModelOptExperts, get_quantization_config("modelopt_mxfp8")):
    algo = "MXFP8"


class SluiceMixedConfig(ModelOptExperts, get_quantization_config("modelopt_mixed")):
    def algos_of_experts(self, prefix: str) -> list[str]:
        inside = tuple(f"{name}." for name in self._quantized_layer_prefix_candidates(prefix))
        algos = {given["quant_algo"].upper() for name, given in self.quantized_layers.items() if name.startswith(inside)}
        return sorted(algos) or [algo for algo in (self._resolve_quant_algo(prefix),) if algo]

    def config_of_experts(self, kind: str) -> Any:
        return {"modelopt_nvfp4": self.nvfp4_config, "modelopt_mxfp8": self.mxfp8_config}.get(kind, self.fp8_config)
