"""Measures triton_kernels' MXFP4 MoE layer (gpt-oss shapes) and appends its rows to a mxfp4.csv of sluice_bench_cuda.

usage: python3 triton_kernels_layer.py --csv mxfp4.csv --draws DIR [--package DIR] [--tokens LIST] [--models LIST]
                                       [--seconds N]

Wants torch and triton on the GPU's machine, and triton_kernels in --package (a folder that holds triton_kernels/) or
installed. --draws is the folder that sluice_bench_cuda --draws wrote: the same experts are chosen here, so rows of the same
model, tokens and note mean the same work; their bytes and flops are taken from the CSV. The method is that of
bench/cuda/contest.cc: recorded graphs over three sets of weights and eight draws, bursts of at most 5 ms behind 10 ms of
rest, and 300 ms without rest, its second half timed. Every problem is held to double precision before it is timed.

The layer is the one that its authors' model and vLLM run: top-k with softmax from logits (so `moe_layer` has a router's last
step more than those of others), metadata, GEMM with SwiGLU, GEMM with router weights, sum over a token's experts
(by a kernel of this file).
`expert_gemms` is both GEMMs, metadata ready.
"""

import argparse
import csv
import os
import statistics
import sys
import time

import numpy
import torch
import triton
import triton.language as tl

MODELS = {"gpt-oss-120b": 128, "gpt-oss-20b": 32}
HIDDEN = INNER = 2880
TOP_K, ALPHA, LIMIT = 4, 1.702, 7.0
SETS, DRAWS = 3, 8
BURST_MS, PAUSE_MS, SUSTAINED_MS = 5.0, 10.0, 300.0
SHARE = 2.0**-6  # of a token's size, as for other peers


@triton.jit
def sum_rows(g, y, hidden: tl.constexpr, top_k: tl.constexpr, block: tl.constexpr):
    """y[t] = sum_k g[t * top_k + k]: stands in for triton_kernels' reduce, which this Triton does not compile."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for k in tl.static_range(top_k):
        total += tl.load(g + (token * top_k + k) * hidden + column, mask=column < hidden, other=0).to(tl.float32)
    tl.store(y + token * hidden + column, total.to(tl.bfloat16), mask=column < hidden)


def is_another_gpu():
    return False


class Peer:
    """What is used of triton_kernels."""

    def __init__(self, package):
        if package:
            sys.path.insert(0, package)
        from importlib.metadata import PackageNotFoundError, version

        import triton.language.target_info as target_info

        # Names that came to Triton after 3.6; each asks about a GPU that this one is not.
        for name in ("is_hip_gfx1250", "is_hip_cdna4", "is_hip_cdna3"):
            if not hasattr(target_info, name):
                setattr(target_info, name, triton.constexpr_function(is_another_gpu))
        # Likewise what messages say of a kernel's place in its file.
        for name, value in (("def_file_line_number", 1), ("def_file_col_number", 0)):
            if not hasattr(triton.runtime.jit.JITFunction, name):
                setattr(triton.runtime.jit.JITFunction, name, value)
        import triton_kernels.matmul as matmul
        import triton_kernels.matmul_details.opt_flags as opt_flags
        import triton_kernels.tensor as tensor
        from triton_kernels.specialize import FnSpecs
        from triton_kernels.swiglu import swiglu_fn
        from triton_kernels.tensor_details import layout
        from triton_kernels.topk import topk

        opt_flags.update_opt_flags_constraints({"split_k": 1})
        self.matmul, self.tensor, self.layout = matmul, tensor, layout
        self.topk = topk
        self.swiglu = matmul.FusedActivation(
            FnSpecs("swiglu", swiglu_fn, ("alpha", "limit"), reduction_n=2), (ALPHA, LIMIT)
        )
        try:
            of_package = "tokenspeed-triton-kernels " + version("tokenspeed-triton-kernels")
        except PackageNotFoundError:
            of_package = "triton_kernels"
        self.version = f"{of_package} on triton {triton.__version__}"

    def weights(self, codes, scales):
        """codes u8[E, N, K / 2], scales u8[E, N, K / 32], as a checkpoint has them."""
        t, l = self.tensor, self.layout
        w = t.wrap_torch_tensor(codes.transpose(-2, -1), dtype=t.FP4)
        w = t.convert_layout(w, l.make_default_matmul_mxfp4_w_layout(mx_axis=-2))
        s = t.wrap_torch_tensor(scales.transpose(-2, -1))
        s = t.convert_layout(s, l.make_default_matmul_mxfp4_w_scale_layout(mx_axis=-2, num_warps=8))
        return w, self.matmul.PrecisionConfig(b_mx_scale=s, b_microblock_size=32, out_dtype=torch.bfloat16)

    def group(self, logits):
        """From logits to what both GEMMs read: metadata, tokens by row, rows by token and slot, router weights by row."""
        sparse = self.topk(logits, TOP_K, apply_softmax=True)
        meta = sparse.mask_metadata
        ragged = self.tensor.make_ragged_tensor_metadata(meta.col_sum, logits.shape[0] * TOP_K)
        rows = meta.col_sorted_indx
        gammas = sparse.vals.flatten()[rows]
        return ragged, torch.div(rows, TOP_K, rounding_mode="floor"), rows, gammas

    def gemms(self, x, experts, group):
        ragged, tokens, rows, gammas = group
        up, up_precision, up_bias, down, down_precision, down_bias = experts
        h = self.matmul.matmul(
            x, up, up_bias, a_ragged_metadata=ragged, gather_indx=tokens, precision_config=up_precision,
            fused_activation=self.swiglu,
        )
        return self.matmul.matmul(
            h, down, down_bias, a_ragged_metadata=ragged, scatter_indx=rows, precision_config=down_precision,
            gammas=gammas,
        )

    def sum(self, g):
        y = torch.empty((g.shape[0] // TOP_K, HIDDEN), dtype=torch.bfloat16, device=g.device)
        block = 1024
        sum_rows[(y.shape[0], triton.cdiv(HIDDEN, block))](g, y, HIDDEN, TOP_K, block)
        return y


def random_experts(experts, seed):
    """One set of weights as a checkpoint has it."""
    make = torch.Generator(device="cuda").manual_seed(seed)

    def codes(n, k):
        return torch.randint(0, 256, (experts, n, k // 2), dtype=torch.uint8, device="cuda", generator=make)

    def scales(n, k):
        return torch.randint(120, 123, (experts, n, k // 32), dtype=torch.uint8, device="cuda", generator=make)

    def bias(n):
        return 0.05 * torch.randn((experts, n), device="cuda", generator=make)

    return {
        "up": codes(2 * INNER, HIDDEN), "up_scale": scales(2 * INNER, HIDDEN), "up_bias": bias(2 * INNER),
        "down": codes(HIDDEN, INNER), "down_scale": scales(HIDDEN, INNER), "down_bias": bias(HIDDEN),
    }


def decoded(codes, scales):
    """f64[N, K] of one expert."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device="cuda")
    values = torch.cat([values, -values])
    w = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], -1).flatten(-2)
    return w * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)


