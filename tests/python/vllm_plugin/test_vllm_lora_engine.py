"""LoRA adapters in real vLLM on the CPU, on routed experts and on other modules. An adapter must give the answers of a checkpoint into which it was
merged."""
import json
import math
import pathlib
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests want vLLM (./dev test-python)")

from conftest import mxfp4  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from test_vllm import ASK, agree, qwen3, tokens_of  # noqa: E402
from vllm_engine import MODEL, Failed, run, sluice_lines  # noqa: E402

RANK, SCALE = 4, 2.0
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
ONE_TOKEN = {"prompts": ASK["prompts"], "sampling": {"max_tokens": 1, "logprobs": 20}}


def random_pair(draw: torch.Generator, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(A, B) of one matrix."""
    return (torch.randn(RANK, width, generator=draw) / math.sqrt(width)).bfloat16(), (torch.randn(rows, RANK, generator=draw) * 0.1).bfloat16()


def write(folder: pathlib.Path, adapter: dict[str, torch.Tensor], modules: list[str], **more) -> pathlib.Path:
    """An adapter as PEFT writes it."""
    folder.mkdir()
    save_file(adapter, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": int(RANK * SCALE), "target_modules": modules,
                                                            "peft_type": "LORA", "bias": "none"} | more))
    return folder


def write_adapter(to: pathlib.Path, model: pathlib.Path, ends: tuple[str, ...], modules: list[str],
                  seed: int = 3) -> tuple[pathlib.Path, pathlib.Path]:
    """(an adapter on the checkpoint's matrices whose names end so, the checkpoint with the adapter merged)."""
    tensors, draw = load_file(model / "model.safetensors"), torch.Generator().manual_seed(seed)
    adapter, merged = {}, dict(tensors)
    for name in [n for n in tensors if n.endswith(ends)]:
        a, b = random_pair(draw, *tensors[name].shape)
        at = "base_model.model." + name.removesuffix(".weight")
        adapter |= {f"{at}.lora_A.weight": a, f"{at}.lora_B.weight": b}
        merged[name] = (tensors[name].float() + SCALE * b.float() @ a.float()).bfloat16()
    return write(to.with_name(to.name + ".adapter"), adapter, modules), write_checkpoint(to.with_name(to.name + ".merged"), model, merged)


def write_checkpoint(to: pathlib.Path, model: pathlib.Path, tensors: dict[str, torch.Tensor], without: str = "") -> pathlib.Path:
    """A checkpoint with other tensors, and without one key of its config."""
    to.mkdir()
    for file in model.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, to)
    config = json.loads((model / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != without}))
    save_file(tensors, to / "model.safetensors")
    return to


def apart(one: list[dict], two: list[dict]) -> float:
    every = [abs(a[t] - b[t]) for a, b in zip(one, two) for t in a.keys() & b.keys()]
    return sum(every) / len(every)


def is_kept(plain: list[dict], through: list[dict], merged: list[dict]) -> None:
    """Whether first tokens with an adapter are far nearer to those of the merged checkpoint than those without it."""
    without, with_it, wanted = ([said["top"][0] for said in part] for part in (plain, through, merged))
    assert apart(with_it, wanted) < apart(without, wanted) / 4, (apart(with_it, wanted), apart(without, wanted))


# ---- Routed experts ----

