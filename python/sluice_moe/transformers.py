"""Runs the experts of transformers' models on Sluice (transformers 5.17 and newer).

    import sluice_moe.transformers

    model = AutoModelForCausalLM.from_pretrained(DIR, dtype=torch.bfloat16, device_map="cuda", experts_implementation="sluice")

The import registers the experts implementation "sluice" and a loader that keeps the experts of MXFP4 checkpoints packed. Models with
another implementation are not affected. Experts that cannot run on Sluice raise UnsupportedLayer with the reasons; there is no fallback.

Weights    There is one copy. Packing the experts of a module, at its first call or by pack(model), replaces its Parameters. state_dict()
           still contains them, unpacked bit-exactly on the CPU. Loading a state_dict, moving the model to another device or dtype, or
           selecting another implementation first restores the Parameters; the next call packs them again. Reading a packed Parameter is
           an error, because a change to it would have no effect.
Gradients  There is no backward pass: a call that needs a gradient raises NoGradient.
"""
from __future__ import annotations

import logging

import torch
import transformers
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.quantizers import auto as quantizers
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer

from . import activations
from .errors import CorruptData, IncompatibleEngine, InvalidArgument, NoGradient, UnsupportedLayer, UnsupportedModel
from .layer import MoeLayer
from .module_experts import TOP_K_NAMES, Experts, local, read_experts, top_k_of
from .unpack import unpacked

__all__ = ["NAME", "Mxfp4Experts", "SluiceMxfp4Quantizer", "is_packed", "pack", "unpack"]

NAME = "sluice"
TOKENS_MAX = 8192  # per call of a layer; more tokens take several calls
_VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
_OLDEST, _OLDEST_WITH_RANKS = (5, 17), (5, 23)
_log = logging.getLogger(__name__)
_DTYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}


# ---- Packed modules ----


class _Packing:
    """The MoeLayer of a packed module, and the data that restores its Parameters."""

    def __init__(self, module: torch.nn.Module, experts: Experts, dtype: torch.dtype, top_k: int, options: dict):
        self.experts, self.dtype, self.top_k, self.options = experts, dtype, top_k, options
        weights = {plain: module._parameters[name] for plain, name in experts.names.items()}
        self.trained = {name: module._parameters[name].requires_grad for name in experts.names.values()}
        self.whole = _is_whole(module, weights.values())
        if not self.whole and _VERSION < _OLDEST_WITH_RANKS:
            # Older versions sum over ranks only if they find distributed Parameters, which packing removes.
            raise UnsupportedLayer(f"sluice_moe.transformers: {type(module).__name__}: wanted transformers 5.23 or newer for experts that "
                                   f"several ranks share, found {transformers.__version__}")
        self.types = {name: module._parameters[name].dtype for name in experts.names.values()}
        self.device = local(weights["experts.down"]).device
        self.tokens_max = options.get("tokens_max", TOKENS_MAX)
        if dtype not in _DTYPES:
            raise UnsupportedLayer(f"sluice_moe.transformers: {type(module).__name__}: wanted hidden states in torch.bfloat16 or "
                                   f"torch.float32, found {dtype}")
        fields = {**experts.fields, "x": _DTYPES[dtype], "g": _DTYPES[dtype], "input": "precomputed", "top_k": top_k}
        self.layer = MoeLayer(device=self.device, **{"tokens_max": TOKENS_MAX, **options}, **fields)
        self.layer.load({plain: _rows_of(plain, local(w), experts) for plain, w in weights.items()}, naming="plain")
        # The weights have a fixed address, so CUDA graphs of compiled models need not copy them as they copy inputs.
        torch._dynamo.mark_static_address(self.layer.packed)

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden], ids and weights [tokens, top_k] -> [tokens, hidden]. Ids of other ranks' experts are empty slots."""
        weights = weights.to(torch.float32)
        if x.shape[0] <= self.tokens_max:
            return self.layer(x, ids=ids, weights=weights)
        parts = zip(*(t.split(self.tokens_max) for t in (x, ids, weights)))
        return torch.cat([self.layer(x, ids=ids, weights=weights) for x, ids, weights in parts])

    def parameters(self) -> dict[str, torch.Tensor]:
        """The Parameters of the module, unpacked on the CPU."""
        if not self.whole:
            raise UnsupportedLayer("sluice_moe.transformers: cannot unpack one rank's part of a module: load the model in one process")
        plain = unpacked(self.layer.packed_bytes())
        return {name: _parameter_of(key, plain[key], self.experts).to(self.types[name]) for key, name in self.experts.names.items()}


