"""The config of Quark checkpoints: vLLM's own config, with Sluice computing MXFP4 experts."""
from __future__ import annotations

import torch
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.quark.utils import should_ignore_layer

from .fp8 import ExpertsOnSluice

MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}


class SluiceQuarkConfig(ExpertsOnSluice, get_quantization_config("quark")):
    def kind_of_experts(self, layer: torch.nn.Module, prefix: str) -> str:
        skipped = should_ignore_layer(prefix, ignore=self.quant_config.get("exclude") or [], fused_mapping=self.packed_modules_mapping,
                                      check_children=True)
        return "bf16" if skipped else "quark_mxfp4"

    def why_not_experts(self, layer: torch.nn.Module, prefix: str) -> list[str]:
        """Returns every reason why the weights of these experts are not supported. Sluice does not quantize activations, so their scheme is free."""
        given = self._find_matched_config(prefix, layer).get("weight")
        given = given[0] if isinstance(given, list) and len(given) == 1 else given
        if not isinstance(given, dict):
            return [f"wanted one scheme of weights in MXFP4, found {len(given or ())}"]
        return [f"wanted weights in MXFP4 with {name} {value}, found {given.get(name)}" for name, value in MXFP4.items() if given.get(name) != value]
