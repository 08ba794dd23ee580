"""What vLLM calls a quantisation method: makes the parameters that vLLM's loaders fill, packs them, and frees them layer by layer.

Three kinds: gpt-oss's MXFP4 (gate and up interleaved, biases), MXFP4 as DeepSeek V4 has it ([gate; up], a clamp), and bf16. The
parameters are vLLM's own until the weights are there. Afterwards the same names hold views of one packed buffer, [experts, bytes] each,
so that vLLM's memory profile, sleep mode and load balancing over experts see the weights where they are.
"""
from __future__ import annotations

import re

import torch
import vllm.envs as envs
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.all2all_utils import maybe_make_prepare_finalize
from vllm.model_executor.layers.fused_moe.config import biased_moe_quant_config, mxfp4_w4a16_moe_quant_config
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod, Mxfp4MoEMethod
from vllm.model_executor.utils import replace_parameter

import sluice_moe
from sluice_moe.packed import packed_views

from . import dummy
from .compat import NAME
from .experts import ACTIVATIONS, SluiceExperts, equal_ranges
from .report import say_once

BLOCK = 32  # values that share a scale in MXFP4


def whole_blocks(width: int, kind: str) -> int:
    """The width inside of experts, where a rank's slice of MXFP4 is as many whole blocks as it needs."""
    return width if kind == "bf16" else -(-width // BLOCK) * BLOCK


def activation_fields(layer: torch.nn.Module) -> dict[str, object]:
    """act, alpha, beta, limit and gate_order of vLLM's layer, as fields of a Sluice layer."""
    word = layer.activation.value
    fields: dict[str, object] = {"act": ACTIVATIONS[word], "gate_order": "interleaved" if word == "swigluoai" else "gate_first"}
    alpha, beta, limit = (getattr(layer, f"swiglu_{n}", None) for n in ("alpha", "beta", "limit"))
    if word == "swigluoai":
        alpha, beta, limit = alpha or 1.702, 1.0 if beta is None else beta, limit or 7.0
    if word == "silu" and limit:
        fields["act"] = "swiglu_clamped"
    if fields["act"] == "swiglu_clamped":
        if not limit:
            fields["act"] = "swiglu"
        else:
            fields["limit"] = limit
        fields |= {"alpha": 1.0 if alpha is None else alpha, "beta": 0.0 if beta is None else beta}
    return fields


def layer_fields(layer: torch.nn.Module, kind: str) -> dict[str, object]:
    """Arguments of the MoeLayer that is this rank's part of vLLM's. Tensor-parallel slices are cut by vLLM's loaders; of expert-parallel
    ones the layer knows global ids where they are ranges of equal length. Where they are not, ids are mapped before they come in."""
    moe = layer.moe_config
    fields = {"hidden": moe.hidden_dim, "intermediate": whole_blocks(moe.intermediate_size_per_partition, kind), "experts": moe.num_experts,
              "top_k": moe.experts_per_token, "input": "precomputed", "expert_w": "bf16" if kind == "bf16" else "e2m1",
              "up_bias": moe.has_bias, "down_bias": moe.has_bias, "weight_on_input": layer.apply_router_weight_on_input}
    fields |= activation_fields(layer)
    if layer._expert_map is not None:  # layer.expert_map asks the method, which is not there yet
        slices = equal_ranges(layer._expert_map.tolist())
        fields |= {"ep": slices} if slices else {"experts": layer.local_num_experts}
    return fields


def why_not_lora(prefix: str) -> str | None:
    """Why vLLM would put adapters on these experts, which take none, or None. vLLM knows a layer's experts as one module, by the name
    "experts" in nearly all models; gate_up_proj, down_proj and the like are dense layers and shared experts to it."""
    lora = get_current_vllm_config().lora_config
    if lora is None:
        return None
    if lora.target_modules is None:
        return ("wanted --lora-target-modules beside --enable-lora, found none: vLLM then makes room for adapters in every module, and "
                "experts of Sluice take none; name the modules of the adapters, without experts")
    names = {"experts", prefix.rsplit(".", 1)[-1]}
    of_experts = [target for target in lora.target_modules if names & set(target.split("."))]
    if of_experts:
        return f"wanted --lora-target-modules without experts, which take no adapters, found {', '.join(of_experts)}"
    say_once(f"LoRA on {', '.join(lora.target_modules)}: vLLM leaves out what else an adapter has, weights of experts too, and says "
             "nothing about it", warning=True)
    return None


def why_not(layer: torch.nn.Module, prefix: str, kind: str, tokens_max: int, device: torch.device) -> list[str]:
    """Every reason why Sluice cannot be these experts."""
    moe = layer.moe_config
    reasons = []
    if moe.in_dtype != torch.bfloat16:
        reasons.append(f"wanted activations in bf16 (--dtype bfloat16), found {moe.in_dtype}")
    lora = why_not_lora(prefix)
    if lora:
        reasons.append(lora)
    parallel = moe.moe_parallel_config
    if parallel.use_batched_activation_format:
        reasons.append("wanted an --all2all-backend that hands over tokens in rows (allgather_reducescatter, "
                       f"deepep_high_throughput), found {parallel.all2all_backend}")
    if layer.activation.value not in ACTIVATIONS:
        reasons.append(f"wanted an activation of {', '.join(ACTIVATIONS)}, found {layer.activation.value}")
    else:
        fields = layer_fields(layer, kind)
        library = sluice_moe.why_not(device=device, tokens_max=tokens_max, batch_invariant=bool(envs.VLLM_BATCH_INVARIANT), **fields)
        if library:
            reasons += refusals(library)
    return reasons


def refusals(text: str) -> list[str]:
    """The reasons in what sluice_moe.why_not() says: lines of stages that have no kernel; or all of it."""
    stages = [" ".join(line.split()) for line in text.splitlines() if " none: " in line]
    return stages or [text]


class SluiceMethod(FusedMoEMethodBase):
    """What the kinds share. `kind` and create_weights are theirs."""

    kind = ""
    experts_cls = SluiceExperts
    supports_pre_processed_weights = False  # a layer does not take bytes for packed weights that it cannot verify

    def __init__(self, layer: torch.nn.Module, prefix: str) -> None:
        moe = layer.moe_config
        FusedMoEMethodBase.__init__(self, moe)  # the kinds' vLLM classes would choose a backend of their own here
        self.prefix = prefix
        self.sluice_layer: sluice_moe.MoeLayer | None = None
        self.maps_ids = False
        config = get_current_vllm_config()
        self.fill_dummies = config.load_config.load_format == "dummy"
        self.seed = config.model_config.seed or 0
        self.max_capture_size = moe.max_capture_size
        # An all-to-all may bring the tokens of every rank that shares the experts.
        self.tokens_max = moe.max_num_tokens * (moe.dp_size if moe.dp_size > 1 else 1)

    @property
    def supports_eplb(self) -> bool:
        return self.kind != "gpt_oss"  # whose loader knows no experts that are there twice

    @property
    def skip_forward_padding(self) -> bool:
        return False

    @property
    def has_unpadded_output(self) -> bool:
        return False

    def maybe_roundup_sizes(self, hidden_size, intermediate_size_per_partition, act_dtype, moe_parallel_config):
        """Hidden as vLLM's all-to-all wants it; the width inside of MXFP4 experts in whole blocks, which is how loaders cut it."""
        hidden, inside = FusedMoEMethodBase.maybe_roundup_sizes(self, hidden_size, intermediate_size_per_partition, act_dtype,
                                                               moe_parallel_config)
        return hidden, whole_blocks(inside, self.kind)

    def get_fused_moe_quant_config(self, layer: torch.nn.Module):
        biases = (getattr(layer, "w13_bias", None), getattr(layer, "w2_bias", None))
        if self.kind == "bf16":
            return biased_moe_quant_config(*biases)
        return mxfp4_w4a16_moe_quant_config(layer.w13_weight_scale, layer.w2_weight_scale, *biases)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Packs, or packs anew into the same memory: graphs that were captured hold its addresses."""
        self._pack(layer)
        self._make_kernel(layer)

    def _pack(self, layer: torch.nn.Module) -> None:
        names = [n for n in PACKED_NAMES if getattr(layer, n, None) is not None]
        if self.fill_dummies:
            dummy.fill_zeros(layer, names, self.seed, self.prefix)
        old = {PACKED_NAMES[n]: getattr(layer, n).data for n in names}
        device = layer.w13_weight.device
        if self.sluice_layer is None:
            fields = layer_fields(layer, self.kind)
            self.maps_ids = layer._expert_map is not None and "ep" not in fields
            self.sluice_layer = sluice_moe.MoeLayer(tokens_max=self.tokens_max, device=device,
                                                    batch_invariant=bool(envs.VLLM_BATCH_INVARIANT), **fields)
        self.sluice_layer.load(old, naming="plain")
        del old
        views = packed_views(self.sluice_layer)
        for name in names:
            replace_parameter(layer, name, views[PACKED_NAMES[name]].view(layer.local_num_experts, -1))
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the next layer's packed buffer is larger than any one tensor that was freed here
        say_once(describe(self.sluice_layer, self.kind))

    def _make_kernel(self, layer: torch.nn.Module) -> None:
        self.moe_quant_config = self.get_fused_moe_quant_config(layer)
        prepare_finalize = maybe_make_prepare_finalize(moe=self.moe, quant_config=self.moe_quant_config,
                                                       routing_tables=layer._expert_routing_tables(), allow_new_interface=True)
        if prepare_finalize is None:
            raise RuntimeError(f"{NAME}: {self.prefix}: wanted a prepare and finalize step of vLLM, found none")
        experts = SluiceExperts(self.moe, self.moe_quant_config, self.sluice_layer, self.maps_ids)
        self.moe_kernel = mk.FusedMoEKernel(prepare_finalize, experts)

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        return self.moe_kernel.apply(
            hidden_states=x, w1=layer.w13_weight, w2=layer.w2_weight, topk_weights=topk_weights, topk_ids=topk_ids,
            activation=layer.activation, global_num_experts=layer.global_num_experts, expert_map=layer.expert_map,
            apply_router_weight_on_input=layer.apply_router_weight_on_input, shared_experts=shared_experts,
            shared_experts_input=shared_experts_input)


# vLLM's parameters -> the plain names of a Sluice layer's tensors.
PACKED_NAMES = {"w13_weight": "experts.up", "w13_weight_scale": "experts.up_scale", "w13_bias": "experts.up_bias",
                "w2_weight": "experts.down", "w2_weight_scale": "experts.down_scale", "w2_bias": "experts.down_bias"}


class SluiceGptOssMethod(SluiceMethod, GptOssMxfp4MoEMethod):
    kind = "gpt_oss"
    weight_dtype = "gpt_oss_mxfp4"  # gpt-oss's loader looks at it


class SluiceMxfp4Method(SluiceMethod, Mxfp4MoEMethod):
    kind = "mxfp4"
    weight_dtype = "mxfp4"


class SluiceBf16Method(SluiceMethod):
    kind = "bf16"
    create_weights = UnquantizedFusedMoEMethod.create_weights  # vLLM's, which is a module that we are not


def expert_method(layer: torch.nn.Module, prefix: str, kind: str) -> SluiceMethod:
    """The method of a layer of experts, before it has parameters. ValueError: it cannot be done, with every reason."""
    made = {"gpt_oss": SluiceGptOssMethod, "mxfp4": SluiceMxfp4Method, "bf16": SluiceBf16Method}[kind](layer, prefix)
    why = why_not(layer, prefix, kind, made.tokens_max, torch.device(layer.moe_config.device))
    if why:
        raise ValueError(f"--quantization {NAME}: {prefix}: {'; '.join(why)}")
    return made


OF_EXPERTS = re.compile(r"\.(expert_gemm|expert_mlp|grouped_mlp)\.")  # the operation in a kernel's name


def expert_kernels(explained: str) -> str:
    """The kernels of the experts in what MoeLayer.explain() says of one count of tokens."""
    words = (line.split() for line in explained.splitlines())
    return " and ".join(dict.fromkeys(w[1] for w in words if len(w) == 2 and OF_EXPERTS.search(w[1])))


SAID_FIELDS = ("hidden", "intermediate", "experts", "top_k", "expert_w", "gate_order", "act", "up_bias")


def describe(layer: sluice_moe.MoeLayer, kind: str) -> str:
    """One line of the log about a kind of layer: its sizes, and the kernels for few and many tokens."""
    counts = sorted({1, min(64, layer.tokens_max), layer.tokens_max})
    runs = "; ".join(f"{n} tokens: {expert_kernels(layer.explain(n))}" for n in counts)
    sizes = " ".join(f"{name}={layer.fields[name]}" for name in SAID_FIELDS)
    return f"experts {kind} {sizes}: {layer.weight_bytes / 1e6:.0f} MB packed, {layer.workspace_bytes / 1e6:.0f} MB scratch; {runs}"
