"""The supported versions of SGLang, and the functions of each into which Sluice hooks. Does not import SGLang.

A target is the path of a function, with the parameters that its hook reads. Targets are checked before a hook is installed, and in tests
against the wheels.
"""
from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from typing import Optional

BACKEND = "sluice"
SWITCH = "SLUICE_SGLANG"  # for versions whose list of backends is closed

FUSED_MOE = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE"
LORA_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
# The parameters of FusedMoE.__init__ that describe the layer.
_FUSED_MOE = ("num_experts", "hidden_size", "intermediate_size", "layer_id", "top_k", "quant_config", "prefix", "activation",
              "apply_router_weight_on_input", "no_combine", "routed_scaling_factor", "gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit",
              "with_bias", "is_gated", "gate_up_interleaved")


@dataclasses.dataclass(frozen=True)
class Target:
    path: str
    parameters: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Seams:
    """The parts of one version of SGLang on which the plug-in depends."""

    names: bool  # a backend may be registered by name; otherwise Sluice replaces triton if SLUICE_SGLANG=1
    choices: str  # the module with the choices of --moe-runner-backend
    method_argument: bool  # FusedMoE takes a quant_method

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
    def targets(self) -> tuple[Target, ...]:
        """The targets of the hooks on layers, in the order of hooks._layer_hooks()."""
        return (
            Target(f"{FUSED_MOE}.__init__", _FUSED_MOE + (("quant_method",) if self.method_argument else ())),
            Target("sglang.srt.layers.quantization.mxfp4.Mxfp4Config.get_quant_method", ("layer", "prefix")),
            Target("sglang.srt.layers.quantization.fp8.Fp8Config.get_quant_method", ("layer", "prefix")),
            Target("sglang.srt.models.gpt_oss.TinyGemmLinear.forward", ("x",)),
            Target("sglang.srt.models.deepseek_v2.MoEGate.forward", ("hidden_states",)),
            Target(f"{LORA_MANAGER}.set_lora_module", ("module_name", "module")),
            Target(f"{LORA_MANAGER}.load_lora_weights", ("lora_ref",)),
            Target(f"{LORA_MANAGER}.load_lora_weights_from_tensors", ("lora_ref",)),
        )


_CLOSED = Seams(names=False, choices="sglang.srt.server_args", method_argument=False)
_NAMED_FIRST = Seams(names=True, choices="sglang.srt.server_args", method_argument=True)
_NAMED = Seams(names=True, choices="sglang.srt.arg_groups.choices", method_argument=True)

# SGLang often moves its MoE layers, so these are only versions whose layers ran with Sluice: 0.5.17 and 0.5.23 in the tests, the others by hand.
# A whole engine ran with 0.5.17.
VERSIONS = {"0.5.17": _CLOSED, "0.5.18": _CLOSED, "0.5.19": _NAMED_FIRST, "0.5.20": _NAMED, "0.5.21": _NAMED, "0.5.22": _NAMED,
            "0.5.23": _NAMED}


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


def switched_on() -> bool:
    """Whether SLUICE_SGLANG is 1. A value other than 0 and 1 ends the process: SGLang only logs an exception of a plug-in."""
    word = os.environ.get(SWITCH, "0")
    if word not in ("0", "1"):
        raise SystemExit(f"sluice: {SWITCH}: wanted 0 or 1, found {word!r}")
    return word == "1"
