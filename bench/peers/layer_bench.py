"""Shared code of the programs that measure layers of PyTorch libraries: models, random weights, double-precision reference, timing, CSV.

The method is the same as in bench/cuda/contest.cc: captured graphs rotate over three sets of weights and eight routing samples. A burst is at most
5 ms of work after 10 ms of rest. A sustained measurement is 300 ms without rest, of which the second half is timed. Every problem is
checked in double precision before it is timed. The expert ids are those that sluice_bench_cuda --expert-ids wrote, so rows with equal
model, tokens and note mean the same work; their bytes and flops are copied from the CSV.
"""

import argparse
import csv
import dataclasses
import os
import statistics
import time

import numpy
import torch

SETS, DRAWS = 3, 8
BURST_MS, PAUSE_MS, SUSTAINED_MS = 5.0, 10.0, 300.0
SHARE = 2.0**-6  # bound of the norm of a token's error, relative to the norm of the token, as for other baselines
# Early counts are spread over the range, so that the rows cover all of it even if time runs out.
TOKENS = [1, 64, 1024, 4096, 8, 256, 16, 2, 512, 32, 128, 2048, 4, 8192, 16384]


@dataclasses.dataclass(frozen=True)
class Model:
    """A layer's shapes, and act(g, u) = g / (1 + exp(-alpha g)) * (u + beta), g clamped from above and u from both sides."""

    name: str
    experts: int
    top_k: int
    hidden: int
    inner: int
    alpha: float
    beta: float
    limit: float
    gpt_oss: bool  # gate and up rows alternate, with biases; otherwise all gate rows come first, without biases

    def activate(self, z):
        gate, up = (z[..., 0::2], z[..., 1::2]) if self.gpt_oss else z.chunk(2, -1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


MODELS = {
    m.name: m
    for m in (
        Model("gpt-oss-120b", 128, 4, 2880, 2880, 1.702, 1.0, 7.0, True),
        Model("gpt-oss-20b", 32, 4, 2880, 2880, 1.702, 1.0, 7.0, True),
        Model("deepseek-v4-flash", 256, 6, 4096, 2048, 1.0, 0.0, 10.0, False),
        Model("held-out-3072x1536", 64, 4, 3072, 1536, 1.702, 1.0, 7.0, True),
        Model("held-out-5120x1024", 160, 8, 5120, 1024, 1.0, 0.0, 10.0, False),
    )
}
# No kernel of Sluice was fitted to held-out shapes. They are measured only if --models names them.
BY_DEFAULT = [name for name in MODELS if "held-out" not in name]


def random_experts(model, seed):
    """Returns one set of weights in checkpoint order; without biases if the model has none."""
    make = torch.Generator(device="cuda").manual_seed(seed)
    out = {}
    for name, n, k in (("up", 2 * model.inner, model.hidden), ("down", model.hidden, model.inner)):
        rows = (model.experts, n)
        out[name] = torch.randint(0, 256, (*rows, k // 2), dtype=torch.uint8, device="cuda", generator=make)
        out[name + "_scale"] = torch.randint(120, 123, (*rows, k // 32), dtype=torch.uint8, device="cuda", generator=make)
        if model.gpt_oss:
            out[name + "_bias"] = (0.05 * torch.randn(rows, device="cuda", generator=make)).to(torch.bfloat16).float()
    return out


def decoded(codes, scales):
    """Returns the matrix of one expert, f64[N, K]."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device="cuda")
    values = torch.cat([values, -values])
    w = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], -1).flatten(-2)
    return w * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)


def reference(model, raw, x, ids, weights):
    """Returns y of one token in double precision."""

    def product(name, e, v):
        y = decoded(raw[name][e], raw[name + "_scale"][e]) @ v
        return y + raw[name + "_bias"][e].double() if model.gpt_oss else y

    y = torch.zeros(model.hidden, dtype=torch.float64, device="cuda")
    for e, weight in zip(ids.tolist(), weights.tolist()):
        y += weight * product("down", e, model.activate(product("up", e, x.double())))
    return y


def wrong_token(model, raw, x, ids, weights, y):
    """Checks three tokens of y. Returns an empty string, or a description of the error."""
    for t in sorted({0, x.shape[0] // 2, x.shape[0] - 1}):
        want = reference(model, raw, x[t], ids[t], weights[t].double())
        off = float((y[t].double() - want).norm() / want.norm())
        if not off <= SHARE:
            return f"token {t} has the relative error {off:.4f}, wanted at most {SHARE}"
    return ""


def replay_ms(graph):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(100_000)  # hides the host's launch overhead
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def record(run, count):
    for i in range(2):
        run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            run(i)
    return graph


def quantiles(us):
    us = sorted(us)
    at = lambda share: us[round(share * (len(us) - 1))]
    return statistics.median_low(us), at(0.1), at(0.9)


def measure(run, replays, paces=("burst", "sustained")):
    """Returns (median, p10, p90) of one run in microseconds, by pace; None for bursts if one run is longer than a burst."""
    graph = record(run, 3)
    replay_ms(graph)
    count = int(min(96, max(1, 0.9 * BURST_MS * 3 / replay_ms(graph))))
    while True:
        graph = record(run, count)
        one = replay_ms(graph)
        if one <= BURST_MS or count == 1:
            break
        count = max(1, int(0.9 * count * BURST_MS / one))  # later routing samples may have more distinct experts than the first three
    burst = []
    for _ in range(replays):
        time.sleep(PAUSE_MS / 1000)
        burst.append(1000 * replay_ms(graph) / count)
    one = statistics.median(burst) * count / 1000
    out = {"burst": quantiles(burst) if one <= BURST_MS else None}
    if "sustained" not in paces:
        return out
    repeats = max(8, int(SUSTAINED_MS / one) + 1)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    half = range(repeats // 2, repeats)
    sustained = [1000 * marks[i].elapsed_time(marks[i + 1]) / count for i in half]
    out["sustained"] = quantiles(sustained)
    return {pace: out[pace] for pace in paces}


class Csv:
    """The mxfp4.csv or bf16.csv of a run of sluice_bench_cuda, to which rows are appended."""

    def __init__(self, path, impl, version, suite="mxfp4"):
        self.path, self.impl, self.version, self.suite = path, impl, version, suite
        with open(path, newline="") as file:
            self.work = {(r["op"], r["model"], int(r["tokens"]), r["note"]): (r["bytes"], r["flops"])
                         for r in csv.DictReader(file)}

    def add(self, op, model, tokens, note, times):
        work = self.work.get((op, model, tokens, note))
        if work is None:
            print(f"!! {op} {model} M={tokens} {note}: skipped, the CSV has no row to compare with")
            return
        median, p10, p90 = times
        with open(self.path, "a") as file:
            file.write(f"{self.suite},{op},{model},{tokens},{self.impl},{self.version},{median:.4f},{p10:.4f},{p90:.4f},"
                       f"{work[0]},{work[1]},{note}\n")
        print(f"{self.impl:16} {op:13} {model:19} {tokens:6} {note:17} {median:9.2f} us", flush=True)


def read_draws(folder, model, spread, tokens):
    """Returns expert ids, int32[DRAWS, tokens, top_k] on the GPU, or None if there is no file or its samples have fewer tokens."""
    path = os.path.join(folder, f"{model.name}_{spread}.i32")
    if not os.path.exists(path):
        return None
    ids = numpy.fromfile(path, dtype=numpy.int32).reshape(DRAWS, -1, model.top_k)
    return torch.from_numpy(ids[:, :tokens].copy()).cuda() if ids.shape[1] >= tokens else None


def ids_of_all(model, ids):
    """Replaces -1, an expert on another GPU, by the id of any such expert."""
    if model.routed == model.experts:
        return ids
    return torch.where(ids < 0, model.experts + torch.arange(ids.shape[1], device="cuda", dtype=torch.int32), ids)


def options_of(description, models):
    """Returns a parser with the shared arguments; the caller adds its own."""
    words = lambda text: [int(w) for w in text.split(",")]

    def named(text):
        for name in text.split(","):
            if name not in models:
                raise argparse.ArgumentTypeError(f"wanted some of {', '.join(models)}, found '{name}'")
        return [MODELS[name] for name in text.split(",")]

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True, help="mxfp4.csv of sluice_bench_cuda, to which rows are appended")
    parser.add_argument("--expert-ids", "--draws", dest="draws", required=True, metavar="DIR", help="folder that sluice_bench_cuda --expert-ids wrote")
    parser.add_argument("--package", metavar="DIR", help="folder with the library's Python package, if it is not installed")
    parser.add_argument("--tokens", type=words, default=TOKENS)
    parser.add_argument("--models", type=named, default=",".join(m for m in models if m in BY_DEFAULT))
    parser.add_argument("--pace", type=lambda text: text.split(","), default=["burst", "sustained"])
    parser.add_argument("--ops", type=lambda text: text.split(","), default=["expert_gemms", "moe_layer"])
    parser.add_argument("--replays", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1e9)
    return parser


def run_all(options, load, measure_problem):
    """Gives each model an equal share of --seconds. Calls load(model) once, then measure_problem(loaded, model, tokens, spread, ids) for
    every token count and routing until the share is used up."""
    end = time.monotonic() + options.seconds
    for i, model in enumerate(options.models):
        now = time.monotonic()
        until = now + (end - now) / (len(options.models) - i)
        loaded = load(model)
        for tokens in options.tokens:
            for spread in ("uniform", "zipf"):
                what = f"{model.name} M={tokens} {spread}"
                if time.monotonic() > until:
                    print(f"!! {what}: skipped, its share of --seconds is used up")
                    continue
                ids = read_draws(options.draws, model, spread, tokens)
                if ids is None:
                    print(f"!! {what}: skipped, --expert-ids has no ids for so many tokens")
                    continue
                try:
                    measure_problem(loaded, model, tokens, spread, ids)
                except Exception as error:  # a refusal by the baseline: report it and measure the rest
                    print(f"!! {what}: skipped: {error!r}")
        del loaded
        torch.cuda.empty_cache()
