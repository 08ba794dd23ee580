"""SGLang's LoRAManager rejects adapters on experts and gates that Sluice runs, at start and when one is loaded later; it serves all others.
test_sglang.py runs this file in one process per version."""

from __future__ import annotations

import copy
import inspect
import json
import pathlib

import pytest
import torch

import sglang_engine
from sglang_layers import EXPERTS, HIDDEN, WIDTH, GptOss, random

RANK = 4
EXPERT = "model.layers.0.mlp.experts.3.gate_proj"
ROUTER = "model.layers.0.mlp.router"
ATTENTION = "model.layers.0.self_attn.o_proj"


@pytest.fixture(scope="module", autouse=True)
def settings():
    """A scheduler process with --moe-runner-backend sluice and LoRA."""
    sglang_engine.prepare()
    made = sglang_engine.start(*sglang_engine.asked_for_sluice(), "--enable-lora", "--lora-target-modules", "o_proj", "--max-lora-rank",
                               str(RANK), "--lora-backend", "torch_native")
    sglang_engine.groups()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield made
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def weights() -> GptOss:
    return GptOss()


class Model(torch.nn.Module):
    """The modules of gpt-oss that can have adapters: projections of attention, router, experts; and a dense layer."""

    def __init__(self, given: GptOss, gate: str = "router", dense: str = "down_proj") -> None:
        from sglang.srt.layers.linear import ReplicatedLinear
        from sglang.srt.models.deepseek_v2 import MoEGate
        from transformers import DeepseekV3Config

        super().__init__()
        self.config = copy.deepcopy(given.config)
        self.config.num_hidden_layers = 2
        self.config.n_shared_experts = 1  # otherwise SGLang allocates no buffers for adapters on dense layers of such a model
        layers = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module()])
        for layer in layers:
            layer.self_attn, layer.mlp = torch.nn.Module(), torch.nn.Module()
            layer.self_attn.o_proj = ReplicatedLinear(HIDDEN, HIDDEN, bias=False)
        layers[0].mlp = given.block()
        if gate == "gate":
            config = DeepseekV3Config(hidden_size=HIDDEN, n_routed_experts=EXPERTS)
            config.topk_method = "noaux_tc"
            layers[0].mlp.gate = MoEGate(config, None)
        setattr(layers[1].mlp, dense, ReplicatedLinear(WIDTH, HIDDEN, bias=False))
        layers[1].mlp.gate = ReplicatedLinear(HIDDEN, EXPERTS, bias=False)  # SGLang's own gate class, as in Qwen3
        self.model = torch.nn.Module()
        self.model.layers = layers

    def get_hidden_dim(self, name: str, layer: int) -> tuple[int, int]:
        name = name.removesuffix("_moe")
        return {"o_proj": (HIDDEN, HIDDEN), "gate_up_proj": (HIDDEN, 2 * WIDTH), "down_proj": (WIDTH, HIDDEN), "gate": (HIDDEN, EXPERTS)}[name]


def adapter(folder: pathlib.Path, modules: dict[str, tuple[int, int]], targets: list[str], given: dict[str, torch.Tensor] | None = None,
            rank: int = RANK) -> str:
    """The path of a new adapter with weights for modules {name: (outputs, inputs)}, and with given tensors."""
    from safetensors.torch import save_file

    tensors = dict(given or {})
    for i, (name, (rows, width)) in enumerate(modules.items()):
        tensors[f"base_model.model.{name}.lora_A.weight"] = random(RANK, width, seed=i)
        tensors[f"base_model.model.{name}.lora_B.weight"] = random(rows, RANK, seed=i + 100)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 2 * rank, "target_modules": targets, "peft_type": "LORA",
                                                            "bias": "none"}))
    return str(folder)


def reference(path: str, name: str = "one") -> object:
    from sglang.srt.lora.lora_registry import LoRARef

    return LoRARef(lora_name=name, lora_path=path, pinned=False)


