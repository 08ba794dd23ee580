"""Measures how many drafts of a draft head the target model accepts. As in Sluice, the target samples its own token, and a draft (the argmax of
the head) is accepted if it equals that token. Answers never depend on drafts.

    acceptance.py MODEL HEAD [--questions N] [--check N]

Asks the model's held-out questions at temperature 0 and 1. --check also runs N of them step by step with KV caches, as a server does, in float32
on the CPU, and compares the results.
"""

import argparse
import json
import pathlib

import torch

from answers import Sequences, groups, load_tokenizer
from harmony import System, final_text, ids_of, prompt_parts
from head import load_head
from target import STOPS, Target

CHAINS = (3, 5)
MAX_TOKENS = 320


@torch.no_grad()
def accepted_anywhere(head, sequences: Sequences, steps: int, tokens: int = 16384) -> list:
    """Returns for each sequence how many of `steps` drafts would be accepted after each token of its answer. The head reads the answer's tokens
    instead of its own drafts, which makes no difference up to the first wrong draft."""
    out = [[] for _ in sequences.prompts]
    for part in groups(sequences.usable(), sequences.answers, tokens):
        b = sequences.batch(part)
        ids = torch.nn.functional.pad(b.ids, (0, steps))
        known = torch.nn.functional.pad(b.known, (0, steps))
        going, counts = 1, 0
        for t, y in enumerate(head.unroll(b.features, b.ids, b.positions, b.first, steps)):
            here = slice(b.first + 2 + t, b.first + 2 + t + y.shape[1])
            going = going * ((head.logits(y).argmax(-1) == ids[:, here]) & known[:, here])
            counts = counts + going
        for i, row in zip(part, counts.tolist()):
            out[i] = row
    return out


def rounds(accepted: list, tokens: int, k: int) -> list:
    """Returns the number of accepted drafts in each verification of an answer of `tokens` tokens, with k drafts per verification."""
    out, at = [], 0
    while at < tokens - 1 and accepted:
        out.append(min(accepted[at], k) if at < len(accepted) else 0)
        at += out[-1] + 1
    return out


def report(of_rounds: list, k: int) -> dict:
    """Summarizes of_rounds, the accepted drafts of each verification. `length` in the result: tokens per verification."""
    count = max(len(of_rounds), 1)
    return {
        "drafts": k,
        "verifications": len(of_rounds),
        "by_position": [sum(a > j for a in of_rounds) / count for j in range(k)],
        "length": 1 + sum(of_rounds) / count,
    }


def serve(target, head, prompt: list, k: int, noise, most: int) -> tuple:
    """Answers one prompt with KV caches, as a server does, and returns (answer, accepted drafts of each verification). The head reads the residual
    streams of verified rows, and its own hidden states for later drafts. noise [most, vocab] is added to logits; k >= 0."""
    taps, device = head.c.taps, target.device
    cache, head_cache = target.new_cache(1, len(prompt) + most + k), None
    answer, counts, fed, at, drafts = [], [], prompt, 0, []
    while True:
        positions = torch.arange(at, at + len(fed), device=device)[None]
        stream, features = target.forward(torch.tensor([fed], device=device), positions, cache, at + len(fed), taps)
        rows = len(drafts) + 1  # rows that predict a token of the answer
        logits = target.logits(stream[0, -rows:]) + noise[len(answer) : len(answer) + rows]
        drawn = logits.argmax(-1).tolist()
        right = next((j for j, d in enumerate(drafts) if d != drawn[j]), len(drafts))
        new = drawn[: right + 1]
        new = new[: next((j + 1 for j, t in enumerate(new) if t in STOPS), len(new))]
        if answer:
            counts.append(min(right, len(new)))
        answer += new
        if len(answer) >= most or answer[-1] in STOPS:
            return answer[:most], counts
        valid = len(fed) - len(drafts) + right
        followers = torch.tensor([fed[1:valid] + [answer[-1]]], device=device)
        g, y, head_cache = head.extend(head.reduced(features[:, :valid]), followers, positions[:, :valid], head_cache)
        at, drafts, own = at + valid, [], head_cache
        for j in range(min(k, most - len(answer) - 1)):
            if j:
                place = torch.tensor([[at - 1 + j]], device=device)
                g, y, own = head.extend(g[:, -1:], torch.tensor([drafts[-1:]], device=device), place, own)
            drafts.append(int(head.logits(y[:, -1]).argmax(-1)))
        fed = [answer[-1]] + drafts