def _is_whole(module: torch.nn.Module, weights) -> bool:
    """Whether the module holds all its weights, and not one rank's part, which could not be turned into a distributed tensor again. During a call a
    part looks like a plain Parameter; then transformers has wrapped the module's forward()."""
    if any(hasattr(w, "to_local") or not isinstance(w, torch.nn.Parameter) for w in weights):
        return False
    ranks = torch.distributed.get_world_size() if torch.distributed.is_available() and torch.distributed.is_initialized() else 1
    return ranks == 1 or not ("forward" in module.__dict__ or getattr(module, "_is_expert_parallel", False))


def _rows_of(plain: str, weight: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Returns a Parameter in the plain layout, [experts, rows, width]. Biases must be exact in bf16, their type in checkpoints."""
    if plain.endswith("bias"):
        rounded = weight.to(torch.bfloat16)
        if not torch.equal(rounded.to(weight.dtype), weight):
            raise UnsupportedLayer(f"sluice_moe.transformers: {plain}: wanted biases that bf16 represents exactly, found {weight.dtype}")
        return rounded.contiguous()
    if experts.fields["expert_w"] == "e2m1" and not plain.endswith("scale"):
        return weight.reshape(*weight.shape[:2], -1)  # [experts, rows, blocks, 16] of bytes
    return (weight.transpose(1, 2) if experts.transposed else weight).contiguous()


def _parameter_of(plain: str, rows: torch.Tensor, experts: Experts) -> torch.Tensor:
    """The inverse of _rows_of()."""
    if plain.endswith("bias"):
        return rows
    if experts.fields["expert_w"] == "e2m1" and not plain.endswith("scale"):
        return rows.reshape(*rows.shape[:2], -1, 16)
    return rows.transpose(1, 2).contiguous() if experts.transposed else rows


_PACKED_CLASSES: dict[type, type] = {}


def _packed_class(cls: type) -> type:
    """Returns the class of packed modules of type cls: a subclass without the Parameters, which restores them when torch needs them."""
    if cls in _PACKED_CLASSES:
        return _PACKED_CLASSES[cls]

    def forward(self, *args, **kwargs):
        if self.config._experts_implementation != NAME and is_packed(self):
            _restore(self)
        return cls.forward(self, *args, **kwargs)

    def __getattr__(self, name):
        if name in self.sluice.experts.names.values():
            raise AttributeError(f"{cls.__name__}.{name} is packed by Sluice, which keeps no other copy: "
                                 "sluice_moe.transformers.unpack(model) restores it, state_dict() has it")
        return super(packed, self).__getattr__(name)

    def register_parameter(self, name, value):
        if is_packed(self) and name in self.sluice.experts.names.values():
            _restore(self)  # one weight is replaced, so the next call must pack all again
        cls.register_parameter(self, name, value)

    def _apply(self, fn, recurse=True):
        probe = torch.empty(0, dtype=self.sluice.dtype, device=self.sluice.device)
        moved = fn(probe)
        if (moved.device, moved.dtype) != (probe.device, probe.dtype):
            _restore(self)
        return cls._apply(self, fn, recurse)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        cls._save_to_state_dict(self, destination, prefix, keep_vars)
        destination.update({prefix + name: value for name, value in self.sluice.parameters().items()})

    def _load_from_state_dict(self, *args, **kwargs):
        _restore(self)
        cls._load_from_state_dict(self, *args, **kwargs)

    def __reduce_ex__(self, protocol):
        packing = self.sluice
        state = {**self.__dict__, "_parameters": {**self._parameters, **_restored(packing)}}
        del state["sluice"]
        return _rebuild, (cls, state)

    members = dict(forward=forward, __getattr__=__getattr__, register_parameter=register_parameter, _apply=_apply,
                   _save_to_state_dict=_save_to_state_dict, _load_from_state_dict=_load_from_state_dict, __reduce_ex__=__reduce_ex__,
                   __module__=__name__, __doc__=f"{cls.__name__} with its experts packed by Sluice.")
    packed = type("Sluice" + cls.__name__, (cls,), members)
    return _PACKED_CLASSES.setdefault(cls, packed)


def _rebuild(cls: type, state: dict) -> torch.nn.Module:
    module = cls.__new__(cls)
    module.__dict__.update(state)
    return module


def is_packed(module: torch.nn.Module) -> bool:
    """Whether a module's experts are packed."""
    return "sluice" in module.__dict__


def _take(module: torch.nn.Module, experts: Experts, dtype: torch.dtype, top_k: int, options: dict) -> None:
    """Packs a module's Parameters and frees them."""
    packing = _Packing(module, experts, dtype, top_k, options)
    for name in experts.names.values():
        # Set to None instead of deleted, because expert parallelism restores its tensors after a call unless they are None.
        module._parameters[name] = None
    module.__dict__["sluice"] = packing  # bypasses register_module: the state belongs to this module
    module.__class__ = _packed_class(type(module))
    _log.info("%s: %s, packed by Sluice on %s", type(module).__name__, experts.text, packing.device)


def _restored(packing: _Packing) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(value.to(packing.device), requires_grad=packing.trained[name])
            for name, value in packing.parameters().items()}


