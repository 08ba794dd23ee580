"""NVFP4, MXFP4 and MXFP8 experts, and FP8 experts of ModelOpt, loaded by vLLM's own layers and loaders and compared with float64."""
import copy
import dataclasses
import inspect
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests need vLLM (./dev test-python)")

from sluice_moe.vllm import base_config, choose, compressed_method, config, dummy, quark_method  # noqa: E402
from test_vllm_layers import VALUES, Given, choice, experts_layer, vllm_config  # noqa: E402,F401
from vllm.model_executor.layers.fused_moe import RoutedExperts  # noqa: E402

HIDDEN, INSIDE, EXPERTS = 192, 128, 4
SIZES = {"num_experts": EXPERTS, "hidden_size": HIDDEN, "intermediate_size": INSIDE}
FP8 = torch.float8_e4m3fn


def of_modelopt(algo: str, **more) -> dict:
    return {"quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"]} | more


def of_compressed(form: str, *, activations: dict | None = None, **weights) -> dict:
    args = {"nvfp4": {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}, "mxfp4": {"num_bits": 4, "strategy": "group", "group_size": 32},
            "mxfp8": {"num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}}[form]
    args = {"type": "float", "symmetric": True, "dynamic": False} | args | weights
    group = {"targets": ["Linear"], "weights": args, "input_activations": activations}
    packed = {"mxfp8": "mxfp8-quantized"}.get(form, f"{form}-pack-quantized")
    return {"quant_method": "compressed-tensors", "format": packed, "ignore": ["lm_head"], "config_groups": {"group_0": group}}


def of_quark(**weights) -> dict:
    group = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": False} | weights,
             "input_tensors": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": True},
             "output_tensors": None, "bias": None}
    return {"quant_method": "quark", "export": {"kv_cache_group": [], "pack_method": "reorder"}, "exclude": ["lm_head"],
            "global_quant_config": group, "layer_quant_config": {}, "layer_type_quant_config": {}}


OF_ACTIVATIONS = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
CHECKPOINTS = {
    "nvfp4": of_modelopt("NVFP4", group_size=16), "nvfp4_a16": of_modelopt("w4a16_nvfp4", group_size=16),
    "nvfp4_nested": {"quant_method": "modelopt_fp4", "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                                                                      "exclude_modules": ["lm_head"]}},
    "ct_nvfp4": of_compressed("nvfp4", activations=OF_ACTIVATIONS), "ct_nvfp4_a16": of_compressed("nvfp4"),
    "mxfp8": of_modelopt("MXFP8"), "mxfp8_minimax": {"quant_method": "mxfp8", "ignored_layers": ["lm_head"]}, "ct_mxfp8": of_compressed("mxfp8"),
    "ct_mxfp4": of_compressed("mxfp4"), "quark_mxfp4": of_quark(), "fp8": of_modelopt("FP8")}
OF_KINDS = {"nvfp4": "nvfp4", "mxfp8": "mxfp8", "mxfp4": "mxfp4_groups", "fp8": "fp8_rows"}
EACH = ("nvfp4", "ct_nvfp4", "mxfp8", "ct_mxfp8", "ct_mxfp4", "quark_mxfp4", "fp8")  # one of each of the plug-in's methods


UP_NAME = inspect.signature(RoutedExperts.__init__).parameters["ckpt_up_proj_name"]
# The names of matrices of experts without a gate; older versions take no None.
NO_GATE = {"ckpt_names": ("up_proj", "down_proj", None if "None" in str(UP_NAME.annotation) else "")}


def form_of(name: str) -> str:
    return next(form for form in ("nvfp4", "mxfp8", "mxfp4", "fp8") if form in name)


def config_of(name: str):
    return config.SluiceConfig.from_config(copy.deepcopy(CHECKPOINTS[name]))


def fp4_layer(name: str, prefix: str, **more):
    return experts_layer(config_of(name), prefix, **(SIZES | more))


class GivenFp4(Given):
    """Random weights in a checkpoint's form. tensors[expert, matrix] maps the end of a tensor's name to the tensor; dense[expert, matrix] is the
    weight in float64. gated=False: experts without w3, whose activation is relu2."""

    def __init__(self, name: str, seed: int = 1, gated: bool = True):
        self.gated, self.form, draw = gated, form_of(name), torch.Generator().manual_seed(seed)
        self.tensors, self.dense = {}, {}
        for expert in range(EXPERTS):
            for which, rows, width in (("w1", INSIDE, HIDDEN), ("w3", INSIDE, HIDDEN), ("w2", HIDDEN, INSIDE)):
                if which != "w3" or gated:
                    # The scales of gate and up differ.
                    size = {"w1": 0.5, "w3": 1.5, "w2": 1.0}[which] * (1 + torch.rand((), generator=draw)) / width**0.5
                    self.tensors[expert, which], self.dense[expert, which] = self.matrix(name, rows, width, size, draw)

    def matrix(self, name: str, rows: int, width: int, size: torch.Tensor, draw) -> tuple[dict, torch.Tensor]:
        is_fp4 = "fp4" in name
        if is_fp4:
            codes = torch.randint(0, 256, (rows, width // 2), generator=draw, dtype=torch.uint8)
            dense = torch.stack([VALUES[(codes & 15).long()], VALUES[(codes >> 4).long()]], -1).flatten(-2)
            size = size / 3  # of codes
        else:
            codes = torch.randn(rows, width, generator=draw).to(FP8)
            dense = codes.double()
        given = {"weight_packed" if is_fp4 and name.startswith("ct") else "weight": codes}
        if self.form == "fp8":
            return given | {"weight_scale": size, "input_scale": torch.tensor(0.25)}, dense * size.double()
        block = 16 if self.form == "nvfp4" else 32
        spread = 0.5 + torch.rand(rows, width // block, generator=draw)
        if self.form != "nvfp4":
            scales = (spread * size).log2().round()
            dense = dense * torch.exp2(scales.double()).repeat_interleave(block, -1)
            return given | {"weight_scale": (scales + 127).to(torch.uint8)}, dense
        scales = (spread * 8).to(FP8)
        dense = dense * scales.double().repeat_interleave(block, -1)
        if name.startswith("ct"):  # a divisor
            by = (8 / size).reshape(1)
            given |= {"weight_global_scale": by} | ({} if "a16" in name else {"input_global_scale": torch.tensor([900.0])})
            return given | {"weight_scale": scales}, dense / by.double()
        by = size / 8
        given |= {"weight_scale_2": by} | ({} if "a16" in name else {"input_scale": torch.tensor(0.25)})
        return given | {"weight_scale": scales}, dense * by.double()

    def wanted(self, x, ids, weights, limit):
        if self.gated:
            return super().wanted(x, ids, weights, limit)
        out, bound = torch.zeros(x.shape, dtype=torch.float64), torch.zeros(x.shape, dtype=torch.float64)
        for t in range(x.shape[0]):
            for expert, weight in zip(ids[t].tolist(), weights[t].double()):
                if expert >= 0:
                    inside = (self.dense[expert, "w1"] @ x[t].double()).relu() ** 2
                    answer = self.dense[expert, "w2"] @ inside
                    out[t] += weight * answer
                    bound[t] += weight * 2.0**-8 * (self.dense[expert, "w2"].abs() @ inside + answer.abs())
        return out, bound + out.abs() * 2.0**-8


def fill(layer, given: GivenFp4) -> None:
    """Loads a checkpoint's tensors as vLLM's models do."""
    for (expert, which), tensors in given.tensors.items():
        matrix = "w2" if which == "w2" else "w13"
        for suffix, tensor in tensors.items():
            parameter = getattr(layer, f"{matrix}_{suffix}")
            parameter.weight_loader(parameter, tensor, f"experts.{matrix}_{suffix}", which, expert)


def load(layer, given: GivenFp4) -> None:
    fill(layer, given)
    layer.quant_method.process_weights_after_loading(layer)


def compare(layer, given: GivenFp4, *, map_ids=lambda ids: ids, keep=lambda ids: ids, limit=None) -> None:
    x, ids, weights = choice(16, HIDDEN, EXPERTS)
    ids[3, 1] = -1
    got = layer.quant_method.apply(layer, x, weights, map_ids(ids), None, None)
    wanted, bound = given.wanted(x, keep(ids), weights, limit)
    assert got.dtype == torch.bfloat16 and ((got.double() - wanted).abs() <= bound).all()
    assert wanted.std() > 0.05  # far from zero, compared with the bounds


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_answers(vllm_config, name, limit):  # noqa: F811
    """The scales of gate and up differ. vLLM's own layers requantize both to the larger scale, or take gate's for both; Sluice keeps both."""
    layer, given = fp4_layer(name, f"{name}.{limit}", **({"swiglu_limit": limit} if limit else {})), GivenFp4(name)
    load(layer, given)
    assert layer.quant_method.kind == OF_KINDS[form_of(name)]
    left = {n for n, _ in layer.named_parameters() if "input_scale" not in n}
    assert left == {"w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"}
    compare(layer, given, limit=limit)


@pytest.mark.parametrize("name", EACH)
def test_experts_without_a_gate(vllm_config, monkeypatch, name):  # noqa: F811
    """As in Nemotron 3. vLLM has them on GPUs alone, so its check of the device is answered for it."""
    import vllm.model_executor.layers.fused_moe.config as moe

    monkeypatch.setattr(moe, "current_platform", types.SimpleNamespace(is_cuda_alike=lambda: True, fp8_dtype=moe.current_platform.fp8_dtype))
    layer, given = fp4_layer(name, f"no_gate.{name}", activation="relu2_no_mul", **NO_GATE), GivenFp4(name, gated=False)
    load(layer, given)
    assert layer.quant_method.sluice_layer.fields["act"] == "relu2"
    compare(layer, given)


@pytest.mark.parametrize("name", EACH)
def test_weights_are_reloaded_where_they_are(vllm_config, name):  # noqa: F811
    """vLLM creates the parameters of the checkpoint again, which have other names than the packed weights, loads them and has them packed."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload, record_metadata_for_reloading

    layer, other = fp4_layer(name, f"reload.{name}"), GivenFp4(name, seed=2)
    record_metadata_for_reloading(layer)
    load(layer, GivenFp4(name))
    packed = {n: p.data_ptr() for n, p in layer.named_parameters()}
    initialize_layerwise_reload(layer)
    fill(layer, other)
    finalize_layerwise_reload(layer, vllm_config.model_config)
    assert {n: p.data_ptr() for n, p in layer.named_parameters()} == packed
    compare(layer, other)


@pytest.mark.parametrize("name", EACH)
def test_load_balancing_sees_every_byte_by_expert(vllm_config, name):  # noqa: F811
    layer, given = fp4_layer(name, f"balance.{name}"), GivenFp4(name)
    assert layer.quant_method.supports_eplb
    load(layer, given)
    views = list(layer.get_expert_weights())
    assert sum(v.nbytes for v in views) == layer.quant_method.sluice_layer.weight_bytes
    order = torch.tensor([2, 0, 3, 1])
    for view in views:
        view.copy_(view[order].clone())
    compare(layer, given, map_ids=lambda ids: torch.where(ids < 0, -1, torch.argsort(order)[ids]))


@pytest.mark.parametrize("here", [[2, 3], [3, 0]], ids=str)
@pytest.mark.parametrize("name", EACH)
def test_some_of_the_experts(vllm_config, name, here):  # noqa: F811
    """vLLM's loader keeps the experts of this rank."""
    layer, given = fp4_layer(name, f"some.{name}.{here}"), GivenFp4(name)
    expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
    expert_map[torch.tensor(here)] = torch.arange(len(here), dtype=torch.int32)
    for parameter in layer.parameters():
        parameter.data = parameter.data[: len(here)].clone()
    layer.register_buffer("_expert_map", expert_map)
    layer.local_num_experts = len(here)
    layer._map_global_expert_id_to_local_expert_id = lambda expert: int(expert_map[expert])
    load(layer, given)
    assert layer.quant_method.maps_ids == (here == [3, 0])
    compare(layer, given, keep=lambda ids: torch.where(torch.isin(ids, torch.tensor(here)), ids, -1))


@pytest.mark.parametrize("name", EACH)
def test_outputs_of_tensor_parallel_ranks_add_up(vllm_config, name):  # noqa: F811
    given, outputs = GivenFp4(name), []
    x, ids, weights = choice(16, HIDDEN, EXPERTS)
    for rank in range(2):
        layer = fp4_layer(name, f"slice.{name}.{rank}", tp_size=2)
        assert layer.moe_config.intermediate_size_per_partition == INSIDE // 2
        layer.moe_config.moe_parallel_config = dataclasses.replace(layer.moe_config.moe_parallel_config, tp_rank=rank)
        load(layer, given)
        outputs.append(layer.quant_method.apply(layer, x, weights, ids, None, None).double())
    wanted, bound = given.wanted(x, ids, weights, None)
    rounded = sum(part.abs() for part in outputs) * 2.0**-8  # each rank rounds its output to bf16
    assert ((sum(outputs) - wanted).abs() <= bound + rounded).all()


@pytest.mark.parametrize("name", EACH)
def test_dummy_weights_are_filled(vllm_config, monkeypatch, name):  # noqa: F811
    from vllm.model_executor.model_loader.weight_utils import initialize_single_dummy_weight

    monkeypatch.setattr(vllm_config.load_config, "load_format", "dummy")
    layer = fp4_layer(name, f"dummy.{name}")
    for parameter in layer.parameters():
        initialize_single_dummy_weight(parameter)
    layer.quant_method.process_weights_after_loading(layer)
    x, ids, weights = choice(16, HIDDEN, EXPERTS)
    out = layer.quant_method.apply(layer, x, weights, ids, None, None).float()
    assert torch.isfinite(out).all() and 0.05 < out.std() < 5


@pytest.mark.parametrize("name", ["nvfp4", "ct_nvfp4", "mxfp8"])
def test_weights_that_follow_dummy_weights_are_kept(vllm_config, monkeypatch, name):  # noqa: F811
    """As in reinforcement learning, where an engine starts with dummy weights."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload, record_metadata_for_reloading

    monkeypatch.setattr(vllm_config.load_config, "load_format", "dummy")
    layer, given = fp4_layer(name, f"after_dummy.{name}"), GivenFp4(name)
    record_metadata_for_reloading(layer)
    layer.quant_method.process_weights_after_loading(layer)
    initialize_layerwise_reload(layer)
    fill(layer, given)
    finalize_layerwise_reload(layer, vllm_config.model_config)
    compare(layer, given)


def test_dummy_scales_of_matrices_and_blocks():
    tensors = {"w13_weight": torch.zeros(1, 64, 32, dtype=torch.uint8), "w13_weight_scale": torch.zeros(1, 64, 4).to(FP8),
               "w13_weight_scale_2": torch.zeros(1, 2), "w2_weight": torch.zeros(1, 64, 64).to(FP8),
               "w2_weight_scale": torch.full((1, 64, 2), 255, dtype=torch.uint8)}
    layer = types.SimpleNamespace(**{n: types.SimpleNamespace(data=t) for n, t in tensors.items()})
    dummy.fill(layer, list(tensors), 7, "a")
    codes = tensors["w13_weight"]
    dense = torch.stack([VALUES[(codes & 15).long()], VALUES[(codes >> 4).long()]], -1).flatten(-2) * tensors["w13_weight_scale_2"][0, 0]
    assert (tensors["w13_weight_scale"].float() == 1).all() and abs(dense.std() * 64**0.5 - 1) < 0.1
    dense = tensors["w2_weight"].double() * torch.exp2(tensors["w2_weight_scale"].double() - 127)[..., :1]
    assert torch.isfinite(dense).all() and abs((dense.std() * 64**0.5).log2()) < 0.6  # scales are powers of two


# ---- vLLM's layers around the experts ----


@pytest.mark.parametrize("name", EACH)
def test_other_layers_stay_with_vllm(vllm_config, name):  # noqa: F811
    """Other layers get the method of vLLM's own config, or its error if this machine has no kernel."""
    from vllm.model_executor.layers.linear import RowParallelLinear
    from vllm.model_executor.layers.quantization import get_quantization_config

    given, ours = copy.deepcopy(CHECKPOINTS[name]), config_of(name)
    named = {"nvfp4": "modelopt_fp4", "mxfp8": "modelopt_mxfp8"}.get(name, given["quant_method"])
    theirs = get_quantization_config(named).from_config(given)
    assert isinstance(ours, type(theirs)) and ours.sluice and ours.get_name() == theirs.get_name()
    layer = RowParallelLinear(HIDDEN, HIDDEN, bias=False, prefix="model.layers.0.self_attn.o_proj")

    def said(by):
        try:
            return type(by.get_quant_method(layer, layer.prefix))
        except (NotImplementedError, RuntimeError, ValueError) as error:
            return str(error)

    assert said(ours) == said(theirs) and "Unquantized" not in str(said(theirs))


SKIP = "model.layers.3.mlp.experts"


@pytest.mark.parametrize("name, skip", [
    ("nvfp4", {"ignore": ["model.layers.3*"]}), ("mxfp8", {"ignore": [SKIP]}), ("mxfp8_minimax", {"ignored_layers": [SKIP]}),
    ("ct_nvfp4", {"ignore": [f"re:{SKIP}.*"]}), ("quark_mxfp4", {"exclude": [f"{SKIP}.0.down_proj"]}), ("quark_mxfp4", {"exclude": [SKIP]})])
def test_experts_that_a_checkpoint_leaves_in_bf16(vllm_config, name, skip):  # noqa: F811
    ours, other = config.SluiceConfig.from_config(copy.deepcopy(CHECKPOINTS[name]) | skip), "model.layers.4.mlp.experts"
    layer = experts_layer(ours, f"{other}.{name}.{skip}", **SIZES)
    for prefix, kind in ((SKIP, "bf16"), (other, OF_KINDS[form_of(name)])):
        assert choose.METHODS[ours.kind_of_experts(layer, prefix)].kind == kind


# ---- A mixture by layer ----


def of_layers(**algos: str) -> dict:
    """A mixture whose layer `number` has experts of algos["l" + number]; "A, B": gate and up in A, down in B."""
    layers = {"model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"}}
    for layer, algo in algos.items():
        first, *second = algo.split(", ")
        for expert in range(EXPERTS):
            for matrix in ("gate_proj", "up_proj", "down_proj"):
                by = second[0] if second and matrix == "down_proj" else first
                layers[f"model.layers.{layer[1:]}.mlp.experts.{expert}.{matrix}"] = {"quant_algo": by} | ({"group_size": 16} if "NVFP4" in by else {})
    return of_modelopt("MIXED_PRECISION", quantized_layers=layers)


@pytest.mark.parametrize("number, algo, name", [(70, "NVFP4", "nvfp4"), (71, "W4A16_NVFP4", "nvfp4_a16"), (72, "nvfp4, W4A16_NVFP4", "nvfp4_a16"),
                                                (73, "MXFP8", "mxfp8"), (74, "FP8", "fp8")])
def test_a_mixture(vllm_config, number, algo, name):  # noqa: F811
    ours = config.SluiceConfig.from_config(of_layers(**{f"l{number}": algo, "l7": "FP8"}))
    layer, given = experts_layer(ours, f"model.layers.{number}.mlp.experts", **SIZES), GivenFp4(name)
    load(layer, given)
    compare(layer, given)
    assert ours.get_name() == "modelopt_mixed" and ours.kind_of_experts(layer, "model.layers.9.mlp.experts") == "bf16"
    assert ours.kind_of_experts(layer, "model.layers.7.mlp.experts") == "modelopt_fp8"


@pytest.mark.parametrize("algo", ["NVFP4, FP8", "FP8_PB_WO", "FP8, INT4_AWQ"])
def test_a_mixture_that_is_refused(vllm_config, algo):  # noqa: F811
    with pytest.raises(ValueError, match="^--quantization sluice: model.layers.1.mlp.experts: ") as why:
        experts_layer(config.SluiceConfig.from_config(of_layers(l1=algo)), "model.layers.1.mlp.experts", **SIZES, activation="swiglustep")
    found = ", ".join(sorted(algo.split(", ")))
    assert f"wanted experts of one quant_algo of NVFP4, W4A16_NVFP4, MXFP8, FP8, found {found}; wanted an activation of" in str(why.value)


# ---- Refusals ----


def read(given: dict, **more) -> str:
    """The kind of a checkpoint; raises an error for others, as vLLM's start does."""
    model = types.SimpleNamespace(**({"model_type": "qwen3_moe"} | more))
    assert config.SluiceConfig.override_quantization_method(given, "sluice", model) == "sluice"
    assert config.SluiceConfig.override_quantization_method(given, None, model) is None
    return base_config.kind_of(given, model)


def test_checkpoints_that_are_read():
    kinds = {name: read(given) for name, given in CHECKPOINTS.items()}
    assert kinds == {name: "modelopt_nvfp4" for name in ("nvfp4", "nvfp4_a16", "nvfp4_nested")} | {
        name: "compressed" for name in ("ct_nvfp4", "ct_nvfp4_a16", "ct_mxfp8", "ct_mxfp4")} | {
        "mxfp8": "modelopt_mxfp8", "mxfp8_minimax": "modelopt_mxfp8", "quark_mxfp4": "quark", "fp8": "modelopt_fp8"}
    assert read(of_layers(l0="NVFP4")) == "modelopt_mixed" and set(kinds.values()) < set(config.CONFIGS)


@pytest.mark.parametrize("given, reasons", [
    (of_modelopt("NVFP4", group_size=32), ["wanted a group_size of 16 for NVFP4, found 32"]),
    (of_modelopt("NVFP4_AWQ", group_size=16), ["wanted a quant_algo of NVFP4, W4A16_NVFP4, MXFP8, FP8 or MIXED_PRECISION, found NVFP4_AWQ"]),
    (of_modelopt("FP8_PB_WO"), ["found FP8_PB_WO"]), ({"quant_method": "modelopt"}, ["found None"]),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "W4A8_AWQ"}}, ["found W4A8_AWQ"]),
    (of_modelopt("MIXED_PRECISION"), ["wanted quantized_layers in the quantization_config of config.json, found none"]),
    (of_modelopt("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "NVFP4", "group_size": 8}, "b": {"quant_algo": "FP8", "group_size": 128}}),
     ["wanted a group_size of 16 for NVFP4, found 8"])])
def test_checkpoints_that_are_refused(given, reasons):
    with pytest.raises(ValueError, match="^--quantization sluice: ") as why:
        read(given)
    assert all(reason in str(why.value) for reason in reasons)


@pytest.mark.parametrize("model_type", ["gpt_oss", "deepseek_v4"])
def test_quark_checkpoints_of_models_with_a_loader_of_their_own_are_refused(model_type):
    with pytest.raises(ValueError, match=f"found quant_method 'quark' of model_type '{model_type}'"):
        read(of_quark(), model_type=model_type)


@pytest.mark.parametrize("given, reasons", [
    (of_compressed("nvfp4", group_size=32), ["found type float of 4 bits by tensor_group of 32"]),
    (of_compressed("mxfp4", group_size=16), ["found type float of 4 bits by group of 16"]),
    (of_compressed("mxfp4", type="int", symmetric=False),
     ["found type int of 4 bits by group of 32", "wanted static symmetric weights, found dynamic=False symmetric=False"]),
    (of_compressed("mxfp8", scale_dtype="torch.bfloat16"), ["found type float of 8 bits by group of 32"]),
    (of_compressed("nvfp4", activations=OF_ACTIVATIONS | {"type": "int"}), ["wanted activations in floats or unquantized, found type int"]),
    (of_quark(dtype="fp6_e3m2"), ["wanted weights in MXFP4 with dtype fp4, found fp6_e3m2"]),
    (of_quark(group_size=16, scale_format="e4m3"), ["wanted weights in MXFP4 with group_size 32, found 16", "with scale_format e8m0, found e4m3"]),
    (of_quark() | {"global_quant_config": {"weight": [{}, {}]}}, ["wanted one scheme of weights in MXFP4, found 2"])])
def test_schemes_that_are_refused(vllm_config, given, reasons):  # noqa: F811
    with pytest.raises(ValueError, match="^--quantization sluice: scheme: ") as why:
        experts_layer(config.SluiceConfig.from_config(given), "scheme", **SIZES, activation="swiglustep")
    assert all(reason in str(why.value) for reason in [*reasons, "wanted an activation of"])


@pytest.mark.parametrize("name, more, reason", [
    ("nvfp4", {"intermediate_size": 96, "tp_size": 2}, "wanted slices of nvfp4 experts in multiples of 32, found 48"),
    ("ct_nvfp4", {"intermediate_size": 80}, "wanted slices of nvfp4 experts in multiples of 32, found 80"),
    ("mxfp8", {"intermediate_size": 96, "tp_size": 2}, "wanted slices of mxfp8 experts in multiples of 32, found 48"),
    ("ct_mxfp4", {"intermediate_size": 96, "tp_size": 2}, "wanted slices of mxfp4_groups experts in multiples of 32, found 48"),
    ("quark_mxfp4", {"intermediate_size": 96, "tp_size": 2}, "wanted slices of mxfp4_groups experts in multiples of 32, found 48"),
    ("nvfp4", {"hidden_size": 80}, "hidden: wanted a multiple of 32 (blocks of e2m1 with scales=nv), found 80"),
    ("nvfp4", {"activation": "swigluoai"}, "wanted nvfp4 experts with the rows of gate before those of up, found swigluoai"),
    ("nvfp4", {"has_bias": True}, "wanted experts without biases, because vLLM's ModelOpt experts have none"),
    ("ct_mxfp4", {"has_bias": True}, "wanted experts without biases, because vLLM's compressed-tensors experts have none")])
def test_layers_that_are_refused(vllm_config, name, more, reason):  # noqa: F811
    with pytest.raises(ValueError, match="^--quantization sluice: refused: ") as why:
        fp4_layer(name, "refused", **more)
    assert reason in str(why.value)


@pytest.mark.parametrize("name", ["ct_mxfp4", "quark_mxfp4"])
def test_a_vllm_without_experts_without_a_gate(name):
    """vLLM 0.26 creates MXFP4 weights with room for a gate."""
    made = {"ct_mxfp4": compressed_method.SluiceCtMxfp4Method, "quark_mxfp4": quark_method.SluiceQuarkMethod}[name]
    layer = types.SimpleNamespace(moe_config=types.SimpleNamespace(is_act_and_mul=False), activation=types.SimpleNamespace(value="relu2_no_mul"))
    asked = types.SimpleNamespace(reasons=[])
    made._want_a_gate(asked, layer, "MXFP4")
    assert asked.reasons == ["wanted experts with a gate, because this vLLM has no others in MXFP4, found relu2_no_mul"]
