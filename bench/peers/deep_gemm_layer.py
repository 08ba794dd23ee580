"""Measures layers of FP8 weights in blocks of 128 x 128 with DeepGEMM's grouped GEMM, and appends their rows to an fp8.csv of
sluice_bench_cuda.

usage: python3 deep_gemm_layer.py --csv fp8.csv --expert-ids DIR [--package DIR] [--models LIST] [--tokens LIST] [--routing LIST]
                                  [--pace LIST] [--replays N] [--seconds N]

Requires a GPU, nvcc, torch, triton, and DeepGEMM (--package: the folder that has deep_gemm; vLLM's wheel has it in vllm/third_party).
layer_bench.py describes the method.

expert_gemms  from rows of x that are sorted by expert: rounding x in groups of 128 columns, m_grouped_fp8_gemm_nt_contiguous, activation and
              rounding, m_grouped_fp8_gemm_nt_contiguous
moe_layer     rounding x, gathering rows and their scales by expert, the same two GEMMs, and the weighted sum

Each expert's rows are padded to multiples of 128 rows, as DeepGEMM requires. The order of rows is computed beforehand. Everything besides the
GEMMs is a Triton kernel of this file, one for each step.
"""

import argparse
import sys
import time

import torch
import triton
import triton.language as tl

from bf16_layer import MODELS as BF16_MODELS
from layer_bench import DRAWS, Csv, measure, read_draws

SUFFIX = ".fp8-blocks.fp8-activations"
MODELS = {name: BF16_MODELS[name] for name in ("deepseek-v3-ep8", "glm-4.5-air", "qwen3-30b-a3b")}
ROOM = 24 << 30  # bytes of all sets of weights together; there are 1 to 3 sets
SHARE = 2.0**-4  # bound of a token's relative error: activations are rounded twice
GROUP = 128


@triton.jit
def round_groups(x, order, q, scale, rows, columns, GATHERS: tl.constexpr, GATED: tl.constexpr, GROUPS: tl.constexpr):
    """Rounds GROUPS groups of 128 columns of a row to e4m3. scale is [groups, rows]. GATED: x has gates, then ups, and silu(gate) * up is
    rounded. GATHERS: row r is row order[r] of x, or zeros if order[r] < 0."""
    row = tl.program_id(0)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = at < columns
    source = tl.load(order + row).to(tl.int64) if GATHERS else row.to(tl.int64)
    if source >= 0:
        width = 2 * columns if GATED else columns
        v = tl.load(x + source * width + at, mask=inside, other=0).to(tl.float32)
        if GATED:
            up = tl.load(x + source * width + columns + at, mask=inside, other=0).to(tl.float32)
            v = v / (1 + tl.exp(-v)) * up
        s = tl.maximum(tl.max(tl.abs(v), 1), 1e-10) / 448
        tl.store(scale + group * rows + row, s, mask=group * 128 < columns)
        tl.store(q + row.to(tl.int64) * columns + at, (v / s[:, None]).to(tl.float8e4nv), mask=inside)


@triton.jit
def gather_rows(x, scale, order, to, to_scale, from_rows, rows, columns, BLOCK: tl.constexpr):
    """Copies rounded rows of tokens (as bytes), with their scales, into the order of experts."""
    row = tl.program_id(0)
    source = tl.load(order + row).to(tl.int64)
    if source >= 0:
        for first in range(0, columns, BLOCK):
            at = first + tl.arange(0, BLOCK)
            inside = at < columns
            tl.store(to + row.to(tl.int64) * columns + at, tl.load(x + source * columns + at, mask=inside), mask=inside)
        group = tl.arange(0, 64)
        inside = group * 128 < columns
        tl.store(to_scale + group * rows + row, tl.load(scale + group * from_rows + source, mask=inside), mask=inside)


