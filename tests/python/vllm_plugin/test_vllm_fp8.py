"""FP8 experts (quant_method fp8 and compressed-tensors), loaded by vLLM's own layers and loaders and compared with float64."""
import copy
import dataclasses
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests need vLLM (./dev test-python)")

from sluice_moe.vllm import base_config, compressed_method, config, dummy, method  # noqa: E402
from test_vllm_layers import Given, choice, experts_layer, reload, vllm_config  # noqa: E402,F401

HIDDEN, INSIDE, EXPERTS, BLOCK = 192, 256, 4, 128  # INSIDE is a multiple of BLOCK, HIDDEN is not
SIZES = {"num_experts": EXPERTS, "hidden_size": HIDDEN, "intermediate_size": INSIDE}
FP8, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def of_compressed(strategy: str, *, activations: dict | None = None, **weights) -> dict:
    by = {"tensor": {"strategy": "tensor", "dynamic": False}, "channel": {"strategy": "token", "dynamic": True},
          "block": {"strategy": "group", "group_size": 128, "dynamic": True}}
    args = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": strategy}
    if strategy == "block":
        args["block_structure"] = [128, 128]
    group = {"targets": ["Linear"], "weights": args | weights, "input_activations": {"num_bits": 8, "type": "float", "symmetric": True} | (
        activations or by.get(strategy, by["channel"]))}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": group}}


def of_fp8(**more) -> dict:
    return {"quant_method": "fp8", "activation_scheme": "dynamic"} | more


CHECKPOINTS = {
    "blocks": of_fp8(weight_block_size=[128, 128]), "blocks_e8m0": of_fp8(weight_block_size=[128, 128], scale_fmt="ue8m0", fmt="e4m3"),
    "tensor": of_fp8(), "tensor_static": of_fp8(activation_scheme="static"),
    "ct_block": of_compressed("block"), "ct_channel": of_compressed("channel"), "ct_tensor": of_compressed("tensor")}


def config_of(name: str):
    return config.SluiceConfig.from_config(copy.deepcopy(CHECKPOINTS[name]))