def check(model: pathlib.Path, directory: pathlib.Path, prompts: list, most: int) -> None:
    """Checks that answers with drafts equal answers without, and that as many drafts are accepted as accepted_anywhere() says."""
    target = Target(model, "cpu", torch.float32)
    head = load_head(directory, target.w["embed_tokens.weight"], target.w["lm_head.weight"])
    for i, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(i)
        noise = -torch.empty(most + 8, target.c.vocab).exponential_(generator=generator).log() * (i % 2)
        plain, _ = serve(target, head, prompt, 0, noise, most)
        sequences = Sequences(target, head.c.taps, [prompt], [plain])
        anywhere = accepted_anywhere(head, sequences, max(CHAINS))[0]
        for k in CHAINS:
            drafted, counts = serve(target, head, prompt, k, noise, most)
            expected = rounds(anywhere, len(plain), k)
            print(f"check: temperature {i % 2}, {len(plain)} tokens, {k} drafts: accepted {counts}", flush=True)
            if drafted != plain or counts != expected:
                raise SystemExit(f"serving with drafts: {drafted} {counts}, expected {plain} {expected}")


def evaluate(target, head, model: pathlib.Path, count: int, seed: int) -> dict:
    """Returns {temperature: {right, asked, tokens, chains: [report]}} for held-out questions of eval.jsonl."""
    tokenizer = load_tokenizer(model)
    lines = [json.loads(line) for line in (model / "eval.jsonl").read_text().splitlines()][:count]
    prompts = [ids_of(prompt_parts(System(), [(q["question"], None)]), tokenizer) for q in lines]
    generator, out = torch.Generator(target.device).manual_seed(seed), {}
    for temperature in (0, 1):
        answers = target.answers(prompts, [temperature == 1] * len(prompts), MAX_TOKENS, generator)
        right = sum(final_text(tokenizer.decode(a, skip_special_tokens=False)) == q["answer"] for a, q in zip(answers, lines))
        anywhere = accepted_anywhere(head, Sequences(target, head.c.taps, prompts, answers), max(CHAINS))
        chains = [report([a for x, y in zip(anywhere, answers) for a in rounds(x, len(y), k)], k) for k in CHAINS]
        out[temperature] = {"right": right, "asked": len(lines), "tokens": sum(map(len, answers)), "chains": chains}
        print(f"temperature {temperature}: {right} of {len(lines)} answers right, {out[temperature]['tokens']} tokens")
        for c in chains:
            by_position = " ".join(f"{p:.3f}" for p in c["by_position"])
            print(f"  {c['drafts']} drafts: {c['length']:.2f} tokens per verification; accepted by position {by_position}", flush=True)
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("head", type=pathlib.Path)
    p.add_argument("--questions", type=int, default=1001)
    p.add_argument("--check", type=int, default=0)
    p.add_argument("--most", type=int, default=MAX_TOKENS, help="maximum tokens of a checked answer")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.questions:
        target = Target(args.model, device, torch.bfloat16 if device == "cuda" else torch.float32)
        head = load_head(args.head, target.w["embed_tokens.weight"], target.w["lm_head.weight"])
        evaluate(target, head, args.model, args.questions, args.seed)
    if args.check:
        tokenizer = load_tokenizer(args.model)
        lines = [json.loads(line) for line in (args.model / "eval.jsonl").read_text().splitlines()][: args.check]
        prompts = [ids_of(prompt_parts(System(), [(q["question"], None)]), tokenizer) for q in lines]
        check(args.model, args.head, prompts, args.most)


if __name__ == "__main__":
    main()
