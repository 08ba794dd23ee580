""" The formats of experts: the parameters that SGLang's loaders fill, the same tensors by the plain names of MoeLayer.load(), and the
reasons why a quantization is not supported. Does not import SGLang."""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional

import torch

from sluice_moe.errors import UnsupportedLayer

FP8_BLOCK = 128  # rows and columns per scale
MX_BLOCK = 32  # columns per scale
ONE = 127  # 2^0 in e8m0
WHOLE = 1 << 62  # a block without an end
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

    def empty(self, experts: int, rows: int, width: int, parts: int) -> torch.Tensor:
        """Scales of 1. `parts`: the weights that the loader stacks in the rows (gate and up)."""
        shape = (experts, -(-rows // self.block[0]), -(-width // self.block[1]))
        if self.loader == "tensor":
            shape = (experts, parts) if parts > 1 else (experts,)
        if self.dtype.itemsize == 1:
            return torch.full(shape, ONE, dtype=torch.uint8).view(self.dtype)
        return torch.ones(shape, dtype=self.dtype)

    def as_plain(self, scales: torch.Tensor, rows: int) -> torch.Tensor:
        """The scales as MoeLayer.load() takes them."""
        if self.dtype.itemsize == 1:
            return scales.view(torch.uint8)
        if self.loader == "tensor" and scales.dim() == 2:
            return scales.repeat_interleave(rows // scales.shape[1], 1)
        return scales.squeeze(-1) if self.loader == "channel" else scales


@dataclasses.dataclass(frozen=True)
class Format:
    """Experts in one format: w13 [experts, gate and up, hidden] and w2 [experts, hidden, intermediate]."""

    text: str  # for the log
    fields: Mapping[str, str]  # of the MoeLayer
    codes: torch.dtype
    scales: Optional[Scales] = None
    values_per_code: int = 1
    bias: torch.dtype = torch.float32
    hidden_multiple: int = 1
    intermediate_multiple: int = 1
    pads: bool = False  # SGLang's loader slices the intermediate size in whole multiples and pads the last rank with zeros
    input_scales: bool = False  # the checkpoint has scales of activations, which are loaded and not used, because activations stay in bf16

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
            out.append((f"{stack}_weight", codes(experts, rows, width // self.values_per_code, dtype=self.codes), {}))
            if self.scales:
                by = {"quant_method": self.scales.loader}
                out.append((f"{stack}_{self.scales.suffix}", self.scales.empty(experts, rows, width, stacked), by))
                if self.input_scales:
                    out.append((f"{stack}_input_scale", torch.ones(experts), by))
            if with_bias:
                out.append((f"{stack}_weight_bias", torch.zeros(experts, rows, dtype=self.bias), {}))
        return out

    def plain(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters, by SGLang's names, as the tensors of MoeLayer.load()."""
        out = {}
        for name, stack in STACKS.items():
            codes = parameters[f"{stack}_weight"].data
            out[name] = codes.view(torch.uint8) if self.values_per_code > 1 else codes
            if self.scales:
                out[name + self.scales.plain] = self.scales.as_plain(parameters[f"{stack}_{self.scales.suffix}"].data, codes.shape[1])
            if f"{stack}_weight_bias" in parameters:
                out[f"{name}_bias"] = parameters[f"{stack}_weight_bias"].data
        return out


def _fp8(text: str, expert_scales: str, scales: Scales, **more: Any) -> Format:
    return Format(f"FP8 ({text})", {"expert_w": "e4m3", "expert_scales": expert_scales}, torch.float8_e4m3fn, scales, **more)


BF16 = Format("bf16", {"expert_w": "bf16"}, torch.bfloat16)
# gpt-oss: two codes to a byte, rows of gate and up interleaved.
MXFP4 = Format("MXFP4", {"expert_w": "e2m1"}, torch.uint8, Scales("weight_scale", "group", (1, MX_BLOCK), torch.uint8), values_per_code=2,
               bias=torch.bfloat16, hidden_multiple=MX_BLOCK, intermediate_multiple=MX_BLOCK, pads=True)
# DeepSeek V4: [gate; up].
FP4 = dataclasses.replace(MXFP4, text="MXFP4 (fp8 checkpoint)", codes=torch.int8,
                          scales=Scales("weight_scale_inv", "block", (1, MX_BLOCK), torch.float8_e8m0fnu))
FP8_BLOCKS = _fp8("128 x 128 blocks", "blocks", Scales("weight_scale_inv", "block", (FP8_BLOCK, FP8_BLOCK)), intermediate_multiple=FP8_BLOCK)
FP8_TENSORS = _fp8("per tensor", "rows", Scales("weight_scale", "tensor", (WHOLE, WHOLE), plain="_row_scale"))
FP8_CHANNELS = _fp8("per channel", "rows", Scales("weight_scale", "channel", (1, WHOLE), plain="_row_scale"))
# compressed-tensors' strategy -> format. Its scales of blocks have the same name as other scales.
_STRATEGIES = {"tensor": FP8_TENSORS, "channel": FP8_CHANNELS,
               "block": dataclasses.replace(FP8_BLOCKS, scales=dataclasses.replace(FP8_BLOCKS.scales, suffix="weight_scale"))}


# ---- The format of a layer, from SGLang's quantization ----


def of_fp8(config: Any, layer: torch.nn.Module, method: Any) -> Format:
    """Fp8Config. DeepSeek V4 has FP8 dense layers with MXFP4 experts."""
    if config.is_fp4_experts:
        return _checked(FP4, (not config.dequant_fp4_to_fp8, "wanted fp4 experts as the checkpoint has them, found SGLANG_DSV4_FP4_DEQUANT=1"))
    block = config.weight_block_size
    made = FP8_BLOCKS if block is not None else dataclasses.replace(FP8_TENSORS, input_scales=config.activation_scheme == "static")
    if config.use_mxfp8:
        return _checked(made, (False, "wanted FP8 with float32 scales, found MXFP8"))
    return _checked(made, _serialized(config), _in_blocks(block))


def of_modelopt_fp8(config: Any, layer: torch.nn.Module, method: Any) -> Format:
    """ModelOptFp8Config: a scale per tensor, and static activations."""
    return _checked(dataclasses.replace(FP8_TENSORS, input_scales=True), _serialized(config))


def of_compressed_tensors(config: Any, layer: torch.nn.Module, method: Any) -> Format:
    """CompressedTensorsConfig. Takes the scheme that it has put into the layer, so that SGLang's loader does not follow the scheme."""
    found = vars(layer).pop("scheme", None) or method
    if type(found).__name__ != "CompressedTensorsW8A8Fp8MoE":
        raise UnsupportedLayer(f"wanted compressed-tensors experts in FP8 (W8A8) or unquantized, found {type(found).__name__}")
    weights = found.weight_quant
    made = _STRATEGIES[getattr(weights.strategy, "value", weights.strategy)]
    return _checked(dataclasses.replace(made, input_scales=found.static_input_scales),
                    (weights.num_bits == 8, f"wanted weights of 8 bits, found {weights.num_bits}"), _in_blocks(weights.block_structure))


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