def manager(settings: object, weights: GptOss, *paths: str, targets: set[str] | None = None, gate: str = "router",
            dense: str = "down_proj") -> object:
    """The manager as ModelRunner creates it after the weights are loaded."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.lora.lora_manager import LoRAManager

    ranks = {"tp_size": 1, "tp_rank": 0} if "tp_size" in inspect.signature(LoRAManager).parameters else {}
    from sluice_moe.sglang import gates

    model = Model(weights, gate, dense)
    gates.take_over(model)  # as after ModelRunner.load_model
    return LoRAManager(base_model=model, base_hf_config=model.config, max_loras_per_batch=2, load_config=LoadConfig(), dtype=torch.bfloat16,
                       server_args=settings, lora_backend="torch_native", max_lora_rank=RANK, target_modules=targets,
                       lora_paths=[reference(path) for path in paths], **ranks)


SHAPES = {EXPERT: (WIDTH, HIDDEN), ROUTER: (EXPERTS, HIDDEN), ATTENTION: (HIDDEN, HIDDEN), "model.layers.1.mlp.down_proj": (HIDDEN, WIDTH),
          "model.layers.1.mlp.gate": (EXPERTS, HIDDEN), "model.layers.0.mlp.gate": (EXPERTS, HIDDEN)}


def of(*names: str) -> dict[str, tuple[int, int]]:
    return {name: SHAPES[name] for name in names}


# ---- At the start ----


@pytest.mark.parametrize("targets, gate, line", [
    ({"gate_up_proj", "down_proj", "o_proj"}, "router",
     "model.layers.0.mlp.experts: wanted LoRA target modules without experts that Sluice runs, found down_proj, gate_up_proj: "),
    ({"all"}, "router", "model.layers.0.mlp.experts: wanted LoRA target modules without experts that Sluice runs, found down_proj, gate_up_proj: "),
    ({"experts"}, "router", "model.layers.0.mlp.experts: wanted LoRA target modules without experts that Sluice runs, found experts: "),
    ({"router", "o_proj"}, "router", "model.layers.0.mlp.router: wanted LoRA target modules without gates that Sluice runs, found router: "),
    ({"gate"}, "gate", "model.layers.0.mlp.gate: wanted LoRA target modules without gates that Sluice runs, found gate: "),
], ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else "")
def test_target_modules_that_sluice_runs_end_the_start(settings: object, weights: GptOss, targets: set[str], gate: str, line: str) -> None:
    with pytest.raises(RuntimeError) as why:
        manager(settings, weights, targets=targets, gate=gate, dense="other_proj")
    assert str(why.value).startswith(f"sluice: {line}")
    assert str(why.value).endswith(f"or serve without {asked_by()}")


def asked_by() -> str:
    return "SLUICE_SGLANG=1" if sglang_engine.VERSION == "0.5.17" else "--moe-runner-backend sluice"


@pytest.mark.parametrize("names, targets, found", [
    ((ROUTER,), ["router"], f"base_model.model.{ROUTER}.lora_A.weight and 1 more"),
    ((EXPERT,), ["gate_proj"], "base_model.model.model.layers.0.mlp.experts.3."),
    # PEFT saves modules of target_parameters that target_modules does not list.
    ((ATTENTION, EXPERT), ["o_proj"], "base_model.model.model.layers.0.mlp.experts.3."),
    ((ATTENTION, "model.layers.0.mlp.gate"), ["o_proj"], "base_model.model.model.layers.0.mlp.gate.lora_A.weight and 1 more"),
], ids=["router", "experts", "experts without a target", "gate without a target"])
def test_an_adapter_with_weights_for_sluice_ends_the_start(settings: object, weights: GptOss, tmp_path: pathlib.Path, names: tuple[str, ...],
                                                           targets: list[str], found: str) -> None:
    path = adapter(tmp_path / "adapter", of(*names), targets)
    with pytest.raises(RuntimeError) as why:
        manager(settings, weights, path, gate="gate")
    assert "sluice: LoRA adapter one: wanted no weights for gates, or for experts without room for adapters, that Sluice runs, found " + found in str(why.value)
    assert str(why.value).endswith(f"or serve without {asked_by()}")


@pytest.mark.parametrize("names, targets", [
    ((ATTENTION,), ["o_proj"]), (("model.layers.1.mlp.down_proj",), ["down_proj"]),
    (("model.layers.1.mlp.gate",), ["gate"])], ids=["attention", "dense", "another gate"])
def test_an_adapter_on_other_modules_is_sglangs(settings: object, weights: GptOss, tmp_path: pathlib.Path, names: tuple[str, ...],
                                                targets: list[str]) -> None:
    made = manager(settings, weights, adapter(tmp_path / "adapter", of(*names), targets))
    wrapped = {name for layer in made.lora_modules for name in layer}
    assert set(names) <= wrapped
    assert type(made.base_model.model.layers[0].mlp.experts.quant_method).__name__ == "SluiceExperts"


def test_dense_layers_with_the_names_of_experts_take_adapters(settings: object, weights: GptOss, tmp_path: pathlib.Path) -> None:
    """The experts of the same model stay on Sluice, and only adapters with weights for experts are refused."""
    dense = "model.layers.1.mlp.down_proj"
    made = manager(settings, weights, targets={"gate_up_proj", "down_proj", "o_proj"})
    assert {name for layer in made.lora_modules for name in layer} >= {dense, ATTENTION}
    assert type(made.base_model.model.layers[0].mlp.experts.quant_method).__name__ == "SluiceExperts"
    ref = reference(adapter(tmp_path / "good", of(ATTENTION, dense), ["o_proj", "down_proj"]), "good")
    assert made.load_lora_adapter(ref).success
    made.fetch_new_loras({ref.lora_id})
    made.update_lora_info()
    refused = loaded(made, adapter(tmp_path / "bad", of(ATTENTION, EXPERT), ["o_proj"]), "file", "bad")
    assert not refused.success and "wanted no weights for gates, or for experts without room for adapters, that Sluice runs" in refused.error_message


# ---- While the server runs ----


def loaded(made: object, path: str, how: str, name: str) -> object:
    ref = reference(path, name)
    if how == "file":
        return made.load_lora_adapter(ref)
    from safetensors.torch import load_file

    folder = pathlib.Path(path)
    return made.load_lora_adapter_from_tensors(ref, load_file(folder / "adapter_model.safetensors"),
                                               json.loads((folder / "adapter_config.json").read_text()))


@pytest.mark.parametrize("how", ["file", "tensors"])
@pytest.mark.parametrize("name", [EXPERT, ROUTER])
def test_an_adapter_that_is_loaded_later_is_refused_alone(settings: object, weights: GptOss, tmp_path: pathlib.Path, name: str, how: str) -> None:
    made = manager(settings, weights, targets={"o_proj"})
    bad = adapter(tmp_path / "bad", of(ATTENTION, name), ["o_proj"])
    good = adapter(tmp_path / "good", of(ATTENTION), ["o_proj"])
    refused = loaded(made, bad, how, "bad")
    assert not refused.success
    assert refused.error_message.startswith("sluice: LoRA adapter bad: wanted no weights for gates, or for experts without room for adapters, that Sluice runs, found "
                                            f"base_model.model.{name.rsplit('.', 1)[0]}.")
    assert not made.loras and not made.configs and not made.lora_refs, "a rejected adapter must leave no state"
    assert loaded(made, good, how, "good").success and len(made.loras) == 1