@triton.jit
def add_slots(g, position, weights, y, hidden, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(SLOTS):
        row = tl.load(position + token * SLOTS + slot).to(tl.int64)
        if row >= 0:
            total += tl.load(weights + token * SLOTS + slot) * tl.load(g + row * hidden + at, mask=inside).to(tl.float32)
    tl.store(y + token * hidden + at, total.to(tl.bfloat16), mask=inside)


class Matrix:
    """FP8 weights [experts, rows, columns] with f32 scales of blocks of 128 x 128."""

    def __init__(self, experts, rows, columns, make):
        blocks = ((rows + GROUP - 1) // GROUP, (columns + GROUP - 1) // GROUP)
        self.q = torch.empty((experts, rows, columns), dtype=torch.float8_e4m3fn, device="cuda")
        for e in range(experts):
            self.q[e] = (64 * torch.randn((rows, columns), device="cuda", generator=make)).clamp(-448, 448).to(torch.float8_e4m3fn)
        self.scale = (1 + torch.rand((experts, *blocks), device="cuda", generator=make)) / (64 * columns**0.5)

    def of(self, e):
        wide = self.scale[e].double().repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
        return self.q[e].double() * wide[: self.q.shape[1], : self.q.shape[2]]


class Order:
    """The rows of a routing sample, sorted by expert and padded."""

    def __init__(self, model, ids):
        flat = ids.flatten().long()
        local = torch.nonzero(flat >= 0).flatten()
        sorted_at = local[torch.argsort(flat[local], stable=True)]
        count = torch.bincount(flat[local], minlength=model.experts)
        padded = (count + GROUP - 1) // GROUP * GROUP
        begin = torch.cumsum(padded, 0) - padded
        place = begin[flat[sorted_at]] + torch.arange(len(sorted_at), device="cuda") - (torch.cumsum(count, 0) - count)[flat[sorted_at]]
        self.rows = int(padded.sum())
        self.token = torch.full((self.rows,), -1, dtype=torch.int32, device="cuda")
        self.token[place] = (sorted_at // model.top_k).int()
        self.expert = torch.repeat_interleave(torch.arange(model.experts, device="cuda"), padded).int()
        self.position = torch.full((len(flat),), -1, dtype=torch.int32, device="cuda")
        self.position[sorted_at] = place.int()


class Layer:
    """The layer's buffers, for any number of rows up to `rows`."""

    def __init__(self, gemm, model, tokens, rows):
        self.gemm, self.model = gemm, model
        fp8 = lambda *shape: torch.empty(shape, dtype=torch.float8_e4m3fn, device="cuda")
        bf16 = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        self.tokens = fp8(tokens, model.hidden), torch.empty((model.hidden // GROUP, tokens), device="cuda")
        self.x, self.h = fp8(rows, model.hidden), fp8(rows, model.inner)
        self.x_scale, self.h_scale = (torch.empty((n // GROUP, rows), device="cuda") for n in (model.hidden, model.inner))
        self.z, self.g, self.y = bf16(rows, 2 * model.inner), bf16(rows, model.hidden), bf16(tokens, model.hidden)

    def round(self, x, order, to, scale, rows, columns, gated=False):
        groups = 4 if columns % 512 == 0 else 1
        round_groups[(rows, triton.cdiv(columns, GROUP * groups))](x, order if order is not None else to, to, scale, rows, columns,
                                                                   order is not None, gated, groups, num_warps=groups)

    def products(self, o, w, m):
        scales = lambda buffer, columns: buffer.flatten()[: columns // GROUP * m].view(columns // GROUP, m).t()
        z, h, g = self.z[:m], self.h[:m], self.g[:m]
        self.gemm((self.x[:m], scales(self.x_scale, self.model.hidden)), (w[0].q, w[0].scale), z, o.expert)
        self.round(z, None, h, self.h_scale, m, self.model.inner, gated=True)
        self.gemm((h, scales(self.h_scale, self.model.inner)), (w[1].q, w[1].scale), g, o.expert)
        return g

    def gemms(self, sorted_x, o, w):
        self.round(sorted_x, None, self.x, self.x_scale, o.rows, self.model.hidden)
        return self.products(o, w, o.rows)

    def whole(self, x, o, weights, w):
        tokens, hidden = x.shape
        self.round(x, None, *self.tokens, tokens, hidden)
        gather_rows[(o.rows,)](self.tokens[0].view(torch.uint8), self.tokens[1], o.token, self.x.view(torch.uint8), self.x_scale, tokens,
                               o.rows, hidden, 2048)
        g = self.products(o, w, o.rows)
        add_slots[(tokens, triton.cdiv(hidden, 1024))](g, o.position, weights, self.y, hidden, self.model.top_k, 1024)
        return self.y[:tokens]


def wrong_token(model, w, x, ids, weights, y):
    for t in sorted({0, x.shape[0] // 2, x.shape[0] - 1}):
        want = torch.zeros(model.hidden, dtype=torch.float64, device="cuda")
        for e, weight in zip(ids[t].tolist(), weights[t].tolist()):
            if e >= 0:
                want += weight * (w[1].of(e) @ model.activate(w[0].of(e) @ x[t].double()))
        size = float(want.norm())
        off = float((y[t].double() - want).norm()) / (size or 1)
        if not off <= SHARE:
            return f"token {t} has the relative error {off:.4f}, wanted at most {SHARE}"
    return ""


def run_model(gemm, table, options, model, end):
    size = 3 * model.experts * model.hidden * model.inner
    sets = []
    for seed in range(max(1, min(3, ROOM // size))):
        make = torch.Generator(device="cuda").manual_seed(seed)
        sets.append((Matrix(model.experts, 2 * model.inner, model.hidden, make), Matrix(model.experts, model.hidden, model.inner, make)))
    name = model.name + SUFFIX
    for tokens in options.tokens:
        x = [torch.randn((tokens, model.hidden), device="cuda").bfloat16() for _ in range(3)]
        for spread in options.routing:
            named = argparse.Namespace(name=name, top_k=model.top_k)
            ids = read_draws(options.draws, named, spread, tokens)
            if ids is None or time.monotonic() > end:
                print(f"!! {name} M={tokens} {spread}: skipped, " + ("no expert ids" if ids is None else "--seconds is used up"))
                continue
            weights = torch.rand((DRAWS, tokens, model.top_k), device="cuda") + 0.5
            orders = [Order(model, i) for i in ids]
            layer = Layer(gemm, model, tokens, max(o.rows for o in orders))
            wrong = wrong_token(model, sets[0], x[0], ids[0], weights[0], layer.whole(x[0], orders[0], weights[0], sets[0]))
            if wrong:
                print(f"!! {name} M={tokens} {spread}: skipped, wrong result: {wrong}", flush=True)
                continue
            sorted_x = [x[0][o.token.clamp(min=0).long()] for o in orders]
            runs = {
                "expert_gemms": lambda i: layer.gemms(sorted_x[i % DRAWS], orders[i % DRAWS], sets[i % len(sets)]),
                "moe_layer": lambda i: layer.whole(x[i % 3], orders[i % DRAWS], weights[i % DRAWS], sets[i % len(sets)]),
            }
            for op, run in runs.items():
                for pace, times in measure(run, options.replays, options.pace).items():
                    if times:
                        table.add(op, name, tokens, f"{pace} {spread}", times)


def main():
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True, help="fp8.csv of sluice_bench_cuda, to which rows are appended")
    parser.add_argument("--expert-ids", dest="draws", required=True, metavar="DIR", help="folder that sluice_bench_cuda --expert-ids wrote")
    parser.add_argument("--package", metavar="DIR", help="folder that has the package deep_gemm, if it is not installed")
    parser.add_argument("--models", type=words, default=["deepseek-v3-ep8", "glm-4.5-air"], help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--tokens", type=lambda text: [int(w) for w in text.split(",")], default=[1024, 4096, 16384, 8192, 2048, 512])
    parser.add_argument("--routing", type=words, default=["uniform"])
    parser.add_argument("--pace", type=words, default=["burst", "sustained"])
    parser.add_argument("--replays", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    if unknown := [m for m in options.models if m not in MODELS]:
        parser.error(f"--models: wanted some of {', '.join(MODELS)}, found '{unknown[0]}'")
    if options.package:
        sys.path.insert(0, options.package)
    import deep_gemm

    table = Csv(options.csv, "deepgemm", deep_gemm.__version__, "fp8")
    end = time.monotonic() + options.seconds
    for i, model in enumerate(options.models):
        now = time.monotonic()
        run_model(deep_gemm.m_grouped_fp8_gemm_nt_contiguous, table, options, MODELS[model], now + (end - now) / (len(options.models) - i))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
