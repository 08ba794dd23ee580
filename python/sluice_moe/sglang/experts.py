"""SGLang's experts on Sluice, as a quant method of FusedMoE for each format in formats.py.

SGLang's loaders slice the checkpoint, so a MoeLayer here holds only this rank's experts. SGLang's dispatcher maps ids to local ids, -1 for experts
of other ranks.
"""
from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Optional

import torch
from sglang.srt.layers.moe import MoeRunnerConfig, get_moe_a2a_backend
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
from sglang.srt.utils import set_weight_attrs

import sluice_moe
from sluice_moe import MoeLayer, activations, environment
from sluice_moe.errors import Error, UnsupportedLayer

from . import compat, expert_lora, formats, state
from .gates import deterministic
from .loads import Loads
from .state import logger, refused_layer

TOKENS_MAX = 8192  # per call; more tokens take several calls

_logged: set[object] = set()
_reasons: dict[tuple, Optional[str]] = {}  # of _check_kernels()


def log_once(line: str) -> None:
    if line not in _logged:
        _logged.add(line)
        logger.info(line)


# ---- Which layers ----


def around_fused_moe(original: Callable, self: FusedMoE, *args: Any, **kwargs: Any) -> None:
    """Wraps FusedMoE.__init__. An unquantized layer gets bf16 experts. A layer that cannot run on Sluice is an error."""
    given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    unquantized = given.get("quant_method") is None and given.get("quant_config") is None
    if not state.chosen():
        if not (unquantized and state.automatic() and _tried(original, given)):
            original(self, *args, **kwargs)
        return
    prefix = given.get("prefix", "")
    if given.get("quant_method") is not None:
        raise refused_layer(prefix, "wanted no quant_method from the model, because Sluice sets it, found "
                                    f"{type(given['quant_method']).__name__}")
    if unquantized:
        _build_bf16(original, given)
    else:
        original(self, *args, **kwargs)
    if not isinstance(self.quant_method, SluiceExperts):
        raise refused_layer(prefix, "wanted experts in MXFP4 (quantization mxfp4, or fp8 with fp4 experts), in FP8 (fp8, mxfp8, compressed-tensors, "
                                    "modelopt_fp8), in NVFP4 (modelopt_fp4, modelopt_mixed, compressed-tensors) or unquantized in bf16, found "
                                    f"{type(self.quant_method).__name__} of {type(self.quant_config).__name__}")


def _build_bf16(original: Callable, given: dict[str, Any]) -> None:
    """Calls FusedMoE.__init__ of an unquantized layer so that it gets bf16 experts."""
    method = {"quant_method": SluiceExperts(formats.BF16, given.get("prefix", ""))} if state.takes_method() else {"quant_config": _NoQuantization()}
    original(given["self"], **{**{name: value for name, value in given.items() if name != "self"}, **method})
    if not state.takes_method():
        given["self"].quant_config = None


def _tried(original: Callable, given: dict[str, Any]) -> bool:
    """Builds an unquantized layer on Sluice. Returns False, and logs the reason, if Sluice cannot run it."""
    try:
        with state.trying():
            _build_bf16(original, given)
    except UnsupportedLayer as why:
        reason = str(why).removeprefix("sluice: ").removeprefix(f"{given.get('prefix') or 'experts'}: ")
        log_once(f"sluice: {compat.AUTO}=1: unquantized experts run on SGLang: {reason}")
        return False
    log_once(f"sluice: {compat.AUTO}=1: unquantized experts run on Sluice")
    return True


class _NoQuantization:
    """The quant_config of an unquantized layer, for versions whose FusedMoE takes no quant_method."""

    def get_name(self) -> str:
        return "none"

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> SluiceExperts:
        return SluiceExperts(formats.BF16, prefix)


def around_mxfp4(original: Callable, self: Any, layer: torch.nn.Module, prefix: str) -> Any:
    """Wraps Mxfp4Config.get_quant_method."""
    if not isinstance(layer, FusedMoE) or not state.chosen():
        return original(self, layer, prefix)
    if not self.is_checkpoint_mxfp4_serialized:
        raise refused_layer(prefix, "wanted a checkpoint in MXFP4, found a checkpoint to quantize while loading")
    return SluiceExperts(formats.MXFP4, prefix)


