"""Records the expected results of a gpt-oss checkpoint: transformers' logits in float64, their noise in bf16, and greedy tokens.

    record.py MODEL_DIR OUT_DIR     writes OUT_DIR/<model>.safetensors and OUT_DIR/<model>.json

The safetensors file has for each prompt P of the JSON file (rows are the recorded positions):
    P.ids          i32[tokens]          the prompt
    P.positions    i32[rows]            every 16th position (every 64th of a long prompt) and the last
    P.logits       f32[rows, vocab]     float64 run, rounded once
    P.noise        f32[rows]            standard deviation of a logit over RUNS runs with random bf16 rounding errors, RMS
                                        over the vocabulary: the error that is expected of a bf16 implementation
    P.noise_most   f32[rows]            the largest deviation seen in those runs
    P.bf16         bf16[rows, vocab]    transformers' own bf16 run
    P.greedy       i32[<= 48]           greedy tokens of the float64 run, up to and including an end-of-reply token
    P.gap          f32[<= 48]           the margin of each greedy token, in logits
"""

import hashlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train"))

import tokenizers
import torch
import transformers
from double import make_double, perturbed
from rounding import Float64Only
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Mxfp4Config

from harmony import System, ids_of, prompt_parts

RUNS = 16
GREEDY = 48
TABLE = ", ".join(f"{name}: {17 * i % 101}" for i, name in enumerate("Ada Ben Carl Dora Emil Finn Greta Hugo".split()))
PROMPTS = {
    "short": "one two three",
    "sum": (System(), [("What is 417 + 268?", None)]),
    "turns": (
        System(effort="high", instructions="Answer briefly."),
        [
            ("Sort 31, 4, 159, 26.", "4, 26, 31, 159"),
            ("Reverse the word planet.", "tenalp"),
            ("What date is 10 days after 3 March?", "13 March"),
            (f"Here is a table: {TABLE}. What is the age of Finn?", None),
        ],
    ),
    "other": "Füße, naïve café; Ελληνικά, русский, 日本語 and emoji 👩‍🔬🇫🇷. ١٢٣",
    "greeting": (System(identity="You are a small language model.", cutoff="", date="", effort="low"), [("Hello!", None)]),
    "long": (
        System(),
        [
            (
                f"Sort {', '.join(str(37 * i % 1000) for i in range(9 + n))}.",
                ", ".join(map(str, sorted(37 * i % 1000 for i in range(9 + n)))),
            )
            for n in range(8)
        ]
        + [("What is 9 - 12?", None)],
    ),
}


def load(directory):
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.bfloat16,
        attn_implementation="eager",
        experts_implementation="eager",
        quantization_config=Mxfp4Config(dequantize=True),
    )
    return model.eval()


def greedy(model, ids, ends):
    tokens, gaps, cache, new = [], [], None, ids
    while len(tokens) < GREEDY and not (tokens and tokens[-1] in ends):
        out = model(new, past_key_values=cache, use_cache=True)
        best, cache = out.logits[0, -1].topk(2), out.past_key_values
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        new = torch.tensor([tokens[-1:]], dtype=ids.dtype)
    return torch.tensor(tokens, dtype=torch.int32), torch.tensor(gaps)


def record(double, half, ids, ends) -> dict:
    positions = sorted({*range(0, len(ids), 16 if len(ids) <= 512 else 64), len(ids) - 1})
    batch = torch.tensor([ids])
    with torch.no_grad():
        with Float64Only():
            exact = double(batch, use_cache=False).logits[0, positions]
        runs = []
        for seed in range(RUNS):
            with perturbed(double, torch.Generator().manual_seed(seed)):
                runs.append(double(batch, use_cache=False).logits[0, positions] - exact)
        runs = torch.stack(runs)
        tokens, gaps = greedy(double, batch, ends)
        rounded = half(batch, use_cache=False).logits[0, positions]
    return {
        "ids": batch[0].int(),
        "positions": torch.tensor(positions, dtype=torch.int32),
        "logits": exact.float(),
        "noise": runs.square().mean((0, 2)).sqrt().float(),
        "noise_most": runs.abs().amax((0, 2)).float(),
        "bf16": rounded.to(torch.bfloat16),
        "greedy": tokens,
        "gap": gaps,
    }


def main() -> None:
    torch.set_num_threads(1)  # the order of sums must not depend on the machine
    directory, out = map(pathlib.Path, sys.argv[1:3])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    half, double = load(directory), make_double(load(directory))
    ends = half.generation_config.eos_token_id
    tensors, about = {}, []
    for name, prompt in PROMPTS.items():
        parts = [prompt] if isinstance(prompt, str) else prompt_parts(*prompt)
        got = record(double, half, ids_of(parts, tokenizer), ends)
        tensors.update({f"{name}.{key}": value.contiguous() for key, value in got.items()})
        ratio = (got["bf16"].float() - got["logits"]).square().mean(1).sqrt() / got["noise"]
        about.append(
            {
                "name": name,
                "text": "".join(parts),
                "tokens": len(got["ids"]),
                "rows": len(got["positions"]),
                "greedy": tokenizer.decode(got["greedy"].tolist(), skip_special_tokens=False),
            }
        )
        print(
            f"{name}: {len(got['ids'])} tokens, noise {got['noise'].mean():.4f}, largest {got['noise_most'].max():.4f}, transformers in bf16 "
            f"{ratio.mean():.2f} times the noise, at most {ratio.max():.2f}; smallest margin {got['gap'].min():.3f}: {about[-1]['greedy']!r}"
        )
    save_file(tensors, str(out / f"{directory.name}.safetensors"))
    digest = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    head = {
        "model": directory.name,
        "model_sha256": digest,
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "noise_runs": RUNS,
        "prompts": about,
    }
    (out / f"{directory.name}.json").write_text(json.dumps(head, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
