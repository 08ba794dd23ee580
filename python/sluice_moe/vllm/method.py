"""vLLM quantization methods for experts. They create the parameters that vLLM's loaders fill, then pack them and free the originals, layer by
layer.

KINDS lists the kinds of weights: MXFP4 of gpt-oss (gate and up interleaved, biases) and of DeepSeek V4 ([gate; up], a clamp), bf16, FP8, and other
MXFP4, NVFP4 and MXFP8. Until the weights are loaded, the parameters are vLLM's own. Afterwards the same names hold views, [experts, bytes], of one
packed buffer, so vLLM's memory profile, sleep mode and expert load balancing work on the packed weights.
"""
from __future__ import annotations

import re
from typing import NamedTuple

import torch
import vllm.envs as envs
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.all2all_utils import maybe_make_prepare_finalize
from vllm.model_executor.layers.fused_moe.config import (biased_moe_quant_config, fp8_w8a16_moe_quant_config,
                                                              mxfp4_w4a16_moe_quant_config)
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod, Mxfp4MoEMethod
from vllm.model_executor.utils import replace_parameter

import sluice_moe
from sluice_moe import activations, environment
from sluice_moe.errors import UnsupportedLayer
from sluice_moe.packed import packed_views

from . import dummy, lora
from .compat import NAME
from .experts import SluiceExperts, TokenAdapters, equal_ranges
from .report import log_once


class Kind(NamedTuple):
    """The weights of experts."""

    fields: dict[str, str]  # of the MoeLayer
    block: int = 1  # a rank's slice of the intermediate size is a multiple of this
    rounds_up: bool = False  # to whole blocks, as vLLM's loader does; otherwise other slices are rejected
    row_scales: bool = False  # the scales belong to rows or to matrices
    alternates: bool = True  # rows of gate and up may alternate


MXFP4 = Kind({"expert_w": "e2m1"}, block=32, rounds_up=True)
KINDS = {"gpt_oss": MXFP4, "mxfp4": MXFP4, "bf16": Kind({"expert_w": "bf16"}),
         "fp8_blocks": Kind({"expert_w": "e4m3", "expert_scales": "blocks"}, block=128, alternates=False),
         "fp8_rows": Kind({"expert_w": "e4m3", "expert_scales": "rows"}, row_scales=True, alternates=False),
         "mxfp4_groups": Kind({"expert_w": "e2m1"}, block=32),
         "nvfp4": Kind({"expert_w": "e2m1", "expert_scales": "nv"}, block=32, alternates=False),  # kernels take the codes of two blocks of 16
         "mxfp8": Kind({"expert_w": "e4m3", "expert_scales": "mx"}, block=32)}


