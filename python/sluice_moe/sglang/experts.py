"""SGLang's experts on Sluice, as quant methods of FusedMoE: MXFP4 (gpt-oss, DeepSeek V4) and bf16.

SGLang's loaders slice the checkpoint, so a MoeLayer here holds only this rank's experts. SGLang's dispatcher maps ids to local ids, -1 for experts
of other ranks.
"""
from __future__ import annotations

import inspect
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
from sluice_moe import MoeLayer, activations, environment
from sluice_moe.errors import Error, UnsupportedLayer

from . import compat, state
from .gates import deterministic
from .loads import Loads
from .state import logger, refused_layer

TOKENS_MAX = 8192  # per call; more tokens take several calls
MX_BLOCK = 32  # MXFP4 values per scale
ONE = 127  # 2^0 in e8m0

_logged: set[object] = set()
_reasons: dict[tuple, Optional[str]] = {}  # of _check_kernels()


def log_once(line: str) -> None:
    if line not in _logged:
        _logged.add(line)
        logger.info(line)


# ---- Which layers ----


def around_fused_moe(original: Callable, self: FusedMoE, *args: Any, **kwargs: Any) -> None:
    """Wraps FusedMoE.__init__. An unquantized layer gets Bf16Experts. A layer that cannot run on Sluice is an error."""
    given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    unquantised = given.get("quant_method") is None and given.get("quant_config") is None
    if not state.chosen():
        if not (unquantised and state.automatic() and _tried(original, given)):
            original(self, *args, **kwargs)
        return
    prefix = given.get("prefix", "")
    if given.get("quant_method") is not None:
        raise refused_layer(prefix, "wanted no quant_method from the model, because Sluice sets it, found "
                                    f"{type(given['quant_method']).__name__}")
    if unquantised:
        _build_bf16(original, given)
    else:
        original(self, *args, **kwargs)
    if not isinstance(self.quant_method, SluiceExperts):
        raise refused_layer(prefix, "wanted MXFP4 experts (quantization mxfp4, or fp8 with fp4 experts) or unquantised bf16 experts, "
                                    f"found {type(self.quant_method).__name__} of {type(self.quant_config).__name__}")


def _build_bf16(original: Callable, given: dict[str, Any]) -> None:
    """Calls FusedMoE.__init__ of an unquantized layer so that it gets Bf16Experts."""
    method = {"quant_method": Bf16Experts(given.get("prefix", ""))} if state.takes_method() else {"quant_config": _NoQuantization()}
    original(given["self"], **{**{name: value for name, value in given.items() if name != "self"}, **method})
    if not state.takes_method():
        given["self"].quant_config = None


def _tried(original: Callable, given: dict[str, Any]) -> bool:
    """Builds an unquantized layer with Bf16Experts. Returns False, and logs the reason, if Sluice cannot run it."""
    try:
        with state.trying():
            _build_bf16(original, given)
    except UnsupportedLayer as why:
        reason = str(why).removeprefix("sluice: ").removeprefix(f"{given.get('prefix') or 'experts'}: ")
        log_once(f"sluice: {compat.AUTO}=1: unquantised experts run on SGLang: {reason}")
        return False
    log_once(f"sluice: {compat.AUTO}=1: unquantised experts run on Sluice")
    return True


class _NoQuantization:
    """The quant_config of an unquantized layer, for versions whose FusedMoE takes no quant_method."""

    def get_name(self) -> str:
        return "none"

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Bf16Experts:
        return Bf16Experts(prefix)


def around_mxfp4(original: Callable, self: Any, layer: torch.nn.Module, prefix: str) -> Any:
    """Wraps Mxfp4Config.get_quant_method."""
    if not isinstance(layer, FusedMoE) or not state.chosen():
        return original(self, layer, prefix)
    if not self.is_checkpoint_mxfp4_serialized:
        raise refused_layer(prefix, "wanted a checkpoint in MXFP4, found a checkpoint to quantise while loading")
    return Mxfp4Experts(prefix)


def around_fp8(original: Callable, self: Fp8Config, layer: torch.nn.Module, prefix: str) -> Any:
    """Wraps Fp8Config.get_quant_method. DeepSeek V4 has FP8 weights with MXFP4 experts; layers without FP8 are bf16."""
    if not isinstance(layer, FusedMoE) or not state.chosen():
        return original(self, layer, prefix)
    method = original(self, layer, prefix)
    if isinstance(method, UnquantizedFusedMoEMethod):
        return Bf16Experts(prefix)
    if self.is_fp4_experts and not self.dequant_fp4_to_fp8:
        return Fp4Experts(prefix)
    return method  # around_fused_moe rejects it


# ---- The methods ----


