"""The supported versions of SGLang, and the functions of each version that Sluice hooks. Does not import SGLang.

A target is the path of a function, with the parameters that its hook reads. Targets are checked before a hook is installed, and in tests
against the wheels.
"""
from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Optional

from sluice_moe import environment
from sluice_moe.errors import InvalidArgument

BACKEND = "sluice"
SWITCH = "SLUICE_SGLANG"  # for versions whose list of backends cannot be extended
GATES, AUTO = "SLUICE_SGLANG_GATES", "SLUICE_SGLANG_AUTO"  # gates of every model; experts and gates of every unquantized model

FUSED_MOE = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE"
LORA_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
LORA_POOL = "sglang.srt.lora.mem_pool.LoRAMemoryPool"
# The parameters of FusedMoE.__init__ that describe the layer.
_FUSED_MOE = ("num_experts", "hidden_size", "intermediate_size", "layer_id", "top_k", "quant_config", "prefix", "activation",
              "apply_router_weight_on_input", "no_combine", "routed_scaling_factor", "gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit",
              "with_bias", "is_gated", "gate_up_interleaved")
# The quantizations whose experts Sluice runs.
_CONFIGS = ("mxfp4.Mxfp4Config", "fp8.Fp8Config", "modelopt_quant.ModelOptFp8Config", "modelopt_quant.ModelOptFp4Config",
            "modelopt_quant.ModelOptMixedPrecisionConfig", "modelopt_quant.HybridFp8NvFp4Config",
            "compressed_tensors.compressed_tensors.CompressedTensorsConfig")


@dataclasses.dataclass(frozen=True)
class Target:
    path: str
    parameters: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Seams:
    """The parts of one version of SGLang on which the plug-in depends."""

    names: bool  # a backend may be registered by name, and FusedMoE takes a quant_method; otherwise Sluice replaces triton if SLUICE_SGLANG=1
    choices: str  # the module with the choices of --moe-runner-backend

    @property
    def backend(self) -> str:
        """The value of get_moe_runner_backend() that selects Sluice."""
        return BACKEND if self.names else "triton"

    @property
    def asked_by(self) -> str:
        """The flag or the environment variable that selects Sluice."""
        return f"--moe-runner-backend {BACKEND}" if self.names else f"{SWITCH}=1"

    @property
    def publish(self) -> Target:
        """The function that SGLang calls first in each process after it has parsed its flags."""
        return Target("sglang.srt.runtime_context.publish", ("server_args", "role"))

    @property
    def expert_targets(self) -> tuple[Target, ...]:
        """The targets of the hooks on experts, in the order of hooks._expert_hooks()."""
        return (
            Target(f"{FUSED_MOE}.__init__", _FUSED_MOE + (("quant_method",) if self.names else ())),
            *(Target(f"sglang.srt.layers.quantization.{config}.get_quant_method", ("layer", "prefix")) for config in _CONFIGS),
        )

    @property
    def gate_targets(self) -> tuple[Target, ...]:
        """The targets of the hooks on gates and of LoRA, in the order of hooks._gate_hooks()."""
        return (
            Target("sglang.srt.model_executor.model_runner.ModelRunner.load_model", ("self",)),
            Target(f"{LORA_MANAGER}.init_lora_modules", ("self",)),
            Target(f"{LORA_MANAGER}.set_lora_module", ("module_name", "module")),
            Target(f"{LORA_MANAGER}.load_lora_weights", ("lora_ref",)),
            Target(f"{LORA_MANAGER}.load_lora_weights_from_tensors", ("lora_ref",)),
            Target(f"{LORA_MANAGER}.prepare_lora_batch", ("forward_batch",)),
            Target(f"{LORA_POOL}.load_lora_weight_to_buffer", ("uid", "buffer_id", "lora_adapter", "lora_modules")),
            Target(f"{LORA_POOL}.get_lora_A_shape", ("module_name", "base_model")),
            Target(f"{LORA_POOL}.get_lora_B_shape", ("module_name", "base_model")),
        )


_CLOSED = Seams(names=False, choices="sglang.srt.server_args")
_NAMED = Seams(names=True, choices="sglang.srt.arg_groups.choices")

# SGLang often moves its MoE layers. So only versions whose layers are tested with Sluice are listed: the newest three, and 0.5.17, which was also tested
# as a whole engine.
VERSIONS = {"0.5.17": _CLOSED, "0.5.21": _NAMED, "0.5.22": _NAMED, "0.5.23": _NAMED}


def found_version() -> str:
    """The version of the installed SGLang, without importing it."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "a package without a version"


def seams(version: str) -> Optional[Seams]:
    return VERSIONS.get(version.partition("+")[0])


def wanted_versions() -> str:
    return ", ".join(VERSIONS)


def switched_on(name: str = SWITCH) -> bool:
    """Whether an environment variable is 1. A value other than 0 and 1 ends the process: SGLang only logs an exception of a plug-in."""
    try:
        return environment.switch(name)
    except InvalidArgument as why:
        raise SystemExit(f"sluice: {why}") from None


def asked_by_environment() -> list[str]:
    """The environment variables that request Sluice."""
    return [name for name in (SWITCH, GATES, AUTO) if switched_on(name)]
