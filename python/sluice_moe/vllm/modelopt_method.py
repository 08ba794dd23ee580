"""vLLM quantization methods for experts of ModelOpt checkpoints: NVFP4, MXFP8, and FP8 with a scale per matrix. Activations stay in bf16, and gate
and up keep their own scales. vLLM's loader recognizes the scales by the word "ModelOpt" in the name of the class."""
from __future__ import annotations

import torch
from vllm.model_executor.layers.quantization.modelopt import ModelOptFp8MoEMethod, ModelOptMxFp8FusedMoE, ModelOptNvFp4FusedMoE

from .base_config import MODELOPT
from .method import SluiceMethod


class SluiceModelOptMethod(SluiceMethod):
    """The shared code. Subclasses have the attributes that vLLM's create_weights() reads; vLLM's constructors would select a backend."""

    choice = ""  # of choose.METHODS

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        super().__init__(layer, prefix)
        algos = layer.quant_config.algos_of_experts(prefix)
        self.quant_config = layer.quant_config.config_of_experts(self.choice)
        if len({MODELOPT.get(algo) for algo in algos}) != 1 or algos[0] not in MODELOPT:
            self.reasons.append(f"wanted experts of one quant_algo of {', '.join(MODELOPT)}, found {', '.join(algos)}")
        if layer.moe_config.has_bias:
            self.reasons.append("wanted experts without biases, because vLLM's ModelOpt experts have none, found biases")


class SluiceModelOptNvFp4Method(SluiceModelOptMethod):
    kind, choice = "nvfp4", "modelopt_nvfp4"
    use_global_sf = False  # no scales of activations of all ranks
    create_weights = ModelOptNvFp4FusedMoE.create_weights

    def uses_weight_scale_2_pattern(self) -> bool:
        return True  # weight_scale_2 is the scale of a matrix, weight_scale those of its blocks


class SluiceModelOptMxFp8Method(SluiceModelOptMethod):
    kind, choice = "mxfp8", "modelopt_mxfp8"
    create_weights = ModelOptMxFp8FusedMoE.create_weights


class SluiceModelOptFp8Method(SluiceModelOptMethod):
    kind, choice = "fp8_rows", "modelopt_fp8"

    def create_weights(self, layer: torch.nn.Module, *args, **kwargs) -> None:
        ModelOptFp8MoEMethod.create_weights(self, layer, *args, **kwargs)
        # A place for each of gate and up. With one for both, vLLM counts more loaded values than there are, and a reload ends before its last scales.
        layer.w13_input_scale.data = torch.ones_like(layer.w13_weight_scale.data)
