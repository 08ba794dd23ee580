"""SGLang's experts on Sluice: MXFP4 (gpt-oss, DeepSeek V4) and bf16, each as the quant method of a FusedMoE.

SGLang's own parameters take the checkpoint as its loaders cut it for this rank, so a layer here is whole: its experts are this rank's,
and SGLang's dispatcher has turned their numbers into local ones, -1 where an expert is another rank's.
"""
from __future__ import annotations

import inspect
import threading
from typing import Any, Callable, Mapping, Optional

import torch
from sglang.srt.layers.moe import MoeRunnerConfig, get_moe_a2a_backend
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
from sglang.srt.utils import set_weight_attrs

import sluice_moe
from sluice_moe import MoeLayer

from . import state
from .gates import deterministic
from .state import logger

TOKENS_MAX = 8192  # of one call; more run in pieces
MX_BLOCK = 32
ONE = 127  # 2^0 in e8m0

_said: set[tuple] = set()


# ---- Which layers ----


def around_fused_moe(original: Callable, self: FusedMoE, *args: Any, **kwargs: Any) -> None:
    """FusedMoE.__init__: a layer without a quantization gets Sluice's bf16 experts; any layer that did not become Sluice's is an error."""
    if not state.chosen():
        return original(self, *args, **kwargs)
    said = inspect.signature(original).bind(self, *args, **kwargs).arguments
    prefix = said.get("prefix", "")
    if said.get("quant_method") is not None:
        raise refused(prefix, f"wanted a layer whose method is chosen by its quantization, found {type(said['quant_method']).__name__} "
                              "given by the model")
    stands_in = None
    if said.get("quant_config") is None:
        if state.takes_method():
            kwargs["quant_method"] = Bf16Experts(prefix)
        else:
            stands_in = said["quant_config"] = _NoQuantization()
            args, kwargs = (), {name: value for name, value in said.items() if name != "self"}
    original(self, *args, **kwargs)
    if stands_in is not None:
        self.quant_config = None
    if not isinstance(self.quant_method, SluiceExperts):
        raise refused(prefix, "wanted MXFP4 experts (quantization mxfp4, or fp8 with fp4 experts) or bf16 experts without a quantization, "
                              f"found {type(self.quant_method).__name__} of {type(self.quant_config).__name__}")


class _NoQuantization:
    """In place of no quant_config at all, where FusedMoE takes no quant_method."""

    def get_name(self) -> str:
        return "none"

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Bf16Experts:
        return Bf16Experts(prefix)


def around_mxfp4(original: Callable, self: Any, layer: torch.nn.Module, prefix: str) -> Any:
    """Mxfp4Config.get_quant_method."""
    if not isinstance(layer, FusedMoE) or not state.chosen():
        return original(self, layer, prefix)
    if not self.is_checkpoint_mxfp4_serialized:
        raise refused(prefix, "wanted a checkpoint in MXFP4, found one to be quantized while it is loaded")
    return Mxfp4Experts(prefix)


def around_fp8(original: Callable, self: Fp8Config, layer: torch.nn.Module, prefix: str) -> Any:
    """Fp8Config.get_quant_method: DeepSeek V4 has FP8 weights and MXFP4 experts; a skipped layer is bf16."""
    if not isinstance(layer, FusedMoE) or not state.chosen():
        return original(self, layer, prefix)
    method = original(self, layer, prefix)
    if isinstance(method, UnquantizedFusedMoEMethod):
        return Bf16Experts(prefix)
    if self.is_fp4_experts and not self.dequant_fp4_to_fp8:
        return Fp4Experts(prefix)
    return method  # FusedMoE.__init__ says why not


def refused(prefix: str, reason: str) -> state.NotInstalled:
    return state.refused(reason, prefix or "experts")


# ---- What a layer computes ----