def _around(format_of: Callable[[Any, FusedMoE, Any], formats.Format]) -> Callable:
    """A hook around get_quant_method of a config. Layers that the config leaves unquantized are bf16."""
    def around(original: Callable, self: Any, layer: torch.nn.Module, prefix: str) -> Any:
        method = original(self, layer, prefix)
        if not isinstance(layer, FusedMoE) or not state.chosen():
            return method
        if method is None or isinstance(method, UnquantizedFusedMoEMethod):
            return SluiceExperts(formats.BF16, prefix)
        try:
            return SluiceExperts(format_of(self, layer, method), prefix)
        except UnsupportedLayer as why:
            raise refused_layer(prefix, str(why)) from None
    return around


def _instead(format_of: Callable[[Any, str], Optional[formats.Format]]) -> Callable:
    """Like _around(), for configs whose method of experts cannot be made on a Hopper GPU or a CPU. None: SGLang's own code decides."""
    def around(original: Callable, self: Any, layer: torch.nn.Module, prefix: str) -> Any:
        if not isinstance(layer, FusedMoE) or not state.chosen():
            return original(self, layer, prefix)
        try:
            format = format_of(self, prefix)
        except UnsupportedLayer as why:
            raise refused_layer(prefix, str(why)) from None
        return original(self, layer, prefix) if format is None else SluiceExperts(format, prefix)
    return around


around_fp8 = _around(formats.of_fp8)
around_modelopt_fp8 = _around(formats.of_modelopt_fp8)
around_modelopt_fp4 = _instead(formats.of_modelopt_fp4)
around_modelopt_mixed = _instead(formats.of_modelopt_mixed)
around_hybrid = _instead(formats.of_hybrid)
_around_other_compressed_tensors = _around(formats.of_compressed_tensors)


def around_compressed_tensors(original: Callable, self: Any, layer: torch.nn.Module, prefix: str) -> Any:
    """Wraps CompressedTensorsConfig.get_quant_method."""
    ours = _instead(lambda config, name: formats.of_packed_nvfp4(config, layer, name))
    return ours(functools.partial(_around_other_compressed_tensors, original), self, layer, prefix)


# ---- The method ----