class SluiceExperts(FusedMoEMethodBase):
    """The experts of a FusedMoE as one MoeLayer. runner = None tells SGLang that this method runs its own kernels on standard top-k."""

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
        """Registers the parameters that SGLang's loaders fill, in the checkpoint's format: this rank's experts, its slice of the width."""
        self.experts, self.hidden = num_experts, hidden_size
        self.intermediate = self.padded(intermediate_size_per_partition)
        self.with_bias = with_bias
        if params_dtype is not torch.bfloat16:
            raise refused_layer(self.prefix, f"wanted bfloat16 (--dtype bfloat16), found {params_dtype}")
        self.weight_loader = extra_weight_attrs["weight_loader"]
        rows = self.intermediate * (2 if layer.moe_runner_config.is_gated else 1)
        attributes = {**extra_weight_attrs, "weight_loader": self._load}
        for name, tensor, more in self.parameters(rows):
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            layer.register_parameter(name, parameter)
            set_weight_attrs(parameter, {**attributes, **more})
        self._loads.parameters = {name: parameter for name, parameter in layer.named_parameters(recurse=False)}

    def padded(self, intermediate: int) -> int:
        """The intermediate size of this rank's parameters, with padding."""
        return intermediate

    def parameters(self, rows: int) -> list[tuple[str, torch.Tensor, Mapping[str, object]]]:
        """Yields (name, tensor, attributes) of each parameter; `rows` is the number of gate and up rows together."""
        raise NotImplementedError

    def tensors(self, layer: FusedMoE) -> dict[str, torch.Tensor]:
        """The parameters by the plain names of MoeLayer.load()."""
        raise NotImplementedError

    def _load(self, parameter: torch.nn.Parameter, loaded: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Wraps SGLang's loader. After packing it fills newly allocated parameters, and the last piece of an update packs them in place."""
        with self._loads.lock:
            self._loads.begin()
        self.weight_loader(parameter, loaded, *args, **kwargs)
        with self._loads.lock:
            if self._loads.end(parameter, args, kwargs) and self.layer is not None:
                self._pack()

    # ---- The layer ----

    def create_moe_runner(self, layer: FusedMoE, moe_runner_config: MoeRunnerConfig) -> None:
        self.moe_runner_config = config = moe_runner_config
        self.owner = layer
        try:
            self._check(layer, config)
            self.layer_fields = self.fields(config)
            self._check_kernels(layer.w13_weight.device)
        except UnsupportedLayer as why:
            raise refused_layer(self.prefix, str(why)) from None

    def _check(self, layer: FusedMoE, config: MoeRunnerConfig) -> None:
        from sglang.srt.runtime_context import get_exec

        moe = get_exec().moe
        a2a = get_moe_a2a_backend().value
        for wanted, found in (("--moe-a2a-backend none", a2a != "none" and f"{a2a}, which groups tokens by expert in its own layout"),
                              ("experts with a fixed placement", moe.enable_eplb and "--enable-eplb, which moves weights that are packed here"),
                              ("no redundant experts", moe.ep_num_redundant_experts and
                               f"{moe.ep_num_redundant_experts}, whose weights are placed after loading"),
                              ("router weights on the output of experts", config.apply_router_weight_on_input and "on their input"),
                              ("a sum over the experts of a token", config.no_combine and "no_combine"),
                              ("a top_k", not config.top_k and "none")):
            if found:
                raise UnsupportedLayer(f"wanted {wanted}, found {found}")

    def options(self) -> dict[str, object]:
        """The arguments of the MoeLayer besides its fields."""
        return {"tokens_max": TOKENS_MAX, "batch_invariant": deterministic(), **environment.expert_kernels()}

    def _check_kernels(self, device: torch.device) -> None:
        """Raises UnsupportedLayer if no kernel runs the layer, before its weights are loaded."""
        if device.type not in ("cpu", "cuda"):
            return
        given = {**self.options(), **self.layer_fields}
        key = (device, *sorted(given.items(), key=str))
        if key not in _reasons:
            _reasons[key] = sluice_moe.why_not(device=device, **given)
        if _reasons[key]:
            raise UnsupportedLayer(environment.expert_kernels_text() + _reasons[key])

    def fields(self, config: MoeRunnerConfig) -> dict[str, object]:
        """The fields of the MoeLayer."""
        out: dict[str, object] = {"hidden": self.hidden, "intermediate": self.intermediate, "experts": self.experts, "top_k": config.top_k,
                                  "expert_w": self.expert_w, "input": "precomputed", "up_bias": self.with_bias,
                                  "down_bias": self.with_bias, **activations.of_sglang(config)}
        if self.experts < config.top_k:  # a MoeLayer needs at least top_k experts in total, so this rank is described as the first of enough ranks
            ranks = -(-config.top_k // self.experts)
            out |= {"experts": self.experts * ranks, "ep": (0, ranks)}
        return out

    def process_weights_after_loading(self, layer: FusedMoE) -> None:
        with self._loads.lock:
            if self.layer is None:
                self._make(layer)
            elif self._loads.half_done():
                raise refused_layer(self.prefix, f"wanted all weights of the layer again, found {self._loads.progress()}")
            elif self._loads.storage:
                self._pack()

    def _make(self, layer: FusedMoE) -> None:
        device = layer.w13_weight.device
        try:
            self.layer = MoeLayer(device=device, **self.options(), **self.layer_fields)
            self._pack()
        except Error as why:
            raise refused_layer(self.prefix, str(why)) from why
        self._log(layer)

    def _pack(self) -> None:
        self.layer.load(self.tensors(self.owner), naming="plain")
        self._loads.packed()

    def _log(self, layer: FusedMoE) -> None:
        """Logs the sizes and kernels of a layer, once for all layers with the same fields."""
        kind = (self.kind, *self.layer_fields.items())
        if kind in _logged:
            return
        _logged.add(kind)
        local = f"{self.experts} of {layer.num_experts} experts" if self.experts != layer.num_experts else f"{self.experts} experts"
        runs = "; ".join(f"{tokens} tokens: {', '.join(self.kernels(tokens))}" for tokens in (1, 64, TOKENS_MAX))
        logger.info("sluice: %s experts of %s and equal layers: %s, top %d, %d x %d, %s, on %s: %s", self.kind, self.prefix or "a layer",
                    local, self.layer_fields["top_k"], self.hidden, self.intermediate, self.layer_fields["act"], self.layer.device, runs)

    def kernels(self, tokens: int) -> list[str]:
        """The kernels that run for a number of tokens, in order."""
        words = (line.split() for line in self.layer.explain(tokens).splitlines())
        return [line[-1] for line in words if len(line) == 2 and "." in line[-1]]

    # ---- Running ----

    def apply(self, layer: FusedMoE, dispatch_output: Any) -> StandardCombineInput:
        """hidden_states [tokens, hidden], topk_ids and topk_weights [tokens, top_k] -> the weighted sum over each token's experts."""
        topk = dispatch_output.topk_output
        if not hasattr(topk, "topk_ids") or getattr(dispatch_output, "hidden_states_scale", None) is not None:
            raise refused_layer(self.prefix, "wanted standard top-k and hidden states in bf16, found "
                                       f"{type(topk).__name__} in {type(dispatch_output).__name__}")
        return StandardCombineInput(hidden_states=self.run(dispatch_output.hidden_states, topk.topk_ids, topk.topk_weights))

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden], ids and weights [tokens, top_k] -> [tokens, hidden]."""
        if weights.dtype is not torch.float32:
            weights = weights.float()
        scale = self.moe_runner_config.routed_scaling_factor
        if x.is_cuda and scale not in (None, 1.0):
            weights = weights * scale  # on a GPU SGLang expects the runner to do this; on the CPU its models scale the output
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
    """gpt-oss: codes in u8, two to a byte, scales e8m0 in u8, biases bf16; rows of gate and up interleaved."""

    expert_w, kind = "e2m1", "MXFP4"
    code, scale = torch.uint8, torch.uint8
    scale_suffix = "weight_scale"

    def padded(self, intermediate: int) -> int:
        # The loader slices the width in whole blocks and pads the last rank with zeros.
        return -(-intermediate // MX_BLOCK) * MX_BLOCK

    def parameters(self, rows: int) -> list[tuple[str, torch.Tensor, Mapping[str, object]]]:
        if self.hidden % MX_BLOCK:
            raise refused_layer(self.prefix, f"wanted a hidden size that is a multiple of {MX_BLOCK}, found {self.hidden}")
        out = []
        for name, shape in (("w13", (self.experts, rows, self.hidden)), ("w2", (self.experts, self.hidden, self.intermediate))):
            codes = torch.zeros(*shape[:2], shape[2] // 2, dtype=self.code)
            scales = torch.full((*shape[:2], shape[2] // MX_BLOCK), ONE, dtype=torch.uint8)
            out += [(f"{name}_weight", codes, {}),
                    (f"{name}_{self.scale_suffix}", scales.view(self.scale), {"quant_method": self.blocks()})]
            if self.with_bias:
                out.append((f"{name}_weight_bias", torch.zeros(shape[:2], dtype=torch.bfloat16), {}))
        return out

    def blocks(self) -> str:
        """The name of block scales in FusedMoE's loader."""
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
    """DeepSeek V4: codes in int8, scales e8m0, [gate; up], a clamp in the activation."""

    kind = "MXFP4 (fp8 checkpoint)"
    code = torch.int8
    scale = torch.float8_e8m0fnu
    scale_suffix = "weight_scale_inv"

    def blocks(self) -> str:
        return "block"
