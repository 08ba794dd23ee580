"""The checkpoint that ships, in transformers with Sluice's experts: the text of Sluice's own engine, logits within the recorded noise."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train"))

import sluice_moe
import sluice_moe.transformers as hf
from harmony import System, ids_of, prompt_parts
from safetensors.torch import load_file, save_file
from sluice_moe import capi
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Mxfp4Config

MODEL = ROOT / "models" / "sluice-16e-tiny"
RECORDED = ROOT / "tests" / "data" / "parity" / "sluice-16e-tiny.safetensors"
PROMPTS = ("short", "sum", "turns", "other", "greeting", "long")
ASKED, MOST_TOKENS = 100, 48
EXPERTS = re.compile(r"mlp\.experts\.")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The same sums in the same order, and no waiting for threads where processors are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(directory=MODEL, **options):
    options = {"dtype": torch.bfloat16, "experts_implementation": "sluice", **options}
    return AutoModelForCausalLM.from_pretrained(directory, **options).eval()


@pytest.fixture(scope="module")
def packed():
    return load()


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    made.encode_special_tokens = True
    return made


def questions():
    return [json.loads(line)["question"] for line in (MODEL / "eval.jsonl").read_text().splitlines()[:ASKED]]


def command():
    """Sluice's own engine: inside the wheel's library, or what the environment or a build has."""
    if hasattr(capi.lib, "sluice_command"):
        return [sys.executable, "-m", "sluice_moe"]
    found = os.environ.get("SLUICE_COMMAND") or ROOT / "build" / "cpu" / "apps" / "sluice"
    assert shutil.which(found), f"wanted a library with the sluice command, or the command in SLUICE_COMMAND, found neither: {found}"
    return [str(found)]


def answer_of_the_engine(question: str) -> str:
    asked = [*command(), "run", str(MODEL), "-p", question, "--json", "--quiet", "--threads", "1", "--temperature", "0"]
    reply = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert reply["finish_reason"] == "stop" and reply["recovered"] == ""
    analysis = f"<|channel|>analysis<|message|>{reply['reasoning']}<|end|><|start|>assistant" if reply["reasoning"] else ""
    return f"{analysis}<|channel|>final<|message|>{reply['text']}<|return|>"


def answers(model, tokenizer, asked, most_tokens):
    """Greedy answers to all questions in one batch, with their special tokens; those cut at most_tokens too."""
    prompts = [ids_of(prompt_parts(System(), [(question, None)]), tokenizer) for question in asked]
    pad, ends, width = model.generation_config.pad_token_id, model.generation_config.eos_token_id, max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    made = model.generate(ids, attention_mask=mask, max_new_tokens=most_tokens, do_sample=False)
    for row in made[:, width:].tolist():
        length = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
        yield tokenizer.decode(row[:length], skip_special_tokens=False)


def test_the_same_text_as_sluices_own_engine_on_100_questions(packed, tokenizer):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wanted = list(pool.map(answer_of_the_engine, questions()))
    found = list(answers(packed, tokenizer, questions(), MOST_TOKENS))
    assert len(wanted) == len(found) == ASKED
    whole = 0
    for question, a, b in zip(questions(), wanted, found):
        whole += a == b
        assert a == b or (a.startswith(b) and not b.endswith("<|return|>")), f"{question}\n{a}\n{b}"
    assert whole >= ASKED * 2 // 5, "too few answers end within the tokens that are asked for"


def logits_within(model, scale: float, rms_allowed: float, most_allowed: float, prompts=PROMPTS):
    """As tests/models/parity_test.cc holds the engine: each row within the noise that was recorded for it."""
    record = load_file(RECORDED)
    for prompt in prompts:
        part = {name.split(".", 1)[1]: value for name, value in record.items() if name.startswith(prompt + ".")}
        with torch.no_grad():
            got = model(part["ids"][None].long(), use_cache=False).logits[0, part["positions"].long()].double()
        off = (got - part["logits"].double()).abs()
        rms = (off.square().mean(1).sqrt() / (scale * part["noise"].double())).max().item()
        most = (off.amax(1) / (scale * part["noise_most"].double())).max().item()
        assert rms <= rms_allowed and most <= most_allowed, f"{prompt}: {rms:.2f} of its noise, {most:.2f} of the most"


def test_logits_are_within_the_recorded_noise_of_bf16(packed):
    logits_within(packed, 1, 4, 2)


def test_logits_in_f32_are_within_the_noise_of_its_sums():
    model = load(dtype=torch.float32)
    assert model.model.layers[0].mlp.experts.sluice.layer.fields["x"] == "f32"
    # Not the long one: past a thousand positions transformers' own rotations in f32 are off by more than all sums (24 times, with its
    # own experts as with these).
    logits_within(model, 2.0**-16, 16, 16, PROMPTS[:-1])


def test_dequantised_experts_are_within_the_same_noise(tokenizer):
    model = load(quantization_config=Mxfp4Config(dequantize=True))
    assert type(model.model.layers[0].mlp.experts).__name__ == "GptOssExperts"
    logits_within(model, 1, 4, 2)
    assert model.model.layers[0].mlp.experts.sluice.experts.fields["expert_w"] == "bf16"


def test_greedy_tokens_are_those_that_were_recorded(packed):
    record = load_file(RECORDED)
    for prompt in ("sum", "turns", "greeting"):
        ids, wanted = record[prompt + ".ids"][None].long(), record[prompt + ".greedy"]
        made = packed.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(wanted), do_sample=False)
        assert made[0, ids.shape[1] :].tolist() == wanted.tolist(), prompt


def test_experts_stay_in_mxfp4(packed):
    assert not any(EXPERTS.search(name) for name, _ in packed.named_parameters())
    stored = load_file(MODEL / "model.safetensors")
    bytes_stored = sum(v.numel() * v.element_size() for name, v in stored.items() if EXPERTS.search(name))
    layers = [layer.mlp.experts.sluice.layer for layer in packed.model.layers]
    assert sum(layer.weight_bytes for layer in layers) <= 1.02 * bytes_stored
    assert all(layer.fields["expert_w"] == "e2m1" for layer in layers)


def test_state_and_saved_checkpoint_are_the_stored_bits(packed, tmp_path):
    stored = load_file(MODEL / "model.safetensors")
    state = packed.state_dict()
    assert sorted(state) == sorted(stored)
    for name, value in stored.items():
        assert torch.equal(state[name].reshape(value.shape), value), name
    packed.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert sorted(saved) == sorted(stored)
    assert all(torch.equal(saved[name].reshape(value.shape), value) for name, value in stored.items())
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["quant_method"] == "mxfp4"
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(ids).logits, packed(ids).logits)


def test_loaded_experts_belong_to_sluice_alone(packed):
    packed.set_experts_implementation("eager")
    with pytest.raises(sluice_moe.Unsupported, match="wanted 'sluice', found 'eager'.*load the model again"), torch.no_grad():
        packed(torch.arange(3, 9)[None])
    packed.set_experts_implementation("sluice")
    with torch.no_grad():
        packed(torch.arange(3, 9)[None])


def test_other_implementations_get_transformers_own_loader():
    model = load(experts_implementation="eager", quantization_config=Mxfp4Config(dequantize=True))
    assert type(model.model.layers[0].mlp.experts).__name__ == "GptOssExperts"
    assert model.model.layers[0].mlp.experts.down_proj.dtype is torch.bfloat16
    quantizer = hf.SluiceMxfp4Quantizer(Mxfp4Config(), pre_quantized=True)
    assert not quantizer.packs and quantizer.get_weight_conversions()


def test_a_checkpoint_without_a_tensor_is_refused(tmp_path):
    for name in ("config.json", "generation_config.json"):
        shutil.copy(MODEL / name, tmp_path)
    tensors = load_file(MODEL / "model.safetensors")
    del tensors["model.layers.3.mlp.experts.down_proj_scales"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(sluice_moe.CorruptData, match="model.layers.3.mlp.experts: wanted every tensor.*missing: down_proj_scales"):
        load(tmp_path)


def test_a_scale_that_is_no_number_is_refused(tmp_path):
    for name in ("config.json", "generation_config.json"):
        shutil.copy(MODEL / name, tmp_path)
    tensors = load_file(MODEL / "model.safetensors")
    tensors["model.layers.3.mlp.experts.down_proj_scales"][2, 5, 1] = 255
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(sluice_moe.CorruptData, match="experts.down_scale"):
        load(tmp_path)


def test_quantising_while_loading_is_refused(tmp_path):
    load(quantization_config=Mxfp4Config(dequantize=True)).save_pretrained(tmp_path)
    with pytest.raises(sluice_moe.Unsupported, match="wanted a checkpoint whose experts are MXFP4 already"):
        load(tmp_path, quantization_config=Mxfp4Config())
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():  # as bf16 it runs
        assert load(tmp_path)(ids).logits.isfinite().all()


def test_a_full_graph_and_a_static_cache(packed):
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        wanted = packed(ids).logits
        torch._dynamo.reset()
        compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(ids).logits, wanted)
    kept = dict(max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(ids))
    assert torch.equal(packed.generate(ids, **kept), packed.generate(ids, cache_implementation="static", **kept))