def whole_blocks(width: int, kind: str) -> int:
    """Returns the intermediate size of a rank, rounded up to whole blocks if vLLM's loader does so."""
    block = KINDS[kind].block
    return -(-width // block) * block if KINDS[kind].rounds_up else width


def one_per_row(scales: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns vLLM's scales as [experts, rows], or [experts]: one per row [experts, rows, 1], per matrix of gate and up [experts, 2], or per expert."""
    if scales.dim() == 3:
        return scales.squeeze(-1)
    return scales if scales.dim() == 1 else scales.repeat_interleave(rows // scales.shape[1], dim=1)


def layer_fields(layer: torch.nn.Module, kind: str) -> dict[str, object]:
    """Returns the arguments of the MoeLayer for this rank's part of vLLM's layer. vLLM's loaders slice for tensor parallelism. With expert
    parallelism the MoeLayer takes global ids if ranks hold equal ranges of experts; otherwise SluiceExperts first maps ids to local slots."""
    moe = layer.moe_config
    fields = {"hidden": moe.hidden_dim, "intermediate": whole_blocks(moe.intermediate_size_per_partition, kind), "experts": moe.num_experts,
              "top_k": moe.experts_per_token, "input": "precomputed", "up_bias": moe.has_bias, "down_bias": moe.has_bias, "weight_on_input": layer.apply_router_weight_on_input}
    fields |= KINDS[kind].fields | activations.of_vllm(layer)
    if layer._expert_map is not None:  # layer.expert_map would use the quantization method, which is being constructed
        slices = equal_ranges(layer._expert_map.tolist())
        fields |= {"ep": slices} if slices else {"experts": layer.local_num_experts}
    return fields


def why_not(layer: torch.nn.Module, prefix: str, kind: str, tokens_max: int, device: torch.device) -> list[str]:
    """Returns every reason why Sluice cannot run these experts."""
    moe = layer.moe_config
    reasons = []
    if moe.in_dtype != torch.bfloat16:
        reasons.append(f"wanted activations in bf16 (--dtype bfloat16), found {moe.in_dtype}")
    reasons += lora.why_not(layer, prefix)
    parallel = moe.moe_parallel_config
    if parallel.use_batched_activation_format:
        reasons.append("wanted an --all2all-backend with standard activations (allgather_reducescatter, deepep_high_throughput), "
                       f"found {parallel.all2all_backend}, which passes one batch per expert")
    if layer.activation.value not in activations.VLLM:
        reasons.append(f"wanted an activation of {', '.join(activations.VLLM)}, found {layer.activation.value}")
    else:
        fields = layer_fields(layer, kind)
        if fields["gate_order"] == "interleaved" and not KINDS[kind].alternates:
            reasons.append(f"wanted {kind} experts with the rows of gate before those of up, found {layer.activation.value}, whose rows alternate")
        if fields["intermediate"] % KINDS[kind].block:
            reasons.append(f"wanted slices of {kind} experts in multiples of {KINDS[kind].block}, found {fields['intermediate']}: use a smaller "
                           "--tensor-parallel-size, or --enable-expert-parallel")
        options = dict(device=device, tokens_max=tokens_max, batch_invariant=bool(envs.VLLM_BATCH_INVARIANT), **environment.expert_kernels())
        library, adapters = sluice_moe.why_not(**options, **fields), lora.adapter_fields(layer, prefix)
        if library:
            reasons += [environment.expert_kernels_text() + reason for reason in refusals(library)]
        elif adapters:
            library = sluice_moe.why_not(**options, **fields, **adapters)
            reasons += [f"LoRA on experts: {environment.expert_kernels_text()}{reason}: {lora.WITHOUT_EXPERTS}" for reason in refusals(library or "")]
    return reasons


def refusals(text: str) -> list[str]:
    """Returns the reasons in a text of sluice_moe.why_not(): the lines of stages without a kernel, or the whole text if there are none."""
    stages = [" ".join(line.split()) for line in text.splitlines() if " none: " in line]
    return stages or [text] * bool(text)


class SluiceMethod(FusedMoEMethodBase):
    """The shared code of all kinds. Subclasses define `kind` and create_weights."""

    sluice = True  # read by lora.py
    kind = ""
    experts_cls = SluiceExperts
    supports_pre_processed_weights = False  # packed weights from outside are not accepted, because a layer cannot verify them

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        moe = layer.moe_config
        FusedMoEMethodBase.__init__(self, moe)  # the constructors of vLLM's methods would select a backend
        self.prefix = prefix
        self.reasons: list[str] = []  # why the scheme of the weights is not supported
        self.sluice_layer: sluice_moe.MoeLayer | None = None
        self.maps_ids = False
        self.adapter_fields = lora.adapter_fields(layer, prefix)  # none: vLLM puts no adapters on these experts
        self.token_adapters: TokenAdapters | None = None
        config = get_current_vllm_config()
        self.fill_dummies = config.load_config.load_format == "dummy"
        self.seed = config.model_config.seed or 0
        self.max_capture_size = moe.max_capture_size
        # An all-to-all may deliver the tokens of all data-parallel ranks.
        self.tokens_max = moe.max_num_tokens * (moe.dp_size if moe.dp_size > 1 else 1)

    def _want_a_gate(self, layer: torch.nn.Module, kind: str) -> None:
        """Adds a reason if vLLM's function that creates these weights has experts without a gate in newer versions alone."""
        if not layer.moe_config.is_act_and_mul and not hasattr(layer.moe_config, "w13_num_shards"):
            self.reasons.append(f"wanted experts with a gate, because this vLLM has no others in {kind}, found {layer.activation.value}")

    @property
    def supports_eplb(self) -> bool:
        # gpt-oss's loader does not support redundant experts, and vLLM does not move adapters.
        return self.kind != "gpt_oss" and not self.adapter_fields

    @property
    def skip_forward_padding(self) -> bool:
        return False

    @property
    def has_unpadded_output(self) -> bool:
        return False

    def maybe_roundup_sizes(self, hidden_size, intermediate_size_per_partition, act_dtype, moe_parallel_config):
        """Returns the hidden size rounded for vLLM's all-to-all, and the intermediate size of MXFP4 rounded to whole blocks, as loaders slice it."""
        hidden, inside = FusedMoEMethodBase.maybe_roundup_sizes(self, hidden_size, intermediate_size_per_partition, act_dtype,
                                                               moe_parallel_config)
        return hidden, whole_blocks(inside, self.kind)

    def get_fused_moe_quant_config(self, layer: torch.nn.Module):
        biases = (getattr(layer, "w13_bias", None), getattr(layer, "w2_bias", None))
        if self.kind == "bf16":
            return biased_moe_quant_config(*biases)
        make = fp8_w8a16_moe_quant_config if KINDS[self.kind].fields["expert_w"] == "e4m3" else mxfp4_w4a16_moe_quant_config
        scale = "weight_scale_inv" if hasattr(layer, "w13_weight_scale_inv") else "weight_scale"
        return make(getattr(layer, f"w13_{scale}"), getattr(layer, f"w2_{scale}"), *biases)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Packs the weights, after a reload into the same memory, because captured graphs hold its addresses."""
        self._pack(layer)
        self._make_kernel(layer)

    def _pack(self, layer: torch.nn.Module) -> None:
        names = [n for n in PACKED_NAMES if getattr(layer, n, None) is not None]
        if self.fill_dummies and self.sluice_layer is None:  # later weights are real
            dummy.fill(layer, names, self.seed, self.prefix)
        old = self._plain_tensors(layer, names)
        device = layer.w13_weight.device
        if self.sluice_layer is None:
            fields = layer_fields(layer, self.kind)
            self.maps_ids = layer._expert_map is not None and "ep" not in fields
            self.sluice_layer = sluice_moe.MoeLayer(tokens_max=self.tokens_max, device=device,
                                                    batch_invariant=bool(envs.VLLM_BATCH_INVARIANT), **fields, **self.adapter_fields,
                                                    **environment.expert_kernels())
            if self.adapter_fields:
                self.token_adapters = TokenAdapters(self.tokens_max, device)
        self.sluice_layer.load(old, naming="plain")
        del old
        views = packed_views(self.sluice_layer)
        for name in names:
            if PACKED_NAMES[name] in views:
                replace_parameter(layer, name, views[PACKED_NAMES[name]].view(layer.local_num_experts, -1))
            else:
                delattr(layer, name)  # the scales of matrices of NVFP4, which are packed among those of blocks
        if device.type == "cuda":
            torch.cuda.empty_cache()  # returns freed memory to the GPU, because the next layer's packed buffer is larger than any tensor freed here
        log_once(describe(self.sluice_layer, self.kind))

    def _plain_tensors(self, layer: torch.nn.Module, names: list[str]) -> dict[str, torch.Tensor]:
        """Returns vLLM's loaded parameters under the names that MoeLayer.load() takes."""
        out = {PACKED_NAMES[n]: getattr(layer, n).data for n in names}
        for matrix in ("experts.up", "experts.down"):
            scales = out.pop(f"{matrix}_scale" if KINDS[self.kind].row_scales else f"{matrix}_row_scale", None)
            if scales is not None:
                out[f"{matrix}_row_scale"] = one_per_row(scales, out[matrix].shape[1])
        return out

    def _make_kernel(self, layer: torch.nn.Module) -> None:
        self.moe_quant_config = self.get_fused_moe_quant_config(layer)
        prepare_finalize = maybe_make_prepare_finalize(moe=self.moe, quant_config=self.moe_quant_config,
                                                       routing_tables=layer._expert_routing_tables(), allow_new_interface=True)
        if prepare_finalize is None:
            raise UnsupportedLayer(f"--quantization {NAME}: {self.prefix}: wanted a prepare and finalize step from vLLM, found none for "
                                   f"--all2all-backend {self.moe.moe_parallel_config.all2all_backend}")
        experts = SluiceExperts(self.moe, self.moe_quant_config, self.sluice_layer, self.maps_ids, self.token_adapters)
        self.moe_kernel = mk.FusedMoEKernel(prepare_finalize, experts)

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        return self.moe_kernel.apply(
            hidden_states=x, w1=layer.w13_weight, w2=layer.w2_weight, topk_weights=topk_weights, topk_ids=topk_ids,
            activation=layer.activation, global_num_experts=layer.global_num_experts, expert_map=layer.expert_map,
            apply_router_weight_on_input=layer.apply_router_weight_on_input, shared_experts=shared_experts,
            shared_experts_input=shared_experts_input)


# vLLM's parameters -> the plain names of a Sluice layer's tensors.
PACKED_NAMES = {f"{theirs}_{part}": f"experts.{ours}" for theirs, matrix in (("w13", "up"), ("w2", "down")) for part, ours in (
    ("weight", matrix), ("weight_scale", f"{matrix}_scale"), ("weight_scale_inv", f"{matrix}_scale"), ("weight_scale_2", f"{matrix}_row_scale"),
    ("bias", f"{matrix}_bias"))}


class SluiceGptOssMethod(SluiceMethod, GptOssMxfp4MoEMethod):
    kind = "gpt_oss"
    weight_dtype = "gpt_oss_mxfp4"  # read by gpt-oss's loader


class SluiceMxfp4Method(SluiceMethod, Mxfp4MoEMethod):
    kind = "mxfp4"
    weight_dtype = "mxfp4"


class SluiceBf16Method(SluiceMethod):
    kind = "bf16"
    create_weights = UnquantizedFusedMoEMethod.create_weights  # vLLM's function, from a class that is not a base of this class


EXPERT_KERNEL = re.compile(r"\.(expert_gemm|expert_mlp|grouped_mlp)\.")  # the operation in a kernel's name


def expert_kernels(explained: str) -> str:
    """Returns the expert kernels in a text of MoeLayer.explain() for one token count."""
    words = (line.split() for line in explained.splitlines())
    return " and ".join(dict.fromkeys(w[1] for w in words if len(w) == 2 and EXPERT_KERNEL.search(w[1])))


LOGGED_FIELDS = ("hidden", "intermediate", "experts", "top_k", "expert_w", "gate_order", "act", "up_bias")


def describe(layer: sluice_moe.MoeLayer, kind: str) -> str:
    """Returns a log line about a layer: its sizes, and its kernels for few and many tokens."""
    counts = sorted({1, min(64, layer.tokens_max), layer.tokens_max})
    runs = "; ".join(f"{n} tokens: {expert_kernels(layer.explain(n))}" for n in counts)
    sizes = " ".join(f"{name}={layer.fields[name]}" for name in LOGGED_FIELDS)
    if layer.fields.get("expert_lora_rank", "0") != "0":
        sizes += f" lora_adapters={layer.fields['lora_adapters']} expert_lora_rank={layer.fields['expert_lora_rank']}"
    return f"experts {kind} {sizes}: {layer.weight_bytes / 1e6:.0f} MB packed, {layer.workspace_bytes / 1e6:.0f} MB workspace; {runs}"