@torch.compiler.disable(reason="unpacking experts cannot be compiled: call sluice_moe.transformers.unpack(model) first")
def _restore(module: torch.nn.Module) -> None:
    """Restores a packed module's Parameters; does nothing for others."""
    if not is_packed(module):
        return
    parameters = _restored(module.sluice)
    del module.__dict__["sluice"]
    module.__class__ = type(module).__mro__[1]
    module._parameters.update(parameters)


@torch.compiler.disable(reason="packing experts cannot be compiled: call sluice_moe.transformers.pack(model) before the compiled model")
def _pack_at_call(module: torch.nn.Module, dtype: torch.dtype, top_k: int) -> None:
    options = {}
    if is_packed(module):
        options = module.sluice.options
        _restore(module)
    _take(module, _experts_of(module), dtype, top_k, options)


def _experts_of(module: torch.nn.Module) -> Experts:
    return module.read_experts() if isinstance(module, Mxfp4Experts) else read_experts(module)


# ---- transformers' registry ----


def experts_forward(self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                    top_k_weights: torch.Tensor) -> torch.Tensor:
    """The entry in ALL_EXPERTS_FUNCTIONS: hidden_states [tokens, hidden], top_k_index and top_k_weights [tokens, top_k]."""
    if torch.is_grad_enabled():
        _refuse_gradients(self, hidden_states, top_k_weights)
    dtype, top_k = hidden_states.dtype, top_k_index.shape[-1]
    if not is_packed(self) or self.sluice.dtype != dtype or self.sluice.top_k != top_k:
        _pack_at_call(self, dtype, top_k)
    packing = self.sluice
    if hidden_states.device != packing.device:
        raise InvalidArgument(f"sluice_moe.transformers: {type(self).__name__}: wanted hidden states on {packing.device}, where its "
                              f"experts are packed, found them on {hidden_states.device}")
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    y = packing.run(x, top_k_index.reshape(-1, top_k), top_k_weights.reshape(-1, top_k))
    return y.reshape(hidden_states.shape)


def _refuse_gradients(module: torch.nn.Module, *inputs: torch.Tensor) -> None:
    trained = any(module.sluice.trained.values()) if is_packed(module) else any(p.requires_grad for p in module.parameters())
    if trained or any(t.requires_grad for t in inputs):
        raise NoGradient(f"sluice_moe.transformers: {type(module).__name__}: Sluice has no backward pass, and this call needs a gradient: "
                         "call the model under torch.no_grad(), or train with another experts_implementation")


