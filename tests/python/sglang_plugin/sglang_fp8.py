"""FP8 experts of SGLang on Sluice, through SGLang's own quantization configs and weight loaders, compared with float64 of the dequantized
weights. test_sglang.py runs this file in one process per version."""

from __future__ import annotations

import dataclasses
from typing import Callable

import pytest
import torch

import moe_bounds
import sglang_engine
from sglang_layers import engine, fused_moe, generator, load_experts, load_pieces, random, routed, zeros  # noqa: F401  engine is a fixture

HIDDEN, WIDTH, EXPERTS, TOP_K = 192, 256, 8, 3  # SGLang needs slices of whole blocks inside an expert, not of the hidden size
PROJECTIONS = {"gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}
# Name -> quantization config, strategy of its weights, whether activations have static scales, which Sluice does not use.
CONFIGS = {"fp8 blocks": ("block", False), "fp8 tensors": ("tensor", False), "fp8 static": ("tensor", True), "modelopt": ("tensor", True),
           "compressed blocks": ("block", False), "compressed tensors": ("tensor", False), "compressed static": ("tensor", True),
           "compressed channels": ("channel", False)}
every_config = pytest.mark.parametrize("name", CONFIGS)


def quantization(name: str, **more: object) -> object:
    """The config that SGLang makes of a checkpoint's quantization_config."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp8Config

    strategy, static = CONFIGS[name]
    if name == "modelopt":
        return ModelOptFp8Config(is_checkpoint_fp8_serialized=True, exclude_modules=[], packed_modules_mapping={})
    if name.startswith("fp8"):
        given = {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic"}
        return Fp8Config.from_config(given | ({"weight_block_size": [128, 128]} if strategy == "block" else {}) | more)
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": False}
    if strategy == "block":
        weights["block_structure"] = [128, 128]
    inputs = {"tensor": {"strategy": "tensor"}, "channel": {"strategy": "token"}, "block": {"strategy": "group", "group_size": 128}}[strategy]
    inputs |= {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": not static}
    group = {"targets": ["Linear"], "weights": weights | more, "input_activations": inputs}
    return CompressedTensorsConfig.from_config({"format": "float-quantized", "config_groups": {"group_0": group}, "ignore": ["lm_head"]})


def scales_of(strategy: str, rows: int, width: int, seed: int) -> torch.Tensor:
    """Float32 scales as in a checkpoint, of different magnitudes."""
    shape = {"block": (-(-rows // 128), -(-width // 128)), "channel": (rows, 1), "tensor": (1,)}[strategy]
    return (torch.rand(EXPERTS, *shape, generator=generator(seed), dtype=torch.float32) + 0.5) / 16


def dequantized(codes: torch.Tensor, scales: torch.Tensor, strategy: str) -> torch.Tensor:
    """Codes [experts, rows, width] and the scales of a checkpoint -> weights in float64."""
    each = scales.double()
    if strategy == "block":
        each = each.repeat_interleave(128, 1)[:, : codes.shape[1]].repeat_interleave(128, 2)[:, :, : codes.shape[2]]
    return codes.double() * (each if strategy != "tensor" else each[..., None])


@dataclasses.dataclass
class Weights:
    """Random experts: a checkpoint by SGLang's names, and the values in float64."""

    checkpoint: dict[str, torch.Tensor]
    values: dict[str, torch.Tensor]

    def experts(self, width: slice = slice(None), act: str = "swiglu") -> moe_bounds.Experts:
        gate, up, down = (self.values[name] for name in PROJECTIONS)
        rows = [gate[:, width], up[:, width]] if act == "swiglu" else [gate[:, width]]
        stacked = torch.cat(rows, 1)
        return moe_bounds.Experts(stacked, down[..., width], zeros(*stacked.shape[:2]), zeros(*down.shape[:2]), act)


def weights_of(name: str, seed: int = 1) -> Weights:
    strategy, static = CONFIGS[name]
    suffix = "weight_scale_inv" if name == "fp8 blocks" else "weight_scale"
    out = Weights({}, {})
    for i, (projection, (rows, width)) in enumerate(PROJECTIONS.items()):
        codes = (torch.randn(EXPERTS, rows, width, generator=generator(seed + 10 * i), dtype=torch.float32) * 2).to(torch.float8_e4m3fn)
        scales = scales_of(strategy, rows, width, seed + 10 * i + 1)
        out.checkpoint |= {f"{projection}.weight": codes, f"{projection}.{suffix}": scales}
        if static:
            out.checkpoint[f"{projection}.input_scale"] = torch.full((EXPERTS, 1), 0.01 * (i + 1))
        out.values[projection] = dequantized(codes, scales, strategy)
    return out


def layer_of(config: object, **more: object) -> torch.nn.Module:
    return fused_moe(quant_config=config, **{"hidden_size": HIDDEN, "intermediate_size": WIDTH, **more})


def assert_sluice(layer: torch.nn.Module, text: str) -> None:
    assert type(layer.quant_method).__module__ == "sluice_moe.sglang.experts"
    assert layer.quant_method.format.text.startswith(text)


@pytest.mark.parametrize("tokens", [1, 17])
@every_config
@torch.no_grad()
def test_experts_are_the_dequantized_ones(name: str, tokens: int) -> None:
    weights, layer = weights_of(name), layer_of(quantization(name))
    load_experts(layer, weights.checkpoint)
    assert_sluice(layer, "FP8")
    assert layer.w13_weight.numel() == 0, "SGLang's parameters were not freed"
    x = random(tokens, HIDDEN, seed=tokens)
    found, ids, routing = routed(layer, x, seed=5)
    moe_bounds.assert_within(found, *moe_bounds.layer(weights.experts(), x.double(), ids, routing, 0))


@every_config
@torch.no_grad()
def test_codes_and_scales_arrive_unchanged(name: str) -> None:
    """Compares bits, because a wrong last bit of a scale may not change the outputs."""
    weights, layer = weights_of(name), layer_of(quantization(name))
    load_pieces(layer, weights.checkpoint)
    found = layer.quant_method.format.plain(dict(layer.named_parameters()))
    strategy, suffix = CONFIGS[name][0], "weight_scale_inv" if name == "fp8 blocks" else "weight_scale"
    for plain, projections in (("experts.up", ["gate_proj", "up_proj"]), ("experts.down", ["down_proj"])):
        codes = torch.cat([weights.checkpoint[f"{one}.weight"] for one in projections], 1)
        assert torch.equal(found[plain].view(torch.uint8), codes.view(torch.uint8))
        scales = [weights.checkpoint[f"{one}.{suffix}"] for one in projections]
        if strategy == "block":
            assert torch.equal(found[f"{plain}_scale"], torch.cat(scales, 1))
            continue
        rows = found[f"{plain}_row_scale"]
        wanted = [one.reshape(EXPERTS, -1).expand(EXPERTS, PROJECTIONS[projection][0]) for one, projection in zip(scales, projections)]
        assert torch.equal(rows if rows.dim() == 2 else rows[:, None].expand(EXPERTS, codes.shape[1]), torch.cat(wanted, 1))


@pytest.mark.parametrize("name", ["fp8 blocks", "fp8 tensors", "compressed channels"])
@torch.no_grad()
def test_experts_without_gates(name: str) -> None:
    weights, layer = weights_of(name), layer_of(quantization(name), activation="relu2", is_gated=False)
    load_experts(layer, {n: t for n, t in weights.checkpoint.items() if not n.startswith("up_proj")})
    x = random(7, HIDDEN, seed=3)
    found, ids, routing = routed(layer, x, seed=4)
    moe_bounds.assert_within(found, *moe_bounds.layer(weights.experts(act="relu2"), x.double(), ids, routing, 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e8m0fnu])
@torch.no_grad()
def test_scales_of_blocks_in_other_types(dtype: torch.dtype) -> None:
    """Qwen's checkpoints have bf16 scales, some others powers of two."""
    weights, layer = weights_of("fp8 blocks"), layer_of(quantization("fp8 blocks"))
    for projection in PROJECTIONS:
        at = f"{projection}.weight_scale_inv"
        weights.checkpoint[at] = weights.checkpoint[at].to(dtype)
        weights.values[projection] = dequantized(weights.checkpoint[f"{projection}.weight"], weights.checkpoint[at].float(), "block")
    load_experts(layer, weights.checkpoint)
    x = random(5, HIDDEN, seed=3)
    found, ids, routing = routed(layer, x, seed=4)
    moe_bounds.assert_within(found, *moe_bounds.layer(weights.experts(), x.double(), ids, routing, 0))


def ranks_add_up(make: Callable[[], torch.nn.Module], weights: Weights, form: str, part_of: Callable) -> None:
    """make() gives a rank's layer, part_of(rank, ids) the columns and the ids of its part."""
    hidden = weights.values["down_proj"].shape[1]
    x, found, bound = random(5, hidden, seed=7), zeros(5, hidden), zeros(5, hidden)
    for rank in range(2):
        with sglang_engine.rank(**{form: (rank, 2)}):
            layer = make()
            load_experts(layer, weights.checkpoint)
            y, ids, routing = routed(layer, x, seed=4)
        found += y.double()
        columns, mine = part_of(rank, ids)
        bound += moe_bounds.layer(weights.experts(*columns), x.double(), mine, routing, 0)[1]
    moe_bounds.assert_within(found, moe_bounds.layer(weights.experts(), x.double(), ids, routing, 0)[0], bound)


def tensor_ranks_add_up(make: Callable[[], torch.nn.Module], weights: Weights) -> None:
    half = weights.values["down_proj"].shape[2] // 2
    ranks_add_up(make, weights, "tp", lambda rank, ids: ((slice(rank * half, rank * half + half),), ids))


def expert_ranks_add_up(make: Callable[[], torch.nn.Module], weights: Weights) -> None:
    ranks_add_up(make, weights, "ep", lambda rank, ids: ((), torch.where(ids // (EXPERTS // 2) == rank, ids, -1)))


@pytest.mark.parametrize("name", ["fp8 blocks", "fp8 static", "compressed channels"])
@torch.no_grad()
def test_tensor_parallel_ranks_add_up(name: str) -> None:
    tensor_ranks_add_up(lambda: layer_of(quantization(name)), weights_of(name))


@pytest.mark.parametrize("name", ["fp8 blocks", "compressed tensors", "compressed channels"])
@torch.no_grad()
def test_expert_parallel_ranks_add_up(name: str) -> None:
    expert_ranks_add_up(lambda: layer_of(quantization(name)), weights_of(name))


@pytest.mark.parametrize("name", ["fp8 blocks", "fp8 static", "compressed channels"])
@torch.no_grad()
def test_weights_are_updated_in_place(name: str) -> None:
    first, second, layer = weights_of(name), weights_of(name, seed=90), layer_of(quantization(name))
    load_experts(layer, first.checkpoint)
    x = random(4, HIDDEN, seed=4)
    before, pointer = routed(layer, x, seed=1)[0], layer.quant_method.layer.packed.data_ptr()
    half = dict(list(second.checkpoint.items())[:2])
    with pytest.raises(RuntimeError, match="wanted all weights of the layer again, found "):
        load_experts(layer, half)
    assert torch.equal(routed(layer, x, seed=1)[0], before), "half of an update changed the output"
    load_pieces(layer, second.checkpoint)  # the last piece packs
    found, ids, routing = routed(layer, x, seed=1)
    assert layer.quant_method.layer.packed.data_ptr() == pointer and layer.w13_weight.numel() == 0
    moe_bounds.assert_within(found, *moe_bounds.layer(second.experts(), x.double(), ids, routing, 0))


@every_config
@torch.no_grad()
def test_dummy_weights(name: str) -> None:
    """--load-format dummy."""
    from sglang.srt.model_loader.weight_utils import initialize_dummy_weights

    layer = layer_of(quantization(name))
    initialize_dummy_weights(layer)
    layer.quant_method.process_weights_after_loading(layer)
    x = random(3, HIDDEN, seed=3)
    found = routed(layer, x, seed=4)[0]
    assert torch.isfinite(found).all() and found.shape == x.shape


# ---- Beside SGLang's own layers ----


@torch.no_grad()
def test_a_models_checkpoint() -> None:
    """Qwen3-MoE built and loaded by SGLang's own code: dense layers stay SGLang's FP8, experts and gates are Sluice's."""
    from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
    from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM
    from transformers import Qwen3MoeConfig
    from sluice_moe.sglang import gates

    hidden = 256
    config = Qwen3MoeConfig(hidden_size=hidden, moe_intermediate_size=128, intermediate_size=256, num_experts=4, num_experts_per_tok=2,
                            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=128, vocab_size=64,
                            norm_topk_prob=True, decoder_sparse_step=1)
    quantized = quantization("fp8 blocks", modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate"])
    with sglang_engine.rank():
        model = Qwen3MoeForCausalLM(config, quant_config=quantized)
    block = model.model.layers[0]
    assert isinstance(block.self_attn.qkv_proj.quant_method, Fp8LinearMethod)
    prefix, checkpoint = "model.layers.0.mlp.", {}
    values: dict[str, list[torch.Tensor]] = {}
    for expert in range(4):
        for i, (projection, shape) in enumerate({"gate_proj": (128, hidden), "up_proj": (128, hidden), "down_proj": (hidden, 128)}.items()):
            codes = random(1, *shape, seed=10 * expert + i).float().to(torch.float8_e4m3fn)
            scales = (random(1, -(-shape[0] // 128), -(-shape[1] // 128), seed=100 + 10 * expert + i).float().abs() + 0.5) / 16
            name = f"{prefix}experts.{expert}.{projection}.weight"
            checkpoint |= {name: codes[0], f"{name}_scale_inv": scales[0]}
            values.setdefault(projection, []).append(dequantized(codes, scales, "block")[0])
    router = random(4, hidden, seed=7, scale=0.15)
    model.load_weights((checkpoint | {f"{prefix}gate.weight": router}).items())
    experts = block.mlp.experts
    experts.quant_method.process_weights_after_loading(experts)
    gates.take_over(model)
    assert gates.runs(block.mlp.gate)
    assert_sluice(experts, "FP8 (128 x 128 blocks)")
    x = random(9, hidden, seed=3).double()
    scores = x @ router.double().T
    off = moe_bounds.BF16 * scores.abs() + (hidden + 4) * moe_bounds.F32 * (x.abs() @ router.double().abs().T)
    routing, ids = scores.softmax(-1).topk(2)
    up = torch.cat([torch.stack(values["gate_proj"]), torch.stack(values["up_proj"])], 1)
    made = moe_bounds.Experts(up, torch.stack(values["down_proj"]), zeros(4, 256), zeros(4, hidden), "swiglu")
    wanted, bound = moe_bounds.layer(made, x, ids, routing / routing.sum(-1, keepdim=True), moe_bounds.softmax_off(off))
    ordered = scores.sort(descending=True).values
    clear = (ordered[:, 1] - ordered[:, 2]) > 2 * off.amax(1)
    assert clear.sum() >= 5, "wanted tokens whose choice rounding cannot change"
    moe_bounds.assert_within(block.mlp(x.bfloat16())[clear], wanted[clear], bound[clear])


@pytest.mark.parametrize("name", ["fp8 blocks", "modelopt", "compressed channels"])
def test_layers_that_the_checkpoint_leaves_in_bf16(name: str) -> None:
    config = quantization(name)
    prefix = "model.layers.0.mlp.experts"
    for ignored in ("ignored_layers", "exclude_modules"):
        if hasattr(config, ignored):
            setattr(config, ignored, [prefix])
    if name.startswith("compressed"):
        config.ignore = [f"{prefix}.0.{projection}" for projection in PROJECTIONS]
    assert_sluice(layer_of(config), "bf16")


# ---- Refusals ----


@pytest.mark.parametrize("name, more, reason", [
    ("fp8 blocks", {"weight_block_size": [64, 128]}, r"wanted a scale per block of \[128, 128\] weights, found a block of \[64, 128\]"),
    ("compressed blocks", {"block_structure": [128, 64]}, r"wanted a scale per block of \[128, 128\] weights, found a block of \[128, 64\]"),
    ("compressed channels", {"num_bits": 4}, "wanted weights of 8 bits, found 4"),
])
def test_other_formats_are_refused(name: str, more: dict, reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"sluice: model.layers.0.mlp.experts: {reason}"):
        layer_of(quantization(name, **more))


def test_int4_is_refused_by_its_scheme() -> None:
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = CompressedTensorsConfig.from_config({"format": "pack-quantized", "config_groups": {"group_0": group}, "ignore": []})
    with pytest.raises(RuntimeError, match=r"wanted compressed-tensors experts in FP8 \(W8A8\), NVFP4 or unquantized, found CompressedTensorsWNA16"):
        layer_of(config)


def test_quantizing_while_loading_is_refused() -> None:
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    with pytest.raises(RuntimeError, match="experts: wanted a checkpoint in FP8, found a checkpoint to quantize while loading"):
        layer_of(Fp8Config(is_checkpoint_fp8_serialized=False, activation_scheme="dynamic"))


def test_slices_of_parts_of_blocks_are_refused_with_every_reason() -> None:
    with pytest.raises(RuntimeError, match="experts: wanted an intermediate size per rank that is a multiple of 128, found 64, because scales belong "
                                           "to whole blocks: use fewer tensor parallel ranks; wanted bfloat16"):
        with sglang_engine.rank(tp=(1, 4)):
            layer_of(quantization("fp8 blocks"), params_dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.bfloat16])
@torch.no_grad()
def test_weights_of_another_type_are_refused(dtype: torch.dtype) -> None:
    weights, layer = weights_of("fp8 blocks"), layer_of(quantization("fp8 blocks"))
    broken = weights.checkpoint | {"gate_proj.weight": weights.checkpoint["gate_proj.weight"].float().to(dtype)}
    with pytest.raises(RuntimeError, match=f"experts: wanted weights in torch.float8_e4m3fn, found {dtype}"):
        load_experts(layer, broken)


@pytest.mark.parametrize("wrong", [0.0, float("nan")])
@torch.no_grad()
def test_scales_that_are_no_scales_are_refused(wrong: float) -> None:
    weights, layer = weights_of("fp8 blocks"), layer_of(quantization("fp8 blocks"))
    weights.checkpoint["down_proj.weight_scale_inv"][2, 1, 1] = wrong
    with pytest.raises(RuntimeError, match="model.layers.0.mlp.experts: .*experts.down_scale: expert 2, row 128"):
        load_experts(layer, weights.checkpoint)