QWEN3_ENDS = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
QWEN3_MODULES = ["gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def adapted_qwen3(tmp_path_factory):
    """(a bf16 checkpoint, two adapters on its experts, answers of vLLM's own experts with each adapter merged)."""
    folder = tmp_path_factory.mktemp("qwen3")
    model = qwen3(folder)
    adapters, answers = [], []
    for seed in (3, 4):
        adapter, merged = write_adapter(folder / f"seed{seed}", model, QWEN3_ENDS, QWEN3_MODULES, seed)
        adapters.append(str(adapter))
        said, log = run(folder, {"model": str(merged), "skip_tokenizer_init": True}, [tokens_of(8)])
        assert not sluice_lines(log)
        answers.append(said[0])
    return {"model": str(model), "skip_tokenizer_init": True} | LORA, adapters, answers


@pytest.mark.parametrize("more", [{}, {"tensor_parallel_size": 2, "enable_expert_parallel": True}], ids=["one rank", "ep2"])
def test_each_request_has_its_adapter(tmp_path, adapted_qwen3, more):
    """Three requests in one batch: two adapters, and none; also after the weights are loaded again."""
    engine, adapters, merged = adapted_qwen3
    ask = tokens_of(8) | {"adapters": [*adapters, None]}
    (plain, *answers), log = run(tmp_path, engine | {"quantization": "sluice"} | more, [tokens_of(8), ask, ask | {"before": "reload"}])
    assert any("LoRA on every module: routed experts have 2 adapters of rank 8" in line for line in sluice_lines(log))
    every = [*merged, plain]
    for said in answers:
        agree_merged([wanted[i] for i, wanted in enumerate(every)], said)
        for i, one in enumerate(said):
            to = [apart([one["top"][0]], [other[i]["top"][0]]) for other in every]
            assert all(distance > 4 * to[i] for j, distance in enumerate(to) if j != i), to


def test_one_adapter_replaces_another(tmp_path, adapted_qwen3):
    """With room for one adapter, by SLUICE_VLLM_AUTO=1."""
    engine, adapters, merged = adapted_qwen3
    asks = [tokens_of(8) | {"adapters": [adapters[i]] * 3} for i in (0, 1, 0)]
    answers, _ = run(tmp_path, engine | {"max_loras": 1}, asks, {"SLUICE_VLLM_AUTO": "1"})
    for said, i in zip(answers, (0, 1, 0)):
        agree_merged(merged[i], said)


def agree_merged(merged: list[dict], adapted: list[dict]) -> None:
    """Like agree(), with twice as many roundings, because the merged weights are rounded."""
    agree(merged, adapted, roundings=20)


def write_gpt_oss(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """(an adapter on the shipped model's MXFP4 experts, as PEFT's target_parameters make it, the model in bf16 with the adapter merged). Gate and up
    are one matrix, and a matrix of the adapter holds all experts."""
    tensors, draw = load_file(MODEL / "model.safetensors"), torch.Generator().manual_seed(5)
    adapter, merged = {}, dict(tensors)
    for name in [n.removesuffix("_blocks") for n in tensors if n.endswith("_blocks")]:
        dense = mxfp4(merged.pop(f"{name}_blocks").flatten(-2), merged.pop(f"{name}_scales"))  # [experts, rows, width]
        pairs = [random_pair(draw, *dense.shape[1:]) for _ in dense]
        at = "base_model.model." + name.rsplit(".", 1)[0] + (".base_layer" if name.endswith("gate_up_proj") else "")
        adapter[f"{at}.lora_A.weight"] = torch.cat([a for a, _ in pairs])
        adapter[f"{at}.lora_B.weight"] = torch.stack([b for _, b in pairs], dim=-1).flatten(1)
        dense += torch.stack([SCALE * b.double() @ a.double() for a, b in pairs])
        merged[name] = dense.bfloat16().transpose(1, 2).contiguous()
    folder = write(tmp_path / "adapter", adapter, [], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    return folder, write_checkpoint(tmp_path / "merged", MODEL, merged, without="quantization_config")


def gpt_oss_is_kept(tmp_path: pathlib.Path, environment: dict | None = None) -> str:
    """Returns the log."""
    folder, other = write_gpt_oss(tmp_path)
    engine = {"model": str(MODEL), "quantization": "sluice"}
    adapters = [str(folder)] * len(ONE_TOKEN["prompts"])
    (plain, through), log = run(tmp_path, engine | LORA, [ONE_TOKEN, ONE_TOKEN | {"adapters": adapters}], environment)
    (added,), of_merged = run(tmp_path, engine | {"model": str(other)}, [ONE_TOKEN], environment)
    assert any("experts bf16 hidden=256" in line for line in sluice_lines(of_merged))
    is_kept(plain, through, added)
    return log


def test_gpt_oss(tmp_path):
    gpt_oss_is_kept(tmp_path)


# ---- Other modules ----


def test_lora_on_the_router_is_kept(tmp_path):
    """With room for adapters on routed experts, on which this adapter has no weights."""
    folder, other = write_adapter(tmp_path / "router", MODEL, ("router.weight",), ["router"])
    engine, ask = {"model": str(MODEL), "quantization": "sluice"}, ONE_TOKEN | {"adapters": [str(folder)] * 2}
    (plain, through), log = run(tmp_path, engine | LORA, [ONE_TOKEN, ask])
    (added,), _ = run(tmp_path, engine | {"model": str(other)}, [ONE_TOKEN])
    is_kept(plain, through, added)
    assert any("LoRA on every module: routed experts have 2 adapters" in line for line in sluice_lines(log))


# ---- Refusals ----


def test_what_cannot_be_done_ends_the_start_with_the_reason(tmp_path):
    with pytest.raises(Failed) as why:
        run(tmp_path, {"model": str(MODEL), "quantization": "sluice", "lora_dtype": "float16"} | LORA, [ASK])
    assert "wanted LoRA on experts in bf16, found --lora-dtype torch.float16: use --lora-dtype auto, or use --lora-target-modules" in str(why.value)


def test_an_adapter_for_experts_without_room_is_refused(tmp_path):
    """Otherwise its other weights would be used, and its weights for experts silently ignored."""
    folder, _ = write_adapter(tmp_path / "router", MODEL, ("router.weight",), ["router"])
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors |= {name.replace("mlp.router", "mlp.experts"): tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(Failed) as why:
        run(tmp_path, {"model": str(MODEL), "quantization": "sluice", "lora_target_modules": ["router"]} | LORA,
            [ASK | {"adapters": [str(folder)] * 2}])
    assert "mlp.experts" in str(why.value) and "expected target modules in" in str(why.value)