class GivenFp8(Given):
    """Random weights in a checkpoint's form. tensors[expert, matrix] maps the end of a tensor's name to the tensor; dense[expert, matrix] is the weight in float64."""

    def __init__(self, name: str, seed: int = 1):
        draw = torch.Generator().manual_seed(seed)
        self.tensors, self.dense = {}, {}
        for expert in range(EXPERTS):
            for which, rows, width in (("w1", INSIDE, HIDDEN), ("w3", INSIDE, HIDDEN), ("w2", HIDDEN, INSIDE)):
                codes = torch.randn(rows, width, generator=draw).to(FP8)
                blocks = (-(-rows // BLOCK), -(-width // BLOCK))
                shape = blocks if "block" in name else (rows, 1) if "channel" in name else ()
                scales = (0.5 + torch.rand(shape, generator=draw)) / width**0.5
                if "e8m0" in name:
                    scales = scales.log2().round().exp2().to(E8M0)
                elif "channel" in name:
                    scales = scales.bfloat16()
                given = {"weight": codes, "weight_scale_inv" if name.startswith("blocks") else "weight_scale": scales}
                if name in ("tensor_static", "ct_tensor"):
                    given["input_scale"] = torch.tensor(0.25)
                each = scales.double()
                if "block" in name:
                    each = each.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :width]
                self.tensors[expert, which], self.dense[expert, which] = given, codes.double() * each


def load(layer, given: GivenFp8) -> None:
    for (expert, which), tensors in given.tensors.items():
        matrix = "w2" if which == "w2" else "w13"
        for suffix, tensor in tensors.items():
            parameter = getattr(layer, f"{matrix}_{suffix}")
            parameter.weight_loader(parameter, tensor, f"experts.{matrix}_{suffix}", which, expert)
    layer.quant_method.process_weights_after_loading(layer)


def fp8_layer(name: str, prefix: str, **more):
    return experts_layer(config_of(name), prefix, **(SIZES | more))


def compare(layer, given: GivenFp8, *, map_ids=lambda ids: ids, keep=lambda ids: ids, limit=None) -> None:
    x, ids, weights = choice(16, HIDDEN, EXPERTS)
    ids[3, 1] = -1
    got = layer.quant_method.apply(layer, x, weights, map_ids(ids), None, None)
    wanted, bound = given.wanted(x, keep(ids), weights, limit)
    assert got.dtype == torch.bfloat16 and ((got.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_answers(vllm_config, name, limit):  # noqa: F811
    """The scales of gate and up may differ. vLLM's own layers requantize both to the larger scale; Sluice keeps both."""
    layer, given = fp8_layer(name, f"{name}.{limit}", **({"swiglu_limit": limit} if limit else {})), GivenFp8(name)
    load(layer, given)
    made = layer.quant_method
    assert made.kind == ("fp8_blocks" if "block" in name else "fp8_rows") and made.sluice_layer.fields["expert_w"] == "e4m3"
    compare(layer, given, limit=limit)


@pytest.mark.parametrize("name", ["blocks", "ct_channel", "tensor_static"])
def test_weights_are_reloaded_where_they_are(vllm_config, name):  # noqa: F811
    layer, other = fp8_layer(name, f"reload.{name}"), GivenFp8(name, seed=2)
    reload(layer, lambda: load(layer, GivenFp8(name)), lambda: load(layer, other))
    compare(layer, other)


@pytest.mark.parametrize("name", ["blocks", "tensor_static", "ct_channel"])
def test_load_balancing_sees_every_byte_by_expert(vllm_config, name):  # noqa: F811
    layer, given = fp8_layer(name, f"balance.{name}"), GivenFp8(name)
    assert layer.quant_method.supports_eplb
    load(layer, given)
    views = list(layer.get_expert_weights())
    assert sum(v.nbytes for v in views) == layer.quant_method.sluice_layer.weight_bytes
    order = torch.tensor([2, 0, 3, 1])
    for view in views:
        view.copy_(view[order].clone())
    compare(layer, given, map_ids=lambda ids: torch.where(ids < 0, -1, torch.argsort(order)[ids]))


@pytest.mark.parametrize("here", [[2, 3], [3, 0]], ids=str)
@pytest.mark.parametrize("name", ["blocks", "tensor", "ct_channel"])
def test_some_of_the_experts(vllm_config, name, here):  # noqa: F811
    layer, given = fp8_layer(name, f"some.{name}.{here}"), GivenFp8(name)
    whole = layer.quant_method
    expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
    expert_map[torch.tensor(here)] = torch.arange(len(here), dtype=torch.int32)
    for name_of, parameter in list(layer.named_parameters()):
        kept = torch.nn.Parameter(torch.zeros((len(here), *parameter.shape[1:]), dtype=parameter.dtype), requires_grad=False)
        for slot, expert in enumerate(here):
            matrices = [given.tensors[expert, n][name_of.split("_", 1)[1]] for n in (("w1", "w3") if "w13" in name_of else ("w2",))]
            kept.data[slot] = torch.stack(matrices).reshape(kept[slot].shape)
        setattr(layer, name_of, kept)
    layer.register_buffer("_expert_map", expert_map)
    layer.local_num_experts = len(here)
    whole.process_weights_after_loading(layer)
    assert whole.maps_ids == (here == [3, 0])
    compare(layer, given, keep=lambda ids: torch.where(torch.isin(ids, torch.tensor(here)), ids, -1))


@pytest.mark.parametrize("name", ["blocks", "tensor", "ct_channel", "ct_block"])
def test_outputs_of_tensor_parallel_ranks_add_up(vllm_config, name):  # noqa: F811
    given, outputs = GivenFp8(name), []
    x, ids, weights = choice(16, HIDDEN, EXPERTS)
    for rank in range(2):
        layer = fp8_layer(name, f"slice.{name}.{rank}", tp_size=2)
        assert layer.moe_config.intermediate_size_per_partition == INSIDE // 2
        layer.moe_config.moe_parallel_config = dataclasses.replace(layer.moe_config.moe_parallel_config, tp_rank=rank)
        load(layer, given)
        outputs.append(layer.quant_method.apply(layer, x, weights, ids, None, None).double())
    wanted, bound = given.wanted(x, ids, weights, None)
    rounded = sum(part.abs() for part in outputs) * 2.0**-8  # each rank rounds its output to bf16
    assert ((sum(outputs) - wanted).abs() <= bound + rounded).all()


@pytest.mark.parametrize("name", ["blocks", "tensor_static", "ct_channel"])
def test_dummy_weights_are_filled(vllm_config, monkeypatch, name):  # noqa: F811
    from vllm.model_executor.model_loader.weight_utils import initialize_single_dummy_weight

    monkeypatch.setattr(vllm_config.load_config, "load_format", "dummy")
    layer = fp8_layer(name, f"dummy.{name}")
    for parameter in layer.parameters():
        initialize_single_dummy_weight(parameter)
    layer.quant_method.process_weights_after_loading(layer)
    x, ids, weights = choice(16, HIDDEN, EXPERTS)
    out = layer.quant_method.apply(layer, x, weights, ids, None, None).float()
    assert torch.isfinite(out).all() and 0.05 < out.std() < 5


def test_dummy_weights_come_from_the_seed():
    def layer(codes):
        tensors = {"w13_weight": codes.clone(), "w13_weight_scale_inv": torch.zeros(1, 1, 1), "w2_weight": torch.ones(1, 2, 2).to(FP8)}
        return types.SimpleNamespace(**{n: types.SimpleNamespace(data=t) for n, t in tensors.items()})

    zeros = torch.full((1, 64, 64), -2.0**-9).to(FP8)
    first, second, other = layer(zeros), layer(zeros), layer(zeros)
    for one, prefix in ((first, "a"), (second, "a"), (other, "b")):
        dummy.fill(one, ["w13_weight", "w13_weight_scale_inv", "w2_weight"], 7, prefix)
    codes = first.w13_weight.data.float()
    assert torch.equal(codes, second.w13_weight.data.float()) and not torch.equal(codes, other.w13_weight.data.float())
    dense = codes * first.w13_weight_scale_inv.data
    assert torch.isfinite(dense).all() and abs(dense.std() * 64**0.5 - 1) < 0.1
    assert (first.w2_weight.data.float() == 1).all()  # without scales


# ---- vLLM's layers around the experts ----


@pytest.mark.parametrize("name", ["blocks", "tensor", "ct_channel"])
def test_other_layers_stay_with_vllm(vllm_config, name):  # noqa: F811
    """Other layers get the method of vLLM's own config, or its error if this machine has no kernel."""
    from vllm.model_executor.layers.linear import RowParallelLinear
    from vllm.model_executor.layers.quantization import get_quantization_config

    given = copy.deepcopy(CHECKPOINTS[name])
    theirs = get_quantization_config(given["quant_method"]).from_config(given)
    ours = config_of(name)
    assert isinstance(ours, type(theirs)) and ours.sluice and ours.get_name() == theirs.get_name()
    layer = RowParallelLinear(HIDDEN, HIDDEN, bias=False, prefix="model.layers.0.self_attn.o_proj")

    def said(by):
        try:
            return type(by.get_quant_method(layer, layer.prefix))
        except (NotImplementedError, RuntimeError, ValueError) as error:
            return str(error)

    assert said(ours) == said(theirs) and "Unquantized" not in str(said(theirs))


def test_experts_that_a_checkpoint_leaves_in_bf16(vllm_config):  # noqa: F811
    skip = "model.layers.3.mlp.experts"
    ours = config.SluiceConfig.from_config(of_fp8(weight_block_size=[128, 128], modules_to_not_convert=[skip]))
    assert experts_layer(ours, skip, **SIZES).quant_method.kind == "bf16"
    assert experts_layer(ours, "model.layers.4.mlp.experts", **SIZES).quant_method.kind == "fp8_blocks"
    ours = config.SluiceConfig.from_config(of_compressed("channel") | {"ignore": ["re:.*layers.3.mlp.experts.*"]})
    assert experts_layer(ours, skip + "x", **SIZES).quant_method.kind == "bf16"
    assert experts_layer(ours, "model.layers.4.mlp.expertsx", **SIZES).quant_method.kind == "fp8_rows"


@pytest.mark.parametrize("dtype, kind", [("fp4", "mxfp4"), ("fp8", "fp8_blocks")])
def test_deepseek_v4_has_experts_in_mxfp4_or_fp8(vllm_config, dtype, kind):  # noqa: F811
    hf = types.SimpleNamespace(model_type="deepseek_mtp", architectures=["DeepSeekV4MTPModel"], expert_dtype=dtype,
                               quantization_config=of_fp8(weight_block_size=[128, 128], scale_fmt="ue8m0"))
    assert config.SluiceConfig.override_quantization_method(hf.quantization_config, "sluice", hf) == "sluice"
    ours = config.SluiceConfig.from_config(hf.quantization_config)
    assert type(ours).__name__ == "SluiceDeepseekV4Config" and ours.get_name() == "deepseek_v4_fp8"
    ours._resolved_expert_dtype = dtype  # vLLM reads it from the current model
    assert experts_layer(ours, f"v4.{dtype}", **SIZES).quant_method.kind == kind


# ---- Refusals ----


def test_checkpoints_that_are_read():
    def kind(given, **more):
        return base_config.kind_of(given, types.SimpleNamespace(**({"model_type": "qwen3_moe"} | more)))

    assert kind(of_fp8()) == "fp8" and kind(of_fp8(weight_block_size=[128, 128], fmt="e4m3")) == "fp8"
    assert kind(of_fp8(), model_type="deepseek_v3") == "fp8"
    assert kind(of_fp8(), model_type="deepseek_mtp", architectures=["DeepSeekMTPModel"]) == "fp8"
    assert kind(of_compressed("channel")) == "compressed"


@pytest.mark.parametrize("more, reasons", [
    ({"weight_block_size": [64, 64]}, ["wanted weight_block_size [128, 128], or none (a scale per tensor), found [64, 64]"]),
    ({"fmt": "e5m2", "weight_block_size": [1, 128]}, ["wanted fmt e4m3, found e5m2", "found [1, 128]"]),
    ({"store_dtype": "mxfp4"}, ["wanted experts in FP8, found store_dtype mxfp4"]),
    ({"quant_method": "fbgemm_fp8"}, ["found quant_method 'fbgemm_fp8' of model_type 'qwen3_moe'"]),
    ({"quant_method": "awq"}, ["found quant_method 'awq' of model_type 'qwen3_moe'"])])
def test_checkpoints_that_are_refused(more, reasons):
    with pytest.raises(ValueError, match="^--quantization sluice: ") as why:
        config.SluiceConfig.override_quantization_method(of_fp8(**more), "sluice", types.SimpleNamespace(model_type="qwen3_moe"))
    assert all(reason in str(why.value) for reason in reasons)


def test_deepseek_v4_1_is_refused():
    with pytest.raises(ValueError, match="found quant_method 'fp8' of model_type 'deepseek_v41'"):
        config.SluiceConfig.override_quantization_method(of_fp8(), "sluice", types.SimpleNamespace(model_type="deepseek_v41"))


@pytest.mark.parametrize("given, reasons", [
    (of_compressed("channel", type="int"), ["wanted weights in FP8 (8 bits, by tensor, channel or block), ", "found type int of 8 bits by channel"]),
    (of_compressed("group", group_size=32), ["found type float of 8 bits by group of 32"]),
    (of_compressed("group", group_size=32, num_bits=4, type="int", symmetric=False),
     ["found type int of 4 bits by group of 32", "wanted static symmetric weights, found dynamic=False symmetric=False"]),
    (of_compressed("block", block_structure=[64, 128]), ["wanted block_structure [128, 128], found [64, 128]"]),
    (of_compressed("channel", activations={"type": "int", "strategy": "token", "dynamic": True}),
     ["wanted activations in floats or unquantized, found type int"])])
def test_schemes_that_are_refused(vllm_config, given, reasons):  # noqa: F811
    with pytest.raises(ValueError, match="^--quantization sluice: scheme: ") as why:
        experts_layer(config.SluiceConfig.from_config(given), "scheme", **SIZES, activation="swiglustep")
    assert all(reason in str(why.value) for reason in [*reasons, "wanted an activation of"])


@pytest.mark.parametrize("ignored", ["gate_proj", "down_proj"])
def test_projections_of_different_schemes_are_refused(vllm_config, ignored):  # noqa: F811
    given = of_compressed("channel") | {"ignore": [f"re:.*{ignored}$"]}
    with pytest.raises(ValueError, match="^--quantization sluice: mixed: wanted one scheme for the projections of experts, found 2$"):
        experts_layer(config.SluiceConfig.from_config(given), "mixed", **SIZES)
    assert compressed_method.why_not_schemes([{"weights": None}]) == [f"{compressed_method.WANTED}, found no scheme of weights"]


@pytest.mark.parametrize("name, more, reason", [
    ("blocks", {"intermediate_size": 192}, "wanted slices of fp8_blocks experts in multiples of 128, found 192"),
    ("ct_block", {"intermediate_size": 384, "tp_size": 2}, "wanted slices of fp8_blocks experts in multiples of 128, found 192"),
    ("tensor", {"activation": "swigluoai"}, "wanted fp8_rows experts with the rows of gate before those of up, found swigluoai"),
    ("ct_channel", {"has_bias": True}, "wanted experts without biases, because vLLM's compressed-tensors experts have none")])
def test_layers_that_are_refused(vllm_config, name, more, reason):  # noqa: F811
    with pytest.raises(ValueError, match="^--quantization sluice: refused: ") as why:
        fp8_layer(name, "refused", **more)
    assert reason in str(why.value)


def test_a_scale_per_row():
    assert method.one_per_row(torch.tensor([[1.0, 2.0]]), 4).tolist() == [[1, 1, 2, 2]]
    assert method.one_per_row(torch.tensor([[[1.0], [2.0]]]), 2).tolist() == [[1, 2]]
    assert method.one_per_row(torch.tensor([1.0, 2.0]), 2).tolist() == [1, 2]