def activation_fields(config: MoeRunnerConfig) -> dict[str, object]:
    """The activation of a layer and the order of gate and up, as fields of a MoeLayer. Raises ValueError for others."""
    name, gated = config.activation, config.is_gated
    alpha, limit, clamp = config.gemm1_alpha, config.gemm1_clamp_limit, config.swiglu_limit
    if not gated:
        act = {"silu": "silu", "gelu": "gelu", "relu2": "relu2"}.get(name)
        if act is None or alpha is not None or limit is not None or clamp is not None:
            raise ValueError(f"wanted silu, gelu or relu2 without gates and limits, found {name} with alpha {alpha}, limit {limit or clamp}")
        return {"act": act}
    out: dict[str, object] = {"gate_order": "gate_first"}
    if name in ("gelu", "gelu_tanh") and alpha is limit is clamp is None:
        return out | {"act": "geglu" if name == "gelu" else "geglu_tanh"}
    if name != "silu":
        raise ValueError(f"wanted silu, gelu or gelu_tanh with gates, found {name} with alpha {alpha}, limit {limit or clamp}")
    if alpha is not None:  # gpt-oss
        if limit is None:
            raise ValueError(f"wanted gemm1_clamp_limit beside gemm1_alpha {alpha}, found none")
        beta = getattr(config, "gemm1_beta", None)
        order = "interleaved" if config.gate_up_interleaved else "gate_first"
        return {"act": "swiglu_clamped", "alpha": float(alpha), "beta": 1.0 if beta is None else float(beta), "limit": float(limit),
                "gate_order": order}
    if limit is not None:
        return out | {"act": "swiglu_step", "limit": float(limit)}
    if clamp is not None:  # DeepSeek V4
        return out | {"act": "swiglu_clamped", "alpha": 1.0, "beta": 0.0, "limit": float(clamp)}
    return out | {"act": "swiglu"}