def _expert_modules(model: torch.nn.Module):
    for name, module in model.named_modules():
        if isinstance(module, Mxfp4Experts) or all(hasattr(module, a) for a in ("has_gate", "is_transposed", "is_concatenated", "config")):
            yield name, module


def pack(model: torch.nn.Module, *, tokens_max: int = TOKENS_MAX, kernel: str | None = None, batch_invariant: bool = False) -> int:
    """Packs the experts of all modules of a model with experts_implementation "sluice"; returns the number of modules.

    The first call of a module packs it too. pack() is needed before torch.compile(fullgraph=True), and to set options: `kernel` and
    `batch_invariant` of MoeLayer, and `tokens_max` of one call of a layer (more tokens take several calls; a smaller number takes less
    workspace).
    """
    options, count = {"tokens_max": tokens_max, "kernel": kernel, "batch_invariant": batch_invariant}, 0
    for name, module in _expert_modules(model):
        if (found := module.config._experts_implementation) != NAME:
            raise InvalidArgument(f"sluice_moe.transformers: {name}: wanted experts_implementation={NAME!r}, found {found!r}")
        dtype, top_k = getattr(module.config, "dtype", None) or torch.bfloat16, top_k_of(module)
        if top_k is None:
            raise UnsupportedLayer(f"sluice_moe.transformers: {name}: its config has none of {', '.join(TOP_K_NAMES)}: do not call "
                                   "pack(); the first call packs the module")
        _restore(module)
        _take(module, _experts_of(module), dtype, top_k, options)
        count += 1
    if count == 0:
        raise InvalidArgument(f"sluice_moe.transformers: wanted a model with experts that transformers dispatches, found none in "
                              f"{type(model).__name__}")
    return count


def unpack(model: torch.nn.Module) -> int:
    """Restores the Parameters of all packed experts; returns the number of modules. Their next call packs them again."""
    packed = [module for module in model.modules() if is_packed(module)]
    for module in packed:
        _restore(module)
    return len(packed)


# ---- MXFP4 checkpoints ----


