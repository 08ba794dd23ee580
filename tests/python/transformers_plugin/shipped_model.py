"""The shipped checkpoint in transformers: loading it, generating with it, and comparing it with recorded data. Needs no pytest."""
from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from sluice_moe import capi

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools" / "train"))

from harmony import System, ids_of, prompt_parts  # noqa: E402

MODEL = ROOT / "models" / "sluice-16e-tiny"
RECORDED = ROOT / "tests" / "data" / "parity" / "sluice-16e-tiny.safetensors"
PROMPTS = ("short", "sum", "turns", "other", "greeting", "long")


def load(directory=MODEL, **options):
    options = {"dtype": torch.bfloat16, "experts_implementation": "sluice", **options}
    return AutoModelForCausalLM.from_pretrained(directory, **options).eval()


def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    made.encode_special_tokens = True
    return made


def questions(count: int) -> list[str]:
    return [json.loads(line)["question"] for line in (MODEL / "eval.jsonl").read_text().splitlines()[:count]]


def command() -> list[str]:
    """The library with Sluice's own engine: in the wheel, or named by the environment, or of a build."""
    if hasattr(capi.lib, "sluice_command"):
        return [sys.executable, "-m", "sluice_moe"]
    found = os.environ.get("SLUICE_COMMAND") or ROOT / "build" / "cpu" / "apps" / "sluice"
    assert shutil.which(found), f"wanted a library with the sluice command, or the command in SLUICE_COMMAND, found neither: {found}"
    return [str(found)]


def _answer_of_the_engine(question: str) -> str:
    asked = [*command(), "run", str(MODEL), "-p", question, "--json", "--quiet", "--threads", "1", "--temperature", "0"]
    reply = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert reply["finish_reason"] == "stop" and reply["recovered"] == ""
    analysis = f"<|channel|>analysis<|message|>{reply['reasoning']}<|end|><|start|>assistant" if reply["reasoning"] else ""
    return f"{analysis}<|channel|>final<|message|>{reply['text']}<|return|>"


def answers_of_the_engine(asked: list[str]) -> list[str]:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(_answer_of_the_engine, asked))


def batch_of(asked: list[str], device="cpu"):
    """ids and attention mask [questions, tokens], left-padded."""
    prompts = [ids_of(prompt_parts(System(), [(question, None)]), tokenizer()) for question in asked]
    width = max(map(len, prompts))
    ids = torch.tensor([[1004] * (width - len(p)) + p for p in prompts], device=device)  # <|endoftext|>
    return ids, torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)


def answers(model, asked: list[str], most_tokens: int) -> list[str]:
    """Greedy answers to all questions in one batch, with special tokens, truncated at most_tokens."""
    ids, mask = batch_of(asked, model.device)
    made = model.generate(ids, attention_mask=mask, max_new_tokens=most_tokens, do_sample=False)
    out, ends = [], model.generation_config.eos_token_id
    for row in made[:, ids.shape[1] :].tolist():
        length = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
        out.append(tokenizer().decode(row[:length], skip_special_tokens=False))
    return out


def is_start(found: str, wanted: str) -> bool:
    """Whether an answer that may be truncated is a prefix of a complete one."""
    return found == wanted or (wanted.startswith(found) and not found.endswith("<|return|>"))


def distances(model, prompt: str, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of a recorded prompt's logits, as in tests/models/parity_test.cc: root mean square and maximum of the difference, relative
    to the noise that was recorded for the row."""
    part = {name.split(".", 1)[1]: value for name, value in load_file(RECORDED).items() if name.startswith(prompt + ".")}
    with torch.no_grad():
        logits = model(part["ids"][None].long().to(model.device), use_cache=False).logits[0].cpu()
    off = (logits[part["positions"].long()].double() - part["logits"].double()).abs()
    return off.square().mean(1).sqrt() / (scale * part["noise"].double()), off.amax(1) / (scale * part["noise_most"].double())
