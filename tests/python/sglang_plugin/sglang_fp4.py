"""Experts in NVFP4 and MXFP8 of SGLang on Sluice, through SGLang's own quantization configs and weight loaders, compared with float64 of the
dequantized weights. test_sglang.py runs this file in one process per version."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import moe_bounds
import sglang_engine
from sglang_fp8 import Weights, assert_sluice, expert_ranks_add_up, tensor_ranks_add_up
from sglang_layers import engine, fused_moe, generator, load_experts, load_pieces, random, routed  # noqa: F401  engine is a fixture

HIDDEN, WIDTH, EXPERTS, TOP_K = 96, 64, 8, 3
PREFIX = "model.layers.0.mlp.experts"
PROJECTIONS = {"gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Form:
    """How a kind of checkpoint names its tensors."""

    text: str = "NVFP4"
    codes: str = "weight"
    scale: str = "weight_scale_2"  # of a matrix
    inputs: str = "input_scale"


PACKED = Form(codes="weight_packed", scale="weight_global_scale", inputs="input_global_scale")
FORMS = {"modelopt": Form(), "modelopt nested": Form(), "modelopt w4a16": Form(inputs=""), "mixed": Form(), "hybrid": Form(),
         "compressed": PACKED, "compressed w4a16": dataclasses.replace(PACKED, inputs=""), "mxfp8": Form("MXFP8"), "mixed mxfp8": Form("MXFP8")}
every_form = pytest.mark.parametrize("name", FORMS)


def quantization(name: str, **more: object) -> object:
    """The config that SGLang makes of a checkpoint's quantization_config."""
    from sglang.srt.layers.quantization import modelopt_quant
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    if name == "mxfp8":
        return Fp8Config.from_config({"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]} | more)
    if name.startswith("mixed"):
        algorithm = "MXFP8" if name == "mixed mxfp8" else "NVFP4"
        layers = {f"{PREFIX}.{expert}.{projection}": {"quant_algo": algorithm} for expert in range(EXPERTS) for projection in PROJECTIONS}
        return modelopt_quant.ModelOptMixedPrecisionConfig.from_config(
            {"quant_method": "modelopt_mixed", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "exclude_modules": []} | more)
    algorithm = "W4A16_NVFP4" if name.endswith("w4a16") and sglang_engine.VERSION != "0.5.17" else "NVFP4"
    flat = {"quant_method": "modelopt_fp4", "quant_algo": algorithm, "group_size": 16, "ignore": ["lm_head"]} | more
    if name == "hybrid":
        dense = Fp8Config.from_config({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})
        return modelopt_quant.HybridFp8NvFp4Config(dense, modelopt_quant.ModelOptFp4Config.from_config(flat))
    if name == "modelopt nested":
        del flat["quant_method"], flat["ignore"]
        return modelopt_quant.ModelOptFp4Config.from_config({"quantization": flat | {"exclude_modules": ["lm_head"], "kv_cache_quant_algo": "FP8"}})
    if name.startswith("modelopt"):
        return modelopt_quant.ModelOptFp4Config.from_config(flat)
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16, "dynamic": False}
    inputs = None if name.endswith("w4a16") else weights | {"dynamic": "local"}
    group = {"targets": ["Linear"], "weights": weights | more, "input_activations": inputs}
    return CompressedTensorsConfig.from_config({"format": "nvfp4-pack-quantized", "config_groups": {"group_0": group}, "ignore": ["lm_head"]})


def nvfp4(form: Form, rows: int, width: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    low, high = (torch.randint(0, 16, (EXPERTS, rows, width // 2), generator=generator(seed + i)) for i in range(2))
    blocks = (torch.rand(EXPERTS, rows, width // 16, generator=generator(seed + 2), dtype=torch.float32) * 20 + 1).to(torch.float8_e4m3fn)
    whole = (torch.rand(EXPERTS, 1, generator=generator(seed + 3), dtype=torch.float32) + 0.5) / 256
    given = {form.codes: (low | high << 4).to(torch.uint8), "weight_scale": blocks, form.scale: whole}
    if form.scale == "weight_global_scale":  # a reciprocal; both divisions round to float32
        given[form.scale] = 1 / whole
        whole = 1 / given[form.scale]
    if form.inputs:
        given[form.inputs] = torch.full((EXPERTS, 1), 0.01 * (seed % 7 + 1))
    values = torch.cat([E2M1, -E2M1])[torch.stack([low, high], -1).flatten(-2)]
    return given, values * blocks.double().repeat_interleave(16, -1) * whole.double()[..., None]


def mxfp8(rows: int, width: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    codes = (torch.randn(EXPERTS, rows, width, generator=generator(seed), dtype=torch.float32) * 2).to(torch.float8_e4m3fn)
    scales = torch.randint(120, 126, (EXPERTS, rows, width // 32), generator=generator(seed + 1), dtype=torch.int64)
    values = codes.double() * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)
    return {"weight": codes, "weight_scale_inv": scales.to(torch.uint8)}, values


def weights_of(name: str, seed: int = 1) -> Weights:
    form, out = FORMS[name], Weights({}, {})
    for i, (projection, (rows, width)) in enumerate(PROJECTIONS.items()):
        at = seed + 10 * i
        tensors, out.values[projection] = mxfp8(rows, width, at) if form.text == "MXFP8" else nvfp4(form, rows, width, at)
        out.checkpoint |= {f"{projection}.{suffix}": tensor for suffix, tensor in tensors.items()}
    return out


def layer_of(config: object, **more: object) -> torch.nn.Module:
    return fused_moe(quant_config=config, **{"hidden_size": HIDDEN, "intermediate_size": WIDTH, **more})


def check(layer: torch.nn.Module, experts: moe_bounds.Experts, tokens: int = 7) -> None:
    x = random(tokens, HIDDEN, seed=tokens)
    found, ids, routing = routed(layer, x, seed=5)
    moe_bounds.assert_within(found, *moe_bounds.layer(experts, x.double(), ids, routing, 0))


@pytest.mark.parametrize("tokens", [1, 17])
@every_form
@torch.no_grad()
def test_experts_are_the_dequantized_ones(name: str, tokens: int) -> None:
    """Gate and up keep their own scales."""
    weights, layer = weights_of(name), layer_of(quantization(name))
    load_experts(layer, weights.checkpoint)
    assert_sluice(layer, FORMS[name].text)
    assert not any(parameter.numel() for parameter in layer.parameters()), "SGLang's parameters were not freed"
    check(layer, weights.experts(), tokens)


@pytest.mark.parametrize("name", ["modelopt", "mixed", "mxfp8"])
@torch.no_grad()
def test_experts_without_gates(name: str) -> None:
    """Nemotron 3."""
    weights, layer = weights_of(name), layer_of(quantization(name), activation="relu2", is_gated=False)
    load_experts(layer, {n: t for n, t in weights.checkpoint.items() if not n.startswith("up_proj")})
    check(layer, weights.experts(act="relu2"))


@pytest.mark.parametrize("name", ["modelopt", "compressed", "mxfp8"])
@torch.no_grad()
def test_tensor_parallel_ranks_add_up(name: str) -> None:
    tensor_ranks_add_up(lambda: layer_of(quantization(name)), weights_of(name))


@pytest.mark.parametrize("name", ["modelopt", "compressed", "mxfp8"])
@torch.no_grad()
def test_expert_parallel_ranks_add_up(name: str) -> None:
    expert_ranks_add_up(lambda: layer_of(quantization(name)), weights_of(name))


@pytest.mark.parametrize("name", ["modelopt", "compressed", "mxfp8"])
@torch.no_grad()
def test_weights_are_updated_in_place(name: str) -> None:
    first, second, layer = weights_of(name), weights_of(name, seed=90), layer_of(quantization(name))
    load_experts(layer, first.checkpoint)
    pointer = layer.quant_method.layer.packed.data_ptr()
    load_pieces(layer, second.checkpoint)  # the last piece packs
    assert layer.quant_method.layer.packed.data_ptr() == pointer
    check(layer, second.experts())


@every_form
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


@pytest.mark.parametrize("name", ["modelopt", "mixed", "hybrid", "compressed", "mxfp8"])
def test_layers_that_the_checkpoint_leaves_unquantized(name: str) -> None:
    """The hybrid checkpoint's other layers are in FP8."""
    config = quantization(name)
    for ignored in ("ignored_layers", "exclude_modules"):
        if hasattr(config, ignored):
            setattr(config, ignored, [PREFIX])
    if name == "compressed":
        config.ignore = [f"{PREFIX}.0.{projection}" for projection in PROJECTIONS]
    if name == "hybrid":
        config.ignored_layers, config.nvfp4_config.exclude_modules = [], [PREFIX]
    assert_sluice(layer_of(config, **({"intermediate_size": 128} if name == "hybrid" else {})), "FP8" if name == "hybrid" else "bf16")


@torch.no_grad()
def test_a_models_checkpoint() -> None:
    """Qwen3-MoE built and loaded by SGLang's own code, with only its experts in NVFP4."""
    from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=WIDTH, intermediate_size=128, num_experts=EXPERTS, num_experts_per_tok=TOP_K,
                            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=64, vocab_size=64, decoder_sparse_step=1)
    quantized = quantization("modelopt", ignore=["lm_head", "model.layers.0.self_attn*", "model.layers.0.mlp.gate"], packed_modules_mapping={})
    with sglang_engine.rank():
        model = Qwen3MoeForCausalLM(config, quant_config=quantized)
    weights = weights_of("modelopt")
    checkpoint = {f"{PREFIX}.{expert}.{name}": tensor[expert] for name, tensor in weights.checkpoint.items() for expert in range(EXPERTS)}
    model.load_weights(checkpoint.items())
    experts = model.model.layers[0].mlp.experts
    experts.quant_method.process_weights_after_loading(experts)
    assert_sluice(experts, "NVFP4")
    check(experts, weights.experts())


def test_sglang_keeps_the_flag_for_mxfp8() -> None:
    """For other names SGLang chooses one of its own backends. SGLang 0.5.17 has no names of plug-ins."""
    from sglang.srt.server_args import MXFP8_MOE_RUNNER_BACKEND_CHOICES
    from sluice_moe.sglang import compat

    assert (compat.BACKEND in MXFP8_MOE_RUNNER_BACKEND_CHOICES) == compat.VERSIONS[sglang_engine.VERSION].names


# ---- Refusals ----


@pytest.mark.parametrize("name, more, reason", [
    ("modelopt", {"quant_algo": "NVFP4_AWQ"}, "wanted NVFP4 whose inputs have no scales of their own, found NVFP4_AWQ"),
    ("modelopt", {"group_size": 32}, "wanted a scale per 16 weights, found one per 32"),
    ("modelopt", {"quant_algo": "FP8"}, "wanted a checkpoint in NVFP4, found a checkpoint to quantize while loading"),
    ("mixed", {"quantized_layers": {f"{PREFIX}.0.gate_proj": {"quant_algo": "INT4"}}},
     "wanted experts in FP8, FP8_PB_WO, MXFP8, NVFP4, W4A16_NVFP4 or unquantized, found INT4")])
def test_other_forms_are_refused(name: str, more: dict, reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"sluice: {PREFIX}: {reason}"):
        layer_of(quantization(name, **more))


def test_projections_of_different_schemes_are_refused() -> None:
    config = quantization("compressed")
    config.ignore = [f"{PREFIX}.0.down_proj"]
    with pytest.raises(RuntimeError, match=f"{PREFIX}: wanted one scheme for the projections of experts, found NVFP4 beside another"):
        layer_of(config)


@pytest.mark.parametrize("name", ["modelopt", "compressed", "mxfp8"])
def test_slices_of_parts_of_blocks_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"{PREFIX}: wanted an intermediate size per rank that is a multiple of 32, found 16, because"):
        with sglang_engine.rank(tp=(1, 4)):
            layer_of(quantization(name))


@pytest.mark.parametrize("name, broken", [("modelopt", "down_proj.weight"), ("mixed", "up_proj.weight"), ("mxfp8", "down_proj.weight_scale_inv")])
@torch.no_grad()
def test_tensors_of_another_type_are_refused(name: str, broken: str) -> None:
    """For example a projection in FP8 beside others in NVFP4. SGLang would convert the values."""
    weights, layer = weights_of(name), layer_of(quantization(name))
    weights.checkpoint[broken] = weights.checkpoint[broken].float().to(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError, match=f"{PREFIX}: wanted weights in torch.uint8, found torch.float8_e4m3fn"):
        load_experts(layer, weights.checkpoint)


@torch.no_grad()
def test_scales_may_be_stored_as_e8m0() -> None:
    weights, layer = weights_of("mxfp8"), layer_of(quantization("mxfp8"))
    for projection in PROJECTIONS:
        at = f"{projection}.weight_scale_inv"
        weights.checkpoint[at] = weights.checkpoint[at].view(torch.float8_e8m0fnu)
    load_experts(layer, weights.checkpoint)
    check(layer, weights.experts())


@pytest.mark.parametrize("name, broken, wrong", [("modelopt", "weight_scale_2", float("nan")), ("compressed", "weight_global_scale", 0.0),
                                                 ("compressed", "weight_global_scale", float("nan"))])
@torch.no_grad()
def test_scales_that_are_no_scales_are_refused(name: str, broken: str, wrong: float) -> None:
    weights, layer = weights_of(name), layer_of(quantization(name))
    weights.checkpoint[f"down_proj.{broken}"][2] = wrong
    with pytest.raises(RuntimeError, match=f"{PREFIX}: .*experts.down_scale: expert 2, row 0: wanted a finite scale, found"):
        load_experts(layer, weights.checkpoint)
