"""Trains an EAGLE3 draft head for a trained model on the model's own answers, and measures how many drafts the model accepts.

    train_head.py --model ../../models/sluice-16e-tiny --out DIR --seconds 70

Half of the answers are greedy, half are sampled at temperature 1. The head is unrolled as in serving: each step reads the output of the previous
step. --seconds limits the training. DIR receives config.json, model.safetensors, README.md and report.json; all figures are measured with
the written head.
"""

import argparse
import itertools
import json
import pathlib
import platform
import random
import time

import torch

from acceptance import MAX_TOKENS, check, evaluate
from answers import Sequences, load_tokenizer, prompt_lists, served_ids
from harmony import System, prompt_parts
from head import Head, HeadConfig, load_head, save_head
from target import Target
from train import optimiser, rate_at

CARD = pathlib.Path(__file__).parent / "head_card.md"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=pathlib.Path, required=True, help="directory of the MXFP4 checkpoint, tokenizer.json, eval.jsonl")
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--tokens", type=int, default=3_000_000, help="answer tokens to train on")
    p.add_argument("--prompts", type=int, default=8192, help="prompts per batch of answers")
    p.add_argument("--seconds", type=float, default=70, help="training time, without the making of answers")
    p.add_argument("--batch", type=int, default=32768, help="answer tokens per step, with padding")
    p.add_argument("--steps", type=int, default=4, help="number of drafts for which the head is unrolled")
    p.add_argument("--decay", type=float, default=0.9, help="weight of a draft's loss relative to the previous draft")
    p.add_argument("--rate", type=float, default=1.5e-3)
    p.add_argument("--flat-until", type=float, default=0.3, help="fraction of --seconds after which the learning rate falls")
    p.add_argument("--norm-before-residual", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--norm-output", action=argparse.BooleanOptionalAction, default=False)
    p.add_argument("--questions", type=int, default=1001, help="held-out questions to measure with")
    p.add_argument("--check", type=int, default=2, help="questions to check step by step on the CPU")
    p.add_argument("--workers", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def loss_of(head, target, batch, steps: int, decay: float, device: str):
    """Returns the cross-entropy with the target's distribution on answer tokens: (weighted mean over drafts, mean of each draft)."""
    columns = batch.ids.shape[1]
    count = columns - 2 - batch.first
    with torch.no_grad():
        last = batch.features[:, batch.first + 1 : columns - 1, -target.c.hidden :]
        wanted = target.logits(last).softmax(-1)  # row t: of the token t + 2 columns after `first`
    each = []
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        for t, y in enumerate(head.unroll(batch.features, batch.ids, batch.positions, batch.first, steps)):
            if t >= count:
                break
            known = batch.known[:, batch.first + 2 + t :]
            entropy = -(wanted[:, t:] * head.logits(y[:, : count - t]).log_softmax(-1)).sum(-1)
            each.append((entropy * known).sum() / known.sum().clamp(min=1))
    weights = [decay**t for t in range(len(each))]
    return sum(w * e for w, e in zip(weights, each)) / sum(weights), torch.stack(each).detach()


def start_norms(head, target, features) -> None:
    """Initialises norms: features of different magnitude get equal weight, and the last norm is a copy of the target's."""
    sample = features[:: max(1, len(features) // 65536)].float().unflatten(-1, (len(head.c.taps), -1))
    sizes = sample.square().mean((0, 2)).sqrt()
    print("RMS of each feature:", " ".join(f"{s:.2f}" for s in sizes.tolist()))
    with torch.no_grad():
        if head.c.norm_before_fc:
            head.input_norm.weight.copy_((sizes.square().mean().sqrt() / sizes).repeat_interleave(head.c.hidden))
        head.norm.weight.copy_(target.w["norm.weight"])


def train(head, target, sequences, args, device: str) -> dict:
    opt, rng = optimiser(head, args.rate), random.Random(args.seed)
    begin, steps, epochs, sums = time.monotonic(), 0, 0, torch.zeros(args.steps, device=device)
    batches, shown, since = iter(()), begin, 0
    while (share := (time.monotonic() - begin) / args.seconds) < 1:
        rows = next(batches, None)
        if rows is None:
            batches, epochs = iter(sequences.epoch(rng, args.batch)), epochs + 1
            continue
        for group in opt.param_groups:
            group["lr"] = args.rate * rate_at(share, args.flat_until)
        loss, each = loss_of(head, target, sequences.batch(rows), args.steps, args.decay, device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 0.5)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sums[: len(each)] += each
        steps, since = steps + 1, since + 1
        if time.monotonic() - shown > max(args.seconds / 12, 1):
            shown = time.monotonic()
            losses = " ".join(f"{s / since:.4f}" for s in sums.tolist())
            print(f"step {steps}, epoch {epochs}, {shown - begin:.0f} s, loss of each draft {losses}", flush=True)
            sums.zero_()
            since = 0
    return {"steps": steps, "epochs": epochs, "seconds": round(time.monotonic() - begin, 1)}


def table(measured: dict) -> str:
    """Returns the table of accepted drafts for README.md."""
    most = max(c["drafts"] for m in measured.values() for c in m["chains"])
    heads = ["temperature", "drafts", *(f"position {j + 1}" for j in range(most)), "tokens per verification"]
    lines = [heads, ["---"] * len(heads)]
    for temperature, m in measured.items():
        for c in m["chains"]:
            positions = [f"{100 * p:.1f} %" for p in c["by_position"]] + [""] * (most - c["drafts"])
            lines.append([str(temperature), str(c["drafts"]), *positions, f"{c['length']:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def card(report: dict, size: int) -> str:
    measured, made = report["measured"], report["answers"]
    return CARD.read_text().format(
        size=f"{size / 1e6:.1f}",
        parameters=f"{report['parameters'] / 1e6:.2f}",
        answers=f"{made['count']:,}".replace(",", " "),
        tokens=f"{made['tokens'] / 1e6:.2f}" if made["tokens"] > 1e5 else f"{made['tokens'] / 1e6:.5f}",
        epochs=report["training"]["epochs"],
        steps=report["training"]["steps"],
        seconds=f"{report['training']['seconds']:.0f}",
        unroll=report["arguments"]["steps"],
        device=report["device"],
        python=report["python"],
        torch=report["torch"],
        asked=measured[0]["asked"],
        right_0=measured[0]["right"],
        right_1=measured[1]["right"],
        table=table(measured),
        command=report["command"],
    )


def main() -> None:
    args = arguments()
    begin = time.monotonic()

    def say(text):
        print(f"[{time.monotonic() - begin:.0f} s] {text}", flush=True)

    # An answer has about 60 tokens. An unneeded list costs little.
    lists = prompt_lists(args.model, args.seed, args.tokens // (40 * args.prompts) + 2, args.prompts, args.workers)
    next(lists)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = Target(args.model, device, torch.bfloat16 if device == "cuda" else torch.float32)
    generator = torch.Generator(device).manual_seed(args.seed)
    prompts, answers, tokens = [], [], 0
    for part in lists:
        made = target.answers(part, [i % 2 == 1 for i in range(len(part))], MAX_TOKENS, generator)
        prompts, answers, tokens = prompts + part, answers + made, tokens + sum(map(len, made))
        say(f"{len(answers)} answers of {tokens} tokens, prompts of {sum(map(len, prompts))}")
        if tokens >= args.tokens:
            break
    lists.close()

    config = HeadConfig(norm_before_residual=args.norm_before_residual, norm_output=args.norm_output)
    sequences = Sequences(target, config.taps, prompts, answers)
    embedding, lm_head = target.w["embed_tokens.weight"], target.w["lm_head.weight"]
    head = Head(config, embedding, lm_head).to(device)
    start_norms(head, target, sequences.features)
    say("features are stored")
    training = train(head, target, sequences, args, device)
    save_head(head, args.out)
    say(f"trained: {training}")

    head = load_head(args.out, embedding, lm_head)  # measures the written head
    measured = evaluate(target, head, args.model, args.questions, args.seed)
    report = {
        "measured": measured,
        "training": training,
        "answers": {"count": len(answers), "tokens": tokens},
        "parameters": sum(p.numel() for p in head.parameters()),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__.split("+")[0],
        "arguments": {k: v if isinstance(v, (int, float)) else str(v) for k, v in vars(args).items()},
        "command": f"python3 train_head.py --model ../../models/sluice-16e-tiny --out DIR --tokens {args.tokens} --seconds {args.seconds:g} --seed {args.seed}",
    }
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "README.md").write_text(card(report, (args.out / "model.safetensors").stat().st_size))
    say("written")
    if args.check:
        tokenizer = load_tokenizer(args.model)
        lines = (args.model / "eval.jsonl").read_text().splitlines()
        questions = [json.loads(line)["question"] for line in itertools.islice(lines[4:], args.check)]
        check(args.model, args.out, [served_ids(prompt_parts(System(), [(q, None)]), tokenizer) for q in questions], MAX_TOKENS)
    say("done")


if __name__ == "__main__":
    main()
