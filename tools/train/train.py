"""Trains the model and writes checkpoints: bf16 and MXFP4, in the layout of gpt-oss.

    train.py --tokenizer DIR --out DIR --minutes 20
    train.py --tokenizer DIR --out DIR --minutes 7 --start model.safetensors --rate 6e-4 --flat-until 0.05 --quantise-from 0

--minutes limits the run. The learning rate depends on the elapsed fraction of this time: warm-up, constant, then linear to nearly 0.
The second form continues from an MXFP4 checkpoint.
From the fraction --quantise-from on, experts are rounded to MXFP4 in the forward pass. A killed run leaves its last checkpoint.
"""

import argparse
import json
import pathlib
import random
import time

import numpy
import torch
from tokenizers import Tokenizer

from export import export, read_state
from harmony import ids_of
from model import Config, Model
from tasks import conversation


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", type=pathlib.Path, required=True, help="directory of tokenizer.json")
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--minutes", type=float, default=20)
    p.add_argument("--rows", type=int, default=128, help="rows per step")
    p.add_argument("--length", type=int, default=512, help="tokens per row; conversations are packed into rows")
    p.add_argument("--rate", type=float, default=1.5e-3)
    p.add_argument("--flat-until", type=float, default=0.4, help="fraction of --minutes after which the learning rate falls")
    p.add_argument("--start", type=pathlib.Path, help="model.safetensors with MXFP4 experts, from which to continue")
    p.add_argument("--balance", type=float, default=0.01, help="weight of the load-balancing loss")
    p.add_argument("--quantise-from", type=float, default=0.6, help="fraction of --minutes after which experts are rounded to MXFP4")
    p.add_argument("--save-minutes", type=float, default=3)
    p.add_argument("--workers", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


class Rows(torch.utils.data.IterableDataset):
    """Yields endless batches [4, rows, length]: ids, positions, documents, and targets (-100: not trained)."""

    def __init__(self, args):
        self.args = args

    def row(self, rng, tokenizer):
        length = self.args.length
        row, at, document = numpy.zeros((4, length), dtype=numpy.int64), 0, 0
        row[3] = -100
        while True:
            prompt, reply = (ids_of(parts, tokenizer) for parts in conversation(rng))
            ids = prompt + reply
            end = at + len(ids)
            if end > length:
                if at:
                    row[2, at:] = -1  # the rest of the row is a document of zeros that no token attends to
                    return row
                continue  # skips conversations that are longer than a row
            row[0, at:end], row[1, at:end], row[2, at:end] = ids, numpy.arange(len(ids)), document
            row[3, at + len(prompt) - 1 : end - 1] = reply
            at, document = end, document + 1

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self.args.seed},{worker.id if worker else 0}")
        tokenizer = Tokenizer.from_file(str(self.args.tokenizer / "tokenizer.json"))
        tokenizer.encode_special_tokens = True
        while True:
            yield torch.from_numpy(numpy.stack([self.row(rng, tokenizer) for _ in range(self.args.rows)], axis=1))


def optimiser(model, rate):
    matrices = [p for n, p in model.named_parameters() if p.dim() >= 2 and not n.endswith("_bias")]
    rest = [p for n, p in model.named_parameters() if not (p.dim() >= 2 and not n.endswith("_bias"))]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8, fused=next(model.parameters()).is_cuda)


def rate_at(share: float, flat_until: float) -> float:
    """Returns the factor of the learning rate after a fraction of the time."""
    if share < 0.02:
        return share / 0.02
    return 1.0 if share < flat_until else max((0.99 - share) / (0.99 - flat_until), 0.005)


def save(model, args, report) -> None:
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    for name, quantised in (("bf16", False), ("mxfp4", True)):
        export(state, model.c, args.out / name, quantised)
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(Config())
    if args.start:
        model.load_state_dict(read_state(args.start))
    model = model.to(device)
    step_loss = torch.compile(model.loss) if device == "cuda" else model.loss
    opt = optimiser(model, args.rate)
    batches = iter(
        torch.utils.data.DataLoader(
            Rows(args),
            batch_size=None,
            num_workers=args.workers,
            pin_memory=device == "cuda",
            prefetch_factor=4 if args.workers else None,
        )
    )
    next(batches)  # waits for the workers before the time starts
    begin = time.monotonic()
    saved, shown, steps, sums = begin, begin, 0, torch.zeros(3, device=device)
    while (share := (time.monotonic() - begin) / (60 * args.minutes)) < 1:
        for group in opt.param_groups:
            group["lr"] = args.rate * rate_at(share, args.flat_until)
        batch = next(batches).to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss, balance = step_loss(*batch, share >= args.quantise_from)
        (loss + args.balance * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sums += torch.stack([loss.detach().float(), balance.detach().float(), norm.float()])
        steps += 1
        if steps % 200 == 0:
            now = time.monotonic()
            mean = (sums / 200).tolist()
            print(
                f"step {steps} time {now - begin:.0f} s loss {mean[0]:.5f} balance {mean[1]:.4f} gradient {mean[2]:.3f} "
                f"{200 * args.rows * args.length / (now - shown) / 1e3:.0f} k tokens/s",
                flush=True,
            )
            shown = now
            sums.zero_()
        if time.monotonic() - saved > 60 * args.save_minutes:
            save(model, args, {"steps": steps, "seconds": time.monotonic() - begin})
            saved = time.monotonic()
    save(
        model,
        args,
        {
            "steps": steps,
            "seconds": time.monotonic() - begin,
            "tokens": steps * args.rows * args.length,
            "arguments": {k: str(v) for k, v in vars(args).items()},
        },
    )
    print(f"done: {steps} steps", flush=True)


if __name__ == "__main__":
    main()