class SluiceExperts(FusedMoEMethodBase):
    """The experts of a FusedMoE as one MoeLayer. runner = None tells SGLang that this method runs its own kernels on standard top-k."""

    runner = None

    def __init__(self, format: formats.Format, prefix: str = "") -> None:
        super().__init__()
        self.format, self.prefix = format, prefix
        self.layer: Optional[MoeLayer] = None
        self.room: Optional[expert_lora.Room] = None  # for adapters on the experts
        self.why_no_room = ""
        self.adapters: Optional[expert_lora.TokenAdapters] = None  # with room
        self._loads = Loads()

    # ---- Parameters ----

    def create_weights(self, layer: FusedMoE, num_experts: int, hidden_size: int, intermediate_size_per_partition: int,
                       params_dtype: torch.dtype, with_bias: bool = False, **extra_weight_attrs: Any) -> None:
        """Registers the parameters that SGLang's loaders fill, in the checkpoint's format: this rank's experts, its slice of the width."""
        self.experts, self.hidden, self.intermediate = num_experts, hidden_size, self.format.padded(intermediate_size_per_partition)
        self.with_bias = with_bias
        reasons = self.format.reasons(hidden_size, intermediate_size_per_partition)
        if params_dtype is not torch.bfloat16:
            reasons.append(f"wanted bfloat16 (--dtype bfloat16), found {params_dtype}")
        if reasons:
            raise refused_layer(self.prefix, "; ".join(reasons))
        self.weight_loader = extra_weight_attrs["weight_loader"]
        attributes = {**extra_weight_attrs, "weight_loader": self._load}
        parts = 2 if layer.moe_runner_config.is_gated else 1
        for name, tensor, more in self.format.parameters(num_experts, hidden_size, self.intermediate, parts, with_bias):
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            layer.register_parameter(name, parameter)
            set_weight_attrs(parameter, {**attributes, **more})
        self._loads.parameters = {name: parameter for name, parameter in layer.named_parameters(recurse=False)}

    @property
    def device(self) -> torch.device:
        return next(iter(self._loads.parameters.values())).device

    def _load(self, parameter: torch.nn.Parameter, loaded: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Wraps SGLang's loader. After packing it fills newly allocated parameters, and the last piece of an update packs them in place."""
        if parameter.dtype is torch.uint8 and loaded.dtype is torch.float8_e8m0fnu:
            loaded = loaded.view(torch.uint8)
        wanted = parameter.dtype
        if loaded.dtype is not wanted and (wanted is torch.float8_e4m3fn or wanted is torch.uint8 and loaded.is_floating_point()):
            raise refused_layer(self.prefix, f"wanted weights in {wanted}, found {loaded.dtype}")  # SGLang would convert the values
        with self._loads.lock:
            self._loads.begin()
        self.weight_loader(parameter, loaded, *args, **kwargs)
        with self._loads.lock:
            if self._loads.end(parameter, args, kwargs) and self.layer is not None:
                self._pack()

    # ---- The layer ----

    def create_moe_runner(self, layer: FusedMoE, moe_runner_config: MoeRunnerConfig) -> None:
        self.moe_runner_config = config = moe_runner_config
        try:
            self._check(layer, config)
            self.layer_fields = self.fields(config)
            self._check_kernels(self.device, self.layer_fields)
        except UnsupportedLayer as why:
            raise refused_layer(self.prefix, str(why)) from None
        self._make_room(layer, config)

    def _make_room(self, layer: FusedMoE, config: MoeRunnerConfig) -> None:
        """Gives the layer room for the adapters that SGLang may put on it. A layer that cannot have them runs without, which matters only if an adapter
        has weights for it (lora.py)."""
        wanted, device = expert_lora.room(), self.device
        if wanted is None:
            return
        fields = {**self.layer_fields, **expert_lora.fields(wanted, config.is_gated)}
        try:
            reasons = expert_lora.why_not()
            if reasons:
                raise UnsupportedLayer("; ".join(reasons))
            self._check_kernels(device, fields)
        except UnsupportedLayer as why:
            self.why_no_room = str(why)
            return
        self.room, self.layer_fields, self.adapters = wanted, fields, expert_lora.token_adapters(device)

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

    def _check_kernels(self, device: torch.device, fields: dict[str, object]) -> None:
        """Raises UnsupportedLayer if no kernel runs a layer of these fields, before its weights are loaded."""
        if device.type not in ("cpu", "cuda"):
            return
        given = {**self.options(), **fields}
        key = (device, *sorted(given.items(), key=str))
        if key not in _reasons:
            _reasons[key] = sluice_moe.why_not(device=device, **given)
        if _reasons[key]:
            raise UnsupportedLayer(environment.expert_kernels_text() + _reasons[key])

    def fields(self, config: MoeRunnerConfig) -> dict[str, object]:
        """The fields of the MoeLayer."""
        out: dict[str, object] = {"hidden": self.hidden, "intermediate": self.intermediate, "experts": self.experts, "top_k": config.top_k,
                                  "input": "precomputed", "up_bias": self.with_bias, "down_bias": self.with_bias,
                                  **self.format.fields, **activations.of_sglang(config)}
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
        if not self._loads.any():
            self.format.fill_dummies(self._loads.parameters)
        try:
            self.layer = MoeLayer(device=self.device, **self.options(), **self.layer_fields)
            self._pack()
        except Error as why:
            raise refused_layer(self.prefix, str(why)) from why
        self._log(layer)

    def _pack(self) -> None:
        self.layer.load(self.format.plain(self._loads.parameters), naming="plain")
        self._loads.packed()

    def _log(self, layer: FusedMoE) -> None:
        """Logs the sizes and kernels of a layer, once for all layers with the same fields."""
        kind = (self.format.text, *self.layer_fields.items())
        if kind in _logged:
            return
        _logged.add(kind)
        local = f"{self.experts} of {layer.num_experts} experts" if self.experts != layer.num_experts else f"{self.experts} experts"
        runs = "; ".join(f"{tokens} tokens: {', '.join(self.kernels(tokens))}" for tokens in (1, 64, TOKENS_MAX))
        logger.info("sluice: %s experts of %s and equal layers: %s, top %d, %d x %d, %s, on %s: %s", self.format.text, self.prefix or "a layer",
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
        adapter = None if self.adapters is None else self.adapters.numbers[:tokens]
        if tokens <= TOKENS_MAX:
            return self.layer(x, ids=ids, weights=weights, adapter=adapter)
        out = torch.empty_like(x)
        for begin in range(0, tokens, TOKENS_MAX):
            part = slice(begin, begin + TOKENS_MAX)
            self.layer(x[part], ids=ids[part], weights=weights[part], adapter=None if adapter is None else adapter[part], out=out[part])
        return out
