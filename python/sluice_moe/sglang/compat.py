"""What Sluice holds on to in SGLang, version by version. Nothing of SGLang is imported here.

A hook's target is a path, with the names of the parameters and of the attributes that its hook reads: checked before a hook is
installed, and in tests against the wheels.
"""
from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from typing import Optional

BACKEND = "sluice"
SWITCH = "SLUICE_SGLANG"  # of versions whose backends are a closed enum

FUSED_MOE = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE"
LORA_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
# The names of FusedMoE.__init__ that say which layer is wanted.
_FUSED_MOE = ("num_experts", "hidden_size", "intermediate_size", "layer_id", "top_k", "quant_config", "prefix", "activation",
              "apply_router_weight_on_input", "no_combine", "routed_scaling_factor", "gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit",
              "with_bias", "is_gated", "gate_up_interleaved")


@dataclasses.dataclass(frozen=True)
class Target:
    path: str
    parameters: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Seams:
    """A version of SGLang as this package holds on to it."""

    names: bool  # backends may be registered by name; else one of its own is named, and SLUICE_SGLANG says that it is ours
    choices: str  # module with the flag's choices
    method_argument: bool  # FusedMoE takes a quant_method

    @property
    def backend(self) -> str:
        """What get_moe_runner_backend().value is where Sluice is asked for."""
        return BACKEND if self.names else "triton"

    @property
    def asked_by(self) -> str:
        """What a user says to get Sluice."""
        return f"--moe-runner-backend {BACKEND}" if self.names else f"{SWITCH}=1"

    @property
    def publish(self) -> Target:
        """The first call in each process that knows what was asked for."""
        return Target("sglang.srt.runtime_context.publish", ("server_args", "role"))

    @property
    def targets(self) -> tuple[Target, ...]:
        """Where the hooks of the layers go."""
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

# Versions whose layers ran with Sluice, and no others: SGLang moves its MoE layers often. In tests 0.5.17 and 0.5.23, by hand the rest;
# an engine ran with 0.5.17.
VERSIONS = {"0.5.17": _CLOSED, "0.5.18": _CLOSED, "0.5.19": _NAMED_FIRST, "0.5.20": _NAMED, "0.5.21": _NAMED, "0.5.22": _NAMED,
            "0.5.23": _NAMED}


def found_version() -> str:
    """SGLang's version without importing it."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "of no version (its package says none)"


def seams(version: str) -> Optional[Seams]:
    return VERSIONS.get(version.partition("+")[0])


def wanted_versions() -> str:
    return ", ".join(VERSIONS)


def switched_on() -> bool:
    """SLUICE_SGLANG=1; any word but 0 and 1 is an error."""
    word = os.environ.get(SWITCH, "0")
    if word not in ("0", "1"):
        raise SystemExit(f"sluice: {SWITCH}: wanted 0 or 1, found {word!r}")
    return word == "1"