def reference(raw, x, ids, weights):
    """One token, in double precision."""
    y = torch.zeros(HIDDEN, dtype=torch.float64, device="cuda")
    for e, weight in zip(ids.tolist(), weights.tolist()):
        z = decoded(raw["up"][e], raw["up_scale"][e]) @ x.double() + raw["up_bias"][e].double()
        gate, up = z[0::2].clamp(max=LIMIT), z[1::2].clamp(-LIMIT, LIMIT)
        h = gate * torch.sigmoid(ALPHA * gate) * (up + 1)
        y += weight * (decoded(raw["down"][e], raw["down_scale"][e]) @ h + raw["down_bias"][e].double())
    return y


def logits_of(ids, experts, seed):
    """Logits whose top experts are `ids`."""
    make = torch.Generator(device="cuda").manual_seed(seed)
    chosen = torch.rand(ids.shape, device="cuda", generator=make)
    out = torch.full((ids.shape[0], experts), -30.0, device="cuda")
    return out.scatter_(1, ids.long(), chosen).to(torch.bfloat16)


def replay_ms(graph):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(100_000)  # hides the host's part
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


def measure(run, replays):
    """(median, p10, p90) of one run in microseconds, by pace; None where one run is longer than a burst."""
    graph = record(run, 3)
    replay_ms(graph)
    count = int(min(96, max(1, 0.9 * BURST_MS * 3 / replay_ms(graph))))
    graph = record(run, count)
    replay_ms(graph)
    burst = []
    for _ in range(replays):
        time.sleep(PAUSE_MS / 1000)
        burst.append(1000 * replay_ms(graph) / count)
    one = statistics.median(burst) * count / 1000
    repeats = max(8, int(SUSTAINED_MS / one) + 1)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    half = range(repeats // 2, repeats)
    sustained = [1000 * marks[i].elapsed_time(marks[i + 1]) / count for i in half]
    return {"burst": quantiles(burst) if one <= BURST_MS else None, "sustained": quantiles(sustained)}


class Csv:
    def __init__(self, path):
        self.path = path
        with open(path, newline="") as file:
            self.work = {(r["op"], r["model"], int(r["tokens"]), r["note"]): (r["bytes"], r["flops"])
                         for r in csv.DictReader(file)}

    def add(self, op, model, tokens, note, version, times):
        work = self.work.get((op, model, tokens, note))
        if work is None:
            print(f"!! {op} {model} M={tokens} {note}: left out, the CSV has no such row")
            return
        median, p10, p90 = times
        with open(self.path, "a") as file:
            file.write(f"mxfp4,{op},{model},{tokens},triton-kernels,{version},{median:.4f},{p10:.4f},{p90:.4f},"
                       f"{work[0]},{work[1]},{note}\n")
        print(f"{op:14} {model:14} {tokens:6} {note:18} {median:9.2f} us", flush=True)


def check(peer, raw, x, logits, experts):
    """Empty, or what is wrong with three tokens."""
    y = peer.sum(peer.gemms(x, experts, peer.group(logits)))
    vals, ids = torch.topk(logits.float(), TOP_K, dim=1)
    for t in {0, x.shape[0] // 2, x.shape[0] - 1}:
        want = reference(raw, x[t], ids[t], torch.softmax(vals[t].double(), 0))
        off = float((y[t].double() - want).norm() / want.norm())
        if not off <= SHARE:
            return f"token {t} is off by {off:.4f} of its size, wanted at most {SHARE}"
    return ""


def run_model(peer, table, model, options, end):
    experts = MODELS[model]
    sets, raw = [], None
    for seed in reversed(range(SETS)):
        raw = random_experts(experts, seed)  # in the end that of set 0
        up, up_precision = peer.weights(raw["up"], raw["up_scale"])
        down, down_precision = peer.weights(raw["down"], raw["down_scale"])
        sets.insert(0, (up, up_precision, raw["up_bias"], down, down_precision, raw["down_bias"]))
    for tokens in options.tokens:
        for spread in ("uniform", "zipf"):
            if time.monotonic() > end:
                print(f"!! {model} M={tokens} {spread}: skipped, --seconds are over")
                continue
            path = os.path.join(options.draws, f"{model}_{spread}.i32")
            ids = numpy.fromfile(path, dtype=numpy.int32).reshape(DRAWS, -1, TOP_K)[:, :tokens]
            if ids.shape[1] < tokens:
                print(f"!! {model} M={tokens} {spread}: left out, {path} has {ids.shape[1]} tokens")
                continue
            ids = torch.from_numpy(ids.copy()).cuda()
            logits = [logits_of(ids[d], experts, d) for d in range(DRAWS)]
            x = [torch.randn((tokens, HIDDEN), device="cuda").to(torch.bfloat16) for _ in range(3)]
            wrong = check(peer, raw, x[0], logits[0], sets[0])
            if wrong:
                print(f"!! {model} M={tokens} {spread}: left out, wrong: {wrong}")
                continue
            groups = [peer.group(l) for l in logits]
            runs = {
                "expert_gemms": lambda i: peer.gemms(x[i % 3], sets[i % SETS], groups[i % DRAWS]),
                "moe_layer": lambda i: peer.sum(
                    peer.gemms(x[i % 3], sets[i % SETS], peer.group(logits[i % DRAWS]))),
            }
            for op, run in runs.items():
                for pace, times in measure(run, options.replays).items():
                    if times:
                        table.add(op, model, tokens, f"{pace} {spread}", peer.version, times)


def main():
    counts = lambda words: [int(w) for w in words.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--draws", required=True)
    parser.add_argument("--package")
    parser.add_argument("--tokens", type=counts, default=[1, 64, 1024, 4096, 8, 256, 16, 2, 512, 32, 128, 2048, 4, 8192])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--replays", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    models = options.models.split(",")
    for model in models:
        if model not in MODELS:
            parser.error(f"--models: wanted some of {', '.join(MODELS)}, found '{model}'")
    end = time.monotonic() + options.seconds
    peer, table = Peer(options.package), Csv(options.csv)
    for i, model in enumerate(models):
        now = time.monotonic()
        run_model(peer, table, model, options, now + (end - now) / (len(models) - i))


if __name__ == "__main__":
    main()
