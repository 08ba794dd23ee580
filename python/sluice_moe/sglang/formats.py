""" The formats of experts: the parameters that SGLang's loaders fill, the same tensors by the plain names of MoeLayer.load(), and the
reasons why a quantization is not supported. Does not import SGLang."""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional

import torch

from sluice_moe.errors import UnsupportedLayer

FP8_BLOCK = 128  # rows and columns per scale
MX_BLOCK = 32  # columns per scale
NV_BLOCK = 16
ONE = {torch.uint8: 127, torch.float8_e8m0fnu: 127, torch.float8_e4m3fn: 0x38}  # the bits of 1 in each type of 8 bits
WHOLE = 1 << 62  # a block without an end
STATIC = "input_scale"  # the parameter of static activations
# Plain name -> SGLang's prefix of the parameters.
STACKS = {"experts.up": "w13", "experts.down": "w2"}


@dataclasses.dataclass(frozen=True)
class Scales:
    """The scales of a weight [experts, rows, width]."""

    suffix: str  # of SGLang's parameter
    loader: str  # how SGLang's loader slices them: a value of FusedMoeWeightScaleSupported
    block: tuple[int, int]  # rows and columns per scale
    dtype: torch.dtype = torch.float32
    plain: str = "_scale"
    inverted: bool = False  # the checkpoint has reciprocals

    def empty(self, experts: int, rows: int, width: int, parts: int) -> torch.Tensor:
        """Scales of 1. `parts`: the weights that the loader stacks in the rows (gate and up)."""
        shape = (experts, -(-rows // self.block[0]), -(-width // self.block[1]))
        if self.loader == "tensor":
            shape = (experts, parts) if parts > 1 else (experts,)
        if self.dtype.itemsize == 1:
            return torch.full(shape, ONE[self.dtype], dtype=torch.uint8).view(self.dtype)
        return torch.ones(shape, dtype=self.dtype)

    def as_plain(self, scales: torch.Tensor, rows: int) -> torch.Tensor:
        """The scales as MoeLayer.load() takes them."""
        if self.dtype is torch.float8_e8m0fnu:
            return scales.view(torch.uint8)
        scales = 1 / scales if self.inverted else scales
        if self.loader == "tensor" and scales.dim() == 2:
            return scales.repeat_interleave(rows // scales.shape[1], 1)
        return scales.squeeze(-1) if self.loader == "channel" else scales


@dataclasses.dataclass(frozen=True)
class Format:
    """Experts in one format: w13 [experts, gate and up, hidden] and w2 [experts, hidden, intermediate]."""

    text: str  # for the log
    fields: Mapping[str, str]  # of the MoeLayer
    codes: torch.dtype
    scales: tuple[Scales, ...] = ()
    values_per_code: int = 1
    bias: torch.dtype = torch.float32
    hidden_multiple: int = 1
    intermediate_multiple: int = 1
    pads: bool = False  # SGLang's loader slices the intermediate size in whole multiples and pads the last rank with zeros
    input_scales: str = ""  # the checkpoint's scales of activations, which are loaded and not used, because activations stay in bf16
    weight: str = "weight"  # the suffix of the codes' parameter

    def padded(self, intermediate: int) -> int:
        """The intermediate size of a rank's parameters."""
        return -(-intermediate // self.intermediate_multiple) * self.intermediate_multiple if self.pads else intermediate

    def reasons(self, hidden: int, intermediate: int) -> list[str]:
        """Why experts of this size do not have this format."""
        sizes = (("a hidden size", hidden, self.hidden_multiple, ""),
                 ("an intermediate size per rank", intermediate, 1 if self.pads else self.intermediate_multiple,
                  ", because scales belong to whole blocks: use fewer tensor parallel ranks"))
        return [f"wanted {what} that is a multiple of {multiple}, found {found}{why}" for what, found, multiple, why in sizes if found % multiple]

    def parameters(self, experts: int, hidden: int, intermediate: int, parts: int,
                   with_bias: bool) -> list[tuple[str, torch.Tensor, dict[str, object]]]:
        """Yields (name, tensor, attributes) of each parameter."""
        out = []
        for stack, rows, width, stacked in (("w13", parts * intermediate, hidden, parts), ("w2", hidden, intermediate, 1)):
            codes = torch.zeros if self.pads else torch.empty
            out.append((f"{stack}_{self.weight}", codes(experts, rows, width // self.values_per_code, dtype=self.codes), {}))
            for scales in self.scales:
                out.append((f"{stack}_{scales.suffix}", scales.empty(experts, rows, width, stacked), {"quant_method": scales.loader}))
            if self.input_scales:
                out.append((f"{stack}_{self.input_scales}", torch.ones((experts, stacked) if stacked > 1 else experts), {"quant_method": "tensor"}))
            if with_bias:
                out.append((f"{stack}_weight_bias", torch.zeros(experts, rows, dtype=self.bias), {}))
        return out

    def fill_dummies(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Makes the values of --load-format dummy valid: SGLang gives scales in e4m3 signs, too."""
        for scales in self.scales:
            if scales.dtype is torch.float8_e4m3fn:
                for stack in STACKS.values():
                    parameters[f"{stack}_{scales.suffix}"].data.view(torch.uint8).bitwise_and_(0x7F)

    def plain(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters, by SGLang's names, as the tensors of MoeLayer.load()."""
        out = {}
        for name, stack in STACKS.items():
            codes = parameters[f"{stack}_{self.weight}"].data
            out[name] = codes.view(torch.uint8) if self.values_per_code > 1 else codes
            for scales in self.scales:
                out[name + scales.plain] = scales.as_plain(parameters[f"{stack}_{scales.suffix}"].data, codes.shape[1])
            if f"{stack}_weight_bias" in parameters:
                out[f"{name}_bias"] = parameters[f"{stack}_weight_bias"].data
        return out


def _fp8(text: str, expert_scales: str, scales: Scales, **more: Any) -> Format:
    return Format(f"FP8 ({text})", {"expert_w": "e4m3", "expert_scales": expert_scales}, torch.float8_e4m3fn, (scales,), **more)


BF16 = Format("bf16", {"expert_w": "bf16"}, torch.bfloat16)
# gpt-oss: two codes to a byte, rows of gate and up interleaved.
MXFP4 = Format("MXFP4", {"expert_w": "e2m1"}, torch.uint8, (Scales("weight_scale", "group", (1, MX_BLOCK), torch.uint8),), values_per_code=2,
               bias=torch.bfloat16, hidden_multiple=MX_BLOCK, intermediate_multiple=MX_BLOCK, pads=True)
# DeepSeek V4: [gate; up].
FP4 = dataclasses.replace(MXFP4, text="MXFP4 (fp8 checkpoint)", codes=torch.int8,
                          scales=(Scales("weight_scale_inv", "block", (1, MX_BLOCK), torch.float8_e8m0fnu),))
FP8_BLOCKS = _fp8("128 x 128 blocks", "blocks", Scales("weight_scale_inv", "block", (FP8_BLOCK, FP8_BLOCK)), intermediate_multiple=FP8_BLOCK)
FP8_TENSORS = _fp8("per tensor", "rows", Scales("weight_scale", "tensor", (WHOLE, WHOLE), plain="_row_scale"))
FP8_CHANNELS = _fp8("per channel", "rows", Scales("weight_scale", "channel", (1, WHOLE), plain="_row_scale"))
MXFP8 = Format("MXFP8", {"expert_w": "e4m3", "expert_scales": "mx"}, torch.float8_e4m3fn,
               (Scales("weight_scale_inv", "block", (1, MX_BLOCK), torch.uint8),), hidden_multiple=MX_BLOCK, intermediate_multiple=MX_BLOCK)
# modelopt: e4m3 scales of blocks, and a scale per matrix. Gate and up keep their own. Kernels take the codes of two blocks of 16.
NVFP4 = Format("NVFP4", {"expert_w": "e2m1", "expert_scales": "nv"}, torch.uint8,
               (Scales("weight_scale", "block", (1, NV_BLOCK), torch.float8_e4m3fn),
                Scales("weight_scale_2", "tensor", (WHOLE, WHOLE), plain="_row_scale")),
               values_per_code=2, hidden_multiple=2 * NV_BLOCK, intermediate_multiple=2 * NV_BLOCK, input_scales=STATIC)
# compressed-tensors: the scale per matrix is a reciprocal.
PACKED_NVFP4 = dataclasses.replace(NVFP4, weight="weight_packed", input_scales="",
                                   scales=(NVFP4.scales[0], dataclasses.replace(NVFP4.scales[1], suffix="weight_global_scale", inverted=True)))
# compressed-tensors' strategy -> format. Its scales of blocks have the same name as other scales.
_STRATEGIES = {"tensor": FP8_TENSORS, "channel": FP8_CHANNELS,
               "block": dataclasses.replace(FP8_BLOCKS, scales=(dataclasses.replace(FP8_BLOCKS.scales[0], suffix="weight_scale"),))}


# ---- The format of a layer, from SGLang's quantization ----


def of_fp8(config: Any, layer: torch.nn.Module, method: Any) -> Format:
    """Fp8Config, also of MXFP8. DeepSeek V4 has FP8 dense layers with MXFP4 experts."""
    if config.is_fp4_experts:
        return _checked(FP4, (not config.dequant_fp4_to_fp8, "wanted fp4 experts as the checkpoint has them, found SGLANG_DSV4_FP4_DEQUANT=1"))
    if config.use_mxfp8:
        return _checked(MXFP8, _serialized(config))
    block = config.weight_block_size
    made = FP8_BLOCKS if block is not None else _with_input_scales(FP8_TENSORS, config.activation_scheme == "static")
    return _checked(made, _serialized(config), _in_blocks(block))


def of_modelopt_fp8(config: Any, layer: torch.nn.Module, method: Any) -> Format:
    """ModelOptFp8Config: a scale per tensor, and static activations."""
    return _checked(_with_input_scales(FP8_TENSORS, True), _serialized(config))


def of_modelopt_fp4(config: Any, prefix: str) -> Format:
    """ModelOptFp4Config."""
    if config.is_layer_excluded(prefix):
        return BF16
    return _checked(NVFP4, (config.is_checkpoint_nvfp4_serialized, "wanted a checkpoint in NVFP4, found a checkpoint to quantize while loading"),
                    (not config.is_awq, "wanted NVFP4 whose inputs have no scales of their own, found NVFP4_AWQ"),
                    (config.group_size == NV_BLOCK, f"wanted a scale per {NV_BLOCK} weights, found one per {config.group_size}"))


def of_modelopt_mixed(config: Any, prefix: str) -> Format:
    """ModelOptMixedPrecisionConfig: an algorithm per layer."""
    algorithm = None if config.is_layer_excluded(prefix) else config._resolve_quant_algo(prefix)
    if algorithm is None:
        return BF16
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        return of_modelopt_fp4(config.nvfp4_config, prefix)
    if algorithm == "FP8":
        return of_modelopt_fp8(config.fp8_config, None, None)
    if algorithm == "MXFP8":
        return of_fp8(config.mxfp8_config, None, None)
    if algorithm in ("FP8_PB_WO", "FP8_BLOCK_SCALES") and hasattr(config, "fp8_block_config"):  # not in 0.5.17
        return of_fp8(config.fp8_block_config, None, None)
    raise UnsupportedLayer(f"wanted experts in FP8, FP8_PB_WO, MXFP8, NVFP4, W4A16_NVFP4 or unquantized, found {algorithm}")


def of_hybrid(config: Any, prefix: str) -> Optional[Format]:
    """HybridFp8NvFp4Config: FP8 with experts in NVFP4. The experts of draft layers that it excludes have the format of the FP8 config."""
    if not config.nvfp4_config.is_layer_excluded(prefix):
        return of_modelopt_fp4(config.nvfp4_config, prefix)
    return of_fp8(config, None, None) if config.is_fp4_experts else None


def of_compressed_tensors(config: Any, layer: torch.nn.Module, method: Any) -> Format:
    """CompressedTensorsConfig. Takes the scheme that it has put into the layer, so that SGLang's loader does not follow the scheme."""
    found = vars(layer).pop("scheme", None) or method
    if type(found).__name__ != "CompressedTensorsW8A8Fp8MoE":
        raise UnsupportedLayer("wanted compressed-tensors experts in FP8 (W8A8), NVFP4 or unquantized, found "
                               f"{type(found).__name__}")
    weights = found.weight_quant
    made = _STRATEGIES[_word(weights.strategy)]
    return _checked(_with_input_scales(made, found.static_input_scales),
                    (weights.num_bits == 8, f"wanted weights of 8 bits, found {weights.num_bits}"), _in_blocks(weights.block_structure))


def of_packed_nvfp4(config: Any, layer: torch.nn.Module, prefix: str) -> Optional[Format]:
    """CompressedTensorsConfig with experts in NVFP4, or None if the experts have another scheme."""
    config._add_fused_moe_to_target_scheme_map()
    schemes = [config.get_scheme_dict(layer, f"{prefix}.0.{projection}") for projection in ("gate_proj", "up_proj", "down_proj")]
    found = [_is_nvfp4(scheme) for scheme in schemes]
    if not any(found):
        return None
    inputs = [scheme.get("input_activations") for scheme in schemes if scheme]
    return _checked(dataclasses.replace(PACKED_NVFP4, input_scales="input_global_scale" if any(inputs) else ""),
                    (all(found), "wanted one scheme for the projections of experts, found NVFP4 beside another"))


def _is_nvfp4(scheme: Optional[Mapping[str, Any]]) -> bool:
    weights = scheme.get("weights") if scheme else None
    return weights is not None and (_word(weights.type), weights.num_bits, weights.group_size) == ("float", 4, NV_BLOCK)


def _word(value: Any) -> Any:
    return getattr(value, "value", value)


def _with_input_scales(made: Format, static: bool) -> Format:
    return dataclasses.replace(made, input_scales=STATIC) if static else made


def _serialized(config: Any) -> tuple[bool, str]:
    return config.is_checkpoint_fp8_serialized, "wanted a checkpoint in FP8, found a checkpoint to quantize while loading"


def _in_blocks(found: Any) -> tuple[bool, str]:
    wanted = [FP8_BLOCK, FP8_BLOCK]
    return found is None or list(found) == wanted, f"wanted a scale per block of {wanted} weights, found a block of {found}"


def _checked(made: Format, *checks: tuple[bool, str]) -> Format:
    """Raises UnsupportedLayer with the reason of each check that failed."""
    reasons = [reason for passed, reason in checks if not passed]
    if reasons:
        raise UnsupportedLayer("; ".join(reasons))
    return made