class Mxfp4Experts(torch.nn.Module):
    """gpt-oss's experts with the Parameters of its MXFP4 checkpoints: two e2m1 codes per byte, an e8m0 scale per 32 values."""

    def __init__(self, config, activation: dict, dtype: torch.dtype):
        super().__init__()
        self.config, self.activation = config, activation
        self.num_experts, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        for name, rows, width in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            if width % 32 != 0:
                raise UnsupportedLayer(f"sluice_moe.transformers: {name}: wanted a multiple of 32 columns, found {width}")
            for suffix, shape, kind in (("_blocks", (rows, width // 32, 16), torch.uint8), ("_scales", (rows, width // 32), torch.uint8),
                                        ("_bias", (rows,), dtype)):
                value = torch.empty(self.num_experts, *shape, dtype=kind)
                setattr(self, name + suffix, torch.nn.Parameter(value, requires_grad=False))

    def read_experts(self) -> Experts:
        config = self.config
        experts = local(self.down_proj_blocks).shape[0]
        fields = {"hidden": config.hidden_size, "intermediate": config.intermediate_size, "experts": experts, "expert_w": "e2m1",
                  "up_bias": True, "down_bias": True, **self.activation}
        names = {f"experts.{plain}{a}": f"{name}{b}" for plain, name in (("up", "gate_up_proj"), ("down", "down_proj"))
                 for a, b in (("", "_blocks"), ("_scale", "_scales"), ("_bias", "_bias"))}
        return Experts(fields, names, transposed=False)

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        if (found := self.config._experts_implementation) != NAME:
            raise UnsupportedLayer(f"sluice_moe.transformers: experts_implementation: wanted {NAME!r}, found {found!r}: these experts "
                                   f"are in MXFP4, which only {NAME!r} runs; load the model again for another implementation")
        return experts_forward(self, hidden_states, top_k_index, top_k_weights)


class SluiceMxfp4Quantizer(Mxfp4HfQuantizer):
    """transformers' loader of MXFP4 checkpoints. A model with experts_implementation "sluice" keeps its experts as they are stored; other
    models are loaded by the base class."""

    packs = False
    _environment: tuple = ((), {})

    def validate_environment(self, *args, **kwargs):
        self._environment = (args, kwargs)  # checked later, if Sluice does not run the experts

    def _process_model_before_weight_loading(self, model, **kwargs):
        asked = getattr(model.config.get_text_config(), "_experts_implementation", None) == NAME
        if not asked or self.quantization_config.dequantize:
            super().validate_environment(*self._environment[0], **self._environment[1])
            return super()._process_model_before_weight_loading(model, **kwargs)
        if not self.pre_quantized:
            raise UnsupportedModel("sluice_moe.transformers: wanted a checkpoint with MXFP4 experts, found a checkpoint to quantize while "
                                   "loading")
        self.packs = True
        skipped = self.get_modules_to_not_convert(model, self.quantization_config.modules_to_not_convert, model._keep_in_fp32_modules)
        found = [name for name, module in model.named_modules() if type(module).__name__ == "GptOssExperts"]
        if not found:
            raise UnsupportedModel("sluice_moe.transformers: wanted gpt-oss's experts in an MXFP4 checkpoint, found "
                                   f"{type(model).__name__}")
        for name in found:
            if _is_skipped(name, skipped):
                continue
            module, (parent, _, last) = model.get_submodule(name), name.rpartition(".")
            if (activation := activations.of_module(module, torch.device("cpu"))) is None:
                raise UnsupportedLayer(f"sluice_moe.transformers: {name}: its activation equals none of Sluice's: "
                                       + ", ".join(activations.names(gated=True)))
            with torch.device("meta"):
                packed = Mxfp4Experts(module.config, activation, kwargs.get("dtype") or model.dtype)
            setattr(model.get_submodule(parent), last, packed)
        return None

    def _process_model_after_weight_loading(self, model, **kwargs):
        if not self.packs:
            return super()._process_model_after_weight_loading(model, **kwargs)
        for name, module in model.named_modules():
            if isinstance(module, Mxfp4Experts):
                missing = [n for n, p in module.named_parameters() if not getattr(p, "_is_hf_initialized", False)]
                if missing:
                    raise CorruptData(f"sluice_moe.transformers: {name}: the checkpoint does not have "
                                      + ", ".join(missing))
        if pack(model) and torch.cuda.is_available():
            torch.cuda.empty_cache()  # frees the memory of the unpacked blocks
        return None

    def param_needs_quantization(self, model, param_name, **kwargs):
        return False if self.packs else super().param_needs_quantization(model, param_name, **kwargs)

    def get_weight_conversions(self):
        return [] if self.packs else super().get_weight_conversions()

    def update_weight_conversions(self, weight_conversions, *rest):
        return weight_conversions if self.packs else super().update_weight_conversions(weight_conversions, *rest)

    def get_state_dict_and_metadata(self, model, *rest, **kwargs):
        return (model.state_dict(), {}) if self.packs else super().get_state_dict_and_metadata(model, *rest, **kwargs)

    @property
    def is_compileable(self) -> bool:
        return True if self.packs else super().is_compileable


def _is_skipped(name: str, skipped: list[str]) -> bool:
    """Whether the checkpoint's quantization_config excludes this module."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    return not should_convert_module(name, skipped)


def _register() -> None:
    if _VERSION < _OLDEST:
        raise IncompatibleEngine(f"sluice_moe.transformers: wanted transformers 5.17 or newer, found {transformers.__version__}")
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    current = quantizers.AUTO_QUANTIZER_MAPPING["mxfp4"]
    if current is not Mxfp4HfQuantizer and current.__name__ != SluiceMxfp4Quantizer.__name__:
        raise IncompatibleEngine("sluice_moe.transformers: wanted transformers' own loader of MXFP4 checkpoints, found "
                                 f"{current.__name__} of another plug-in: do not import that plug-in")
    quantizers.AUTO_QUANTIZER_MAPPING["mxfp4"] = SluiceMxfp4Quantizer


_register()
