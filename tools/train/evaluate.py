"""Writes held-out questions, and measures how many a checkpoint answers correctly.

    evaluate.py questions FILE [COUNT]                 writes eval.jsonl
    evaluate.py score DIR FILE [EFFORT ...]            greedy generation by transformers, exact match of the final message

DIR is a checkpoint with tokenizer.json. An MXFP4 checkpoint is dequantized to bf16 while loading.
"""

import collections
import json
import pathlib
import sys

from harmony import System, final_text, ids_of, prompt_parts
from problem import JOIN
from tasks import evaluation

BATCH = 500
MAX_TOKENS = 400


def questions(path: pathlib.Path, count: int) -> None:
    with path.open("w") as out:
        for p in evaluation(count, seed=20250628):
            line = {"task": p.task, "question": p.question, "answer": p.answer.replace(JOIN, "")}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def replies(model, tokenizer, prompts: list) -> list:
    """Returns the reply to each prompt (ids), decoded with its special tokens."""
    import torch

    pad, out = model.generation_config.pad_token_id, []
    for first in range(0, len(prompts), BATCH):
        part = prompts[first : first + BATCH]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part], device=model.device)
        with torch.no_grad():
            made = model.generate(ids, attention_mask=mask, max_new_tokens=MAX_TOKENS, do_sample=False)
        for row in made[:, width:].tolist():
            length = next((i for i, token in enumerate(row) if token == pad), len(row))
            out.append(tokenizer.decode(row[:length], skip_special_tokens=False))
    return out


def load(directory: pathlib.Path):
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, Mxfp4Config

    packed = "quantization_config" in json.loads((directory / "config.json").read_text())
    extra = {"quantization_config": Mxfp4Config(dequantize=True)} if packed else {}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, attn_implementation="eager", **extra)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def score(directory: pathlib.Path, path: pathlib.Path, efforts: list) -> dict:
    """Returns {effort: {task: [right, asked]}}, and prints wrong answers."""
    model, tokenizer = load(directory)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    report = {}
    for effort in efforts:
        prompts = [ids_of(prompt_parts(System(effort=effort), [(q["question"], None)]), tokenizer) for q in lines]
        counts = collections.defaultdict(lambda: [0, 0])
        for q, reply in zip(lines, replies(model, tokenizer, prompts)):
            right = final_text(reply) == q["answer"]
            counts[q["task"]][0] += right
            counts[q["task"]][1] += 1
            if not right:
                print(json.dumps({"effort": effort, **q, "reply": reply[-300:]}, ensure_ascii=False))
        report[effort] = dict(counts)
        right, asked = (sum(c[i] for c in counts.values()) for i in (0, 1))
        print(f"{directory.name} {effort}: {right} of {asked} = {100 * right / asked:.2f} %")
        for task, (good, all_of) in counts.items():
            print(f"  {task:14} {good:4} of {all_of}")
    return report


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "questions":
        questions(pathlib.Path(rest[0]), int(rest[1]) if len(rest) > 1 else 1001)
        return
    directory, path, *efforts = rest
    report = score(pathlib.Path(directory), pathlib.Path(path), efforts or ["medium"])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