class SluiceExperts(FusedMoEMethodBase):
    """A FusedMoE's experts as one MoeLayer. runner is None: a kernel of its own on standard top-k with local numbers of experts."""

    runner = None
    expert_w: str  # of the MoeLayer
    kind: str  # for the log

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix
        self.layer: Optional[MoeLayer] = None
        self._loads = Loads()

    # ---- Parameters ----

    def create_weights(self, layer: FusedMoE, num_experts: int, hidden_size: int, intermediate_size_per_partition: int,
                       params_dtype: torch.dtype, with_bias: bool = False, **extra_weight_attrs: Any) -> None:
        """Registers what SGLang's loaders fill, as the checkpoint has it: this rank's experts and its part of their width."""
        self.experts, self.hidden = num_experts, hidden_size
        self.intermediate = self.padded(intermediate_size_per_partition)
        self.with_bias = with_bias
        if params_dtype is not torch.bfloat16:
            raise refused(self.prefix, f"wanted bfloat16 (--dtype bfloat16), found {params_dtype}")
        self.weight_loader = extra_weight_attrs["weight_loader"]
        rows = self.intermediate * (2 if layer.moe_runner_config.is_gated else 1)
        attributes = {**extra_weight_attrs, "weight_loader": self._load}
        for name, tensor, more in self.parameters(rows):
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            layer.register_parameter(name, parameter)
            set_weight_attrs(parameter, {**attributes, **more})
        self._loads.parameters = {name: parameter for name, parameter in layer.named_parameters(recurse=False)}

    def padded(self, intermediate: int) -> int:
        return intermediate

    def parameters(self, rows: int) -> list[tuple[str, torch.Tensor, Mapping[str, object]]]:
        """(name, tensor, attributes) for `rows` rows of gate and up."""
        raise NotImplementedError

    def tensors(self, layer: FusedMoE) -> dict[str, torch.Tensor]:
        """The parameters under the plain names of a MoeLayer."""
        raise NotImplementedError

    def _load(self, parameter: torch.nn.Parameter, loaded: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """SGLang's loader; after packing it fills fresh parameters, and the last of them packs again in place."""
        with self._loads.lock:
            self._loads.begin(parameter)
        self.weight_loader(parameter, loaded, *args, **kwargs)
        with self._loads.lock:
            if self._loads.end(parameter, args, kwargs) and self.layer is not None:
                self._pack()

    # ---- The layer ----

    def create_moe_runner(self, layer: FusedMoE, moe_runner_config: MoeRunnerConfig) -> None:
        self.moe_runner_config = config = moe_runner_config
        self.owner = layer
        try:
            self._refuse(layer, config)
            self.made_with = self.fields(config)
        except ValueError as why:
            raise refused(self.prefix, str(why)) from None

    def _refuse(self, layer: FusedMoE, config: MoeRunnerConfig) -> None:
        from sglang.srt.runtime_context import get_exec

        moe = get_exec().moe
        a2a = get_moe_a2a_backend().value
        for wanted, found in (("--moe-a2a-backend none", a2a != "none" and a2a),
                              ("experts that stay where they are", moe.enable_eplb and "--enable-eplb"),
                              ("experts once each", moe.ep_num_redundant_experts and f"{moe.ep_num_redundant_experts} redundant ones"),
                              ("router weights after the experts", config.apply_router_weight_on_input and "before them"),
                              ("a sum over the experts of a token", config.no_combine and "no_combine"),
                              ("a top_k", not config.top_k and "none")):
            if found:
                raise ValueError(f"wanted {wanted}, found {found}")

    def fields(self, config: MoeRunnerConfig) -> dict[str, object]:
        """What the MoeLayer is made with."""
        out: dict[str, object] = {"hidden": self.hidden, "intermediate": self.intermediate, "experts": self.experts, "top_k": config.top_k,
                                  "expert_w": self.expert_w, "input": "precomputed", "up_bias": self.with_bias,
                                  "down_bias": self.with_bias, **activation_fields(config)}
        if self.experts < config.top_k:  # one of many ranks: the first of as many as it takes for a router to choose top_k
            ranks = -(-config.top_k // self.experts)
            out |= {"experts": self.experts * ranks, "ep": (0, ranks)}
        return out

    def process_weights_after_loading(self, layer: FusedMoE) -> None:
        with self._loads.lock:
            if self.layer is None:
                self._make(layer)
            elif self._loads.half_done():
                raise refused(self.prefix, f"wanted all weights of the layer again, found {self._loads.progress()}")
            elif self._loads.storage:
                self._pack()

    def _make(self, layer: FusedMoE) -> None:
        device = layer.w13_weight.device
        try:
            self.layer = MoeLayer(tokens_max=TOKENS_MAX, device=device, batch_invariant=deterministic(), **self.made_with)
            self._pack()
        except sluice_moe.SluiceError as why:
            raise refused(self.prefix, str(why)) from why
        self._say(layer)

    def _pack(self) -> None:
        self.layer.load(self.tensors(self.owner), naming="plain")
        self._loads.packed()

    def _say(self, layer: FusedMoE) -> None:
        """One line for each kind of layer: what runs, for a token and for many."""
        kind = (self.kind, *self.made_with.items())
        if kind in _said:
            return
        _said.add(kind)
        local = f"{self.experts} of {layer.num_experts} experts" if self.experts != layer.num_experts else f"{self.experts} experts"
        runs = "; ".join(f"{tokens} tokens: {', '.join(self.kernels(tokens))}" for tokens in (1, 64, TOKENS_MAX))
        logger.info("sluice: %s experts of %s and its like: %s, top %d, %d x %d, %s, on %s: %s", self.kind, self.prefix or "a layer", local,
                    self.made_with["top_k"], self.hidden, self.intermediate, self.made_with["act"], self.layer.device, runs)

    def kernels(self, tokens: int) -> list[str]:
        """Names of the kernels that run for so many tokens, in order."""
        words = (line.split() for line in self.layer.explain(tokens).splitlines())
        return [line[-1] for line in words if len(line) == 2 and "." in line[-1]]

    # ---- Running ----

    def apply(self, layer: FusedMoE, dispatch_output: Any) -> StandardCombineInput:
        """dispatch_output: hidden_states [tokens, hidden], topk_ids and topk_weights [tokens, top_k] -> the sum over each token's experts."""
        topk = dispatch_output.topk_output
        if not hasattr(topk, "topk_ids") or getattr(dispatch_output, "hidden_states_scale", None) is not None:
            raise refused(self.prefix, "wanted standard top-k and hidden states in bf16, found "
                                       f"{type(topk).__name__} in {type(dispatch_output).__name__}")
        return StandardCombineInput(hidden_states=self.run(dispatch_output.hidden_states, topk.topk_ids, topk.topk_weights))

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden], ids and weights [tokens, top_k] -> [tokens, hidden]."""
        if weights.dtype is not torch.float32:
            weights = weights.float()
        scale = self.moe_runner_config.routed_scaling_factor
        if x.is_cuda and scale not in (None, 1.0):
            weights = weights * scale  # as SGLang's runners on a GPU do; on the CPU its models multiply afterwards
        tokens = x.shape[0]
        if tokens <= TOKENS_MAX:
            return self.layer(x, ids=ids, weights=weights)
        out = torch.empty_like(x)
        for begin in range(0, tokens, TOKENS_MAX):
            part = slice(begin, begin + TOKENS_MAX)
            self.layer(x[part], ids=ids[part], weights=weights[part], out=out[part])
        return out


class Bf16Experts(SluiceExperts):
    """w13 [experts, rows, hidden] and w2 [experts, hidden, intermediate] in bf16, biases in f32."""

    expert_w, kind = "bf16", "bf16"

    def parameters(self, rows: int) -> list[tuple[str, torch.Tensor, Mapping[str, object]]]:
        out = [("w13_weight", torch.empty(self.experts, rows, self.hidden, dtype=torch.bfloat16), {}),
               ("w2_weight", torch.empty(self.experts, self.hidden, self.intermediate, dtype=torch.bfloat16), {})]
        if self.with_bias:
            out += [("w13_weight_bias", torch.zeros(self.experts, rows, dtype=torch.float32), {}),
                    ("w2_weight_bias", torch.zeros(self.experts, self.hidden, dtype=torch.float32), {})]
        return out

    def tensors(self, layer: FusedMoE) -> dict[str, torch.Tensor]:
        out = {"experts.up": layer.w13_weight, "experts.down": layer.w2_weight}
        if self.with_bias:
            out |= {"experts.up_bias": layer.w13_weight_bias, "experts.down_bias": layer.w2_weight_bias}
        return {name: tensor.data for name, tensor in out.items()}


class Mxfp4Experts(SluiceExperts):
    """gpt-oss: codes u8, two to a byte, scales e8m0 as u8, biases bf16; rows of gate and up in turn."""

    expert_w, kind = "e2m1", "MXFP4"
    code, scale = torch.uint8, torch.uint8
    scale_suffix = "weight_scale"

    def padded(self, intermediate: int) -> int:
        # As the loader cuts the width: whole blocks, the last rank's missing columns are zeros.
        return -(-intermediate // MX_BLOCK) * MX_BLOCK

    def parameters(self, rows: int) -> list[tuple[str, torch.Tensor, Mapping[str, object]]]:
        if self.hidden % MX_BLOCK:
            raise refused(self.prefix, f"wanted a hidden size in blocks of {MX_BLOCK}, found {self.hidden}")
        out = []
        for name, shape in (("w13", (self.experts, rows, self.hidden)), ("w2", (self.experts, self.hidden, self.intermediate))):
            codes = torch.zeros(*shape[:2], shape[2] // 2, dtype=self.code)
            scales = torch.full((*shape[:2], shape[2] // MX_BLOCK), ONE, dtype=torch.uint8)
            out += [(f"{name}_weight", codes, {}), (f"{name}_{self.scale_suffix}", scales.view(self.scale), {"quant_method": self.blocks()})]
            if self.with_bias:
                out.append((f"{name}_weight_bias", torch.zeros(shape[:2], dtype=torch.bfloat16), {}))
        return out

    def blocks(self) -> str:
        """How FusedMoE's loader calls scales of blocks."""
        return "group"

    def tensors(self, layer: FusedMoE) -> dict[str, torch.Tensor]:
        out = {}
        for ours, name in (("up", "w13"), ("down", "w2")):
            out[f"experts.{ours}"] = getattr(layer, f"{name}_weight").data.view(torch.uint8)
            out[f"experts.{ours}_scale"] = getattr(layer, f"{name}_{self.scale_suffix}").data.view(torch.uint8)
            if self.with_bias:
                out[f"experts.{ours}_bias"] = getattr(layer, f"{name}_weight_bias").data
        return out


class Fp4Experts(Mxfp4Experts):
    """DeepSeek V4: codes int8, scales e8m0, [gate; up], limits in the activation."""

    kind = "MXFP4 (fp8 checkpoint)"
    code = torch.int8
    scale = torch.float8_e8m0fnu
    scale_suffix = "weight_scale_inv"

    def blocks(self) -> str:
        return "block"


class Loads:
    """Which pieces of a layer's weights have come: a layer that is packed takes them all again or none.

    After packing the parameters have no storage. A later load gets them storage again, and its last piece ends it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # SGLang loads with several threads
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.storage = True
        self._shapes: dict[int, torch.Size] = {}
        self._pieces: set[tuple] = set()  # of the first load
        self._again: set[tuple] = set()

    def begin(self, parameter: torch.nn.Parameter) -> None:
        if self.storage:
            return
        for known in self.parameters.values():
            known.data = torch.zeros(self._shapes[id(known)], dtype=torch.uint8, device=known.device).view(known.dtype) \
                if known.element_size() == 1 else torch.zeros(self._shapes[id(known)], dtype=known.dtype, device=known.device)
        self.storage = True

    def end(self, parameter: torch.nn.Parameter, args: tuple, kwargs: dict) -> bool:
        """Notes a piece; True if it was the last one of another load."""
        words = tuple(a for a in args if isinstance(a, (str, int))) + tuple(sorted((k, v) for k, v in kwargs.items() if v is not None))
        piece = (id(parameter), words)
        if not self._shapes:
            self._pieces.add(piece)
            return False
        self._again.add(piece)
        return self._again >= self._pieces > set()

    def packed(self) -> None:
        """The layer has the weights: their parameters give their memory back."""
        for parameter in self.parameters.values():
            if parameter.numel():
                self._shapes[id(parameter)] = parameter.shape
                parameter.data = parameter.data.new_empty((0,) * parameter.dim())
        self.storage = False
        self._again.clear()

    def half_done(self) -> bool:
        return bool(self._again) and not self._again >= self._pieces

    def progress(self) -> str:
        return f"{len(self._again & self._pieces)} of {len(self._pieces)} pieces"
