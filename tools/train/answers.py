"""The training data of a draft head: prompts as a server makes them, the target's own answers, and the target's residual streams."""

import dataclasses
import multiprocessing
import pathlib
import random

import torch
from tokenizers import Tokenizer

from harmony import Special, ids_of
from problem import JOIN
from tasks import conversation


def load_tokenizer(directory: pathlib.Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def served_ids(parts: list, tokenizer) -> list:
    """Returns the ids of a prompt as a server tokenizes it, without JOIN in the text of past answers."""
    return ids_of([part if isinstance(part, Special) else part.replace(JOIN, "") for part in parts], tokenizer)


def _prompts(job: tuple) -> list:
    directory, seed, count = job
    tokenizer, rng = load_tokenizer(directory), random.Random(seed)
    return [served_ids(conversation(rng)[0], tokenizer) for _ in range(count)]


def prompt_lists(directory: pathlib.Path, seed: int, lists: int, count: int, workers: int):
    """Yields `lists` lists of `count` training prompts. Call next() before CUDA is initialized, because it forks workers."""
    jobs = [(directory, f"{seed},{i}", count) for i in range(lists)]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield None
        yield from pool.imap(_prompts, jobs)


def groups(order: list, lengths: list, tokens: int) -> list:
    """Splits `order` into consecutive parts, each of one element or of at most `tokens` tokens with padding."""
    out, part, longest = [], [], 0
    for i in order:
        if part and max(longest, lengths[i]) * (len(part) + 1) > tokens:
            out.append(part)
            part, longest = [], 0
        longest = max(longest, lengths[i])
        part.append(i)
    return out + [part] if part else out


@dataclasses.dataclass
class Batch:
    """Sequences as rows [rows, columns, ..], aligned so that the first token of each answer is in column `first` + 1. `known` is false in
    padding."""

    features: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor
    known: torch.Tensor
    first: int


class Sequences:
    """Prompts, their answers, and the target's residual streams `taps` at every token, in bf16."""

    def __init__(self, target, taps: tuple, prompts: list, answers: list, tokens: int = 65536):
        self.prompts, self.answers = [len(p) for p in prompts], [len(a) for a in answers]
        rows = [p + a for p, a in zip(prompts, answers)]
        lengths = torch.tensor([len(r) for r in rows])
        self.device = target.device
        self.starts = (lengths.cumsum(0) - lengths).to(self.device)
        self.ids = torch.tensor([t for r in rows for t in r], device=self.device)
        self.features = torch.empty(len(self.ids), len(taps) * target.c.hidden, dtype=torch.bfloat16, device=self.device)
        sizes = lengths.tolist()
        for part in groups(sorted(range(len(rows)), key=sizes.__getitem__), sizes, tokens):
            self._run(target, taps, torch.tensor(part, device=self.device), lengths[part].to(self.device))

    def _run(self, target, taps, part, lengths):
        width = int(lengths.max())
        column = torch.arange(width, device=self.device)
        known = column < lengths[:, None]
        index = self.starts[part][:, None] + column
        ids = self.ids[index.clamp(max=len(self.ids) - 1)] * known
        positions = column.expand(len(part), width)
        features = target.forward(ids, positions, target.new_cache(len(part), width), width, taps)[1]
        self.features[index[known]] = features[known].bfloat16()

    def batch(self, rows: list) -> Batch:
        prompts, answers = ([of[i] for i in rows] for of in (self.prompts, self.answers))
        left = max(prompts)
        column = torch.arange(left + max(answers), device=self.device)
        prompt, answer = (torch.tensor(x, device=self.device)[:, None] for x in (prompts, answers))
        positions = column - (left - prompt)
        known = (positions >= 0) & (positions < prompt + answer)
        at = self.starts[torch.tensor(rows, device=self.device)][:, None] + positions.clamp(min=0).minimum(prompt + answer - 1)
        return Batch(self.features[at], self.ids[at] * known, positions, known, left - 1)

    def usable(self) -> list:
        """Returns the sequences that have at least one token for a first draft, ordered by the length of their answers."""
        return sorted((i for i, n in enumerate(self.answers) if n > 1), key=self.answers.__getitem__)

    def epoch(self, rng: random.Random, tokens: int) -> list:
        """Splits the sequences into batches of answers of similar length, each of at most `tokens` answer tokens with padding. A short answer counts as
        32 tokens, because its prompt costs as much as the prompt of a long one."""
        order = sorted(self.usable(), key=lambda i: self.answers[i] * rng.uniform(0.6, 1.6))
        out = groups(order, [max(n, 32) for n in self.answers], tokens)
        rng.shuffle(out)
        return out
