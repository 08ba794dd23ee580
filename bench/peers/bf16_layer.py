"""Measures bf16 MoE layers of PyTorch, of vLLM's Triton fused_moe and of FlashInfer's cutlass_fused_moe, and appends their rows
to a bf16.csv of sluice_bench_cuda.

usage: python3 bf16_layer.py --csv bf16.csv --expert-ids DIR [--vllm DIR] [--flashinfer FILE] [--peers LIST] [--models LIST]
                             [--tokens LIST] [--routing LIST] [--pace LIST] [--ops LIST] [--replays N] [--seconds N] [--compile]

Requires a GPU, torch and triton, and layer_bench.py and flashinfer_bf16.py in the folder of this file. --vllm takes the folder
vllm_fused_moe and --flashinfer the file flashinfer_bf16_moe.so, both built by bench/peers/build. layer_bench.py describes the method.

torch-grouped-mm    sort by expert, gather, torch._grouped_mm, activation, torch._grouped_mm, scatter to tokens, and a batched GEMM
                    with the router's weights. `expert_gemms` starts from gathered rows.
vllm-fused-moe      fused_experts as vLLM runs it: moe_align_block_size (not for few tokens), its Triton kernel, activation, its
                    Triton kernel with the router's weights, moe_sum. The configuration comes from vLLM's file for this GPU, bf16
                    and the shape. If there is no file, timing chooses among vLLM's default and a few others.
flashinfer-cutlass  flashinfer_bf16_moe.cu, with the tiles that are fastest for the problem in a trial. `expert_gemms` starts from
                    expanded rows and includes the weighted sum.
`draft_step`        f32 router GEMM by cuBLAS, DeepSeek V3's routing (vLLM: its grouped_topk), the layer, and the shared expert (vLLM:
                    on its own stream), captured as one graph.
"""

import argparse
import ctypes
import dataclasses
import json
import math
import multiprocessing
import os
import sys
import time

import torch
import torch.nn.functional as F

from flashinfer_bf16 import FlashinferPeer
from layer_bench import DRAWS, SHARE, Csv, ids_of_all, measure, read_draws, record, replay_ms

BF16 = torch.bfloat16
ROOM = 12 << 30  # bytes of all sets of weights together; there are 1 to 3 sets
TOKENS = [1, 64, 1024, 4096, 8, 256, 16384, 16, 2, 512, 32, 128, 2048, 4, 8192, 3, 5]
DRAFT_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Model:
    """`routed` is the number of experts from which tokens choose. Only the first `experts` are on this GPU; the others add nothing."""

    name: str
    experts: int
    routed: int
    top_k: int
    hidden: int
    inner: int
    gated: bool = True  # silu(gate) * up, gates first; otherwise relu(up)^2
    groups: int = 0  # groups of DeepSeek V3's routing, for draft_step; 0: the model has no draft_step
    topk_groups: int = 1
    scale: float = 1.0  # of the weights of the chosen experts

    @property
    def up_rows(self):
        return (2 if self.gated else 1) * self.inner

    def activate(self, z):
        if not self.gated:
            return torch.relu(z).square()
        gate, up = z.chunk(2, -1)
        return F.silu(gate) * up


MODELS = {
    m.name: m
    for m in (
        Model("deepseek-v3", 256, 256, 8, 7168, 2048, groups=8, topk_groups=4, scale=2.5),
        Model("nemotron-3-nano", 128, 128, 6, 2688, 1856, gated=False),
        Model("qwen3-30b-a3b", 128, 128, 8, 2048, 768),
        Model("deepseek-v3-ep8", 32, 256, 8, 7168, 2048),
        Model("qwen3-235b-a22b-tp8", 128, 128, 8, 4096, 192),
        Model("glm-4.5-air", 128, 128, 8, 4096, 1408, groups=1),
        Model("held-out-3584x1280", 96, 96, 6, 3584, 1280),  # measured only if --models names it
        Model("held-out-5120x640", 192, 192, 8, 5120, 640),
    )
}


class Weights:
    """One set of weights: up [experts, up_rows, hidden], down [experts, hidden, inner], and the additional weights of a draft step."""

    def __init__(self, model, seed):
        make = torch.Generator(device="cuda").manual_seed(seed)

        def normal(shape, scale, dtype=BF16):
            return torch.randn(shape, device="cuda", dtype=dtype, generator=make).mul_(scale)

        up, down = (model.up_rows, model.hidden), (model.hidden, model.inner)
        up_scale, down_scale = model.hidden**-0.5, model.inner**-0.5
        self.up = normal((model.experts, *up), up_scale)
        self.down = normal((model.experts, *down), down_scale)
        if model.groups:
            self.shared_up, self.shared_down = normal(up, up_scale), normal(down, down_scale)
            self.gates = [normal((model.routed, model.hidden), 0.02) for _ in range(16)]
            self.bias = normal((model.routed,), 0.01, torch.float32)


def choose(model, logits, bias):
    """DeepSeek V3's routing: returns ids and weights."""
    scores = torch.sigmoid(logits)
    biased = scores + bias
    groups = biased.unflatten(-1, (model.groups, -1)).topk(2, -1).values.sum(-1).topk(model.topk_groups, -1).indices
    each = biased.shape[1] // model.groups
    mask = torch.zeros_like(biased).unflatten(-1, (model.groups, -1)).scatter_(1, groups[..., None].expand(-1, -1, each), 1.0)
    ids = biased.masked_fill(mask.flatten(1) == 0, -math.inf).topk(model.top_k, -1).indices
    weights = scores.gather(1, ids)
    return ids.to(torch.int32), weights * (model.scale / weights.sum(-1, keepdim=True))


def reference(model, w, x, ids, weights, shared=False):
    """Returns y of one token in double precision."""
    y = torch.zeros(model.hidden, dtype=torch.float64, device="cuda")
    x = x.double()
    for e, weight in zip(ids.tolist(), weights.tolist()):
        if e >= 0:
            y += weight * (w.down[e].double() @ model.activate(w.up[e].double() @ x))
    return y + w.shared_down.double() @ model.activate(w.shared_up.double() @ x) if shared else y


def wrong_token(model, w, x, ids, weights, y, shared=False):
    """Checks three tokens of y. Returns an empty string, or a description of the error."""
    for t in sorted({0, x.shape[0] // 2, x.shape[0] - 1}):
        want = reference(model, w, x[t], ids[t], weights[t].double(), shared)
        off, size = float((y[t].double() - want).norm()), float(want.norm())
        if not off <= SHARE * size:
            return f"token {t}: the norm of the error is {off:.4g}, wanted at most {SHARE} of the norm {size:.4g}"
    return ""


class TorchPeer:
    impl = "torch-grouped-mm"

    def __init__(self):
        self.version = "torch " + torch.__version__

    def prepare(self, model, tokens, w, x, ids, weights):
        self.model = model
        self.every = torch.arange(model.experts, device="cuda", dtype=torch.int32)
        self.count = torch.arange(tokens * model.top_k, device="cuda")

    def group(self, ids):
        m = self.model
        flat = ids.flatten()
        if m.routed > m.experts:
            flat = torch.where(flat < 0, m.experts, flat)
        by_expert, order = torch.sort(flat, stable=True)
        ends = torch.searchsorted(by_expert, self.every, right=True, out_int32=True)
        back = torch.empty_like(order).scatter_(0, order, self.count)
        return ends, order // m.top_k, back

    def ready(self, x, ids):
        """Returns the input of `gemms`: the groups, and the rows of x sorted by expert."""
        group = self.group(ids)
        return group, x[group[1]]

    def gemms(self, ready, w, weights=None):
        (ends, _, _), rows = ready
        h = self.model.activate(torch._grouped_mm(rows, w.up.transpose(1, 2), offs=ends))
        return torch._grouped_mm(h, w.down.transpose(1, 2), offs=ends)

    def layer(self, x, ids, weights, w):
        m, (group, rows) = self.model, self.ready(x, ids)
        g = self.gemms((group, rows), w)
        if m.routed > m.experts:  # rows of experts on other GPUs are uninitialized
            g.masked_fill_((self.count >= group[0][-1])[:, None], 0)
        g = g[group[2]].view(-1, m.top_k, m.hidden)
        return torch.bmm(weights.to(BF16)[:, None, :], g)[:, 0]

    def draft(self, x, gate, w):
        ids, weights = choose(self.model, torch.mm(x, gate.t(), out_dtype=torch.float32), w.bias)
        shared = F.linear(self.model.activate(F.linear(x, w.shared_up)), w.shared_down)
        return self.layer(x, ids, weights, w) + shared


# Configurations (block sizes of rows, columns and k, rows per group, warps, stages) to try besides vLLM's default if vLLM has no
# configuration file. The first number is the largest token count of the list.
TRIED = [
    (64, [(16, 128, 64, 1, 4, 5), (16, 64, 256, 1, 4, 3), (16, 128, 128, 1, 4, 3)]),
    (512, [(16, 128, 128, 1, 4, 3), (32, 128, 128, 16, 4, 3), (64, 256, 64, 16, 8, 4)]),
    (1 << 30, [(64, 128, 64, 16, 4, 4), (128, 256, 64, 16, 8, 4)]),
]
NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


class VllmPeer:
    impl = "vllm-fused-moe"

    def __init__(self, folder):
        import triton

        sys.path.insert(0, folder)
        import vllm_fused_moe

        self.code, self.folder, self.config = vllm_fused_moe, folder, None
        self.lib = ctypes.CDLL(os.path.join(folder, "libvllm_fused_moe.so"))
        self.lib.vllm_version.restype = ctypes.c_char_p
        self.version = f"{self.lib.vllm_version().decode()} on triton {triton.__version__}"

    def call(self, name, *args):
        given = []
        for a in args:
            if isinstance(a, torch.Tensor):
                a = ctypes.c_void_p(a.data_ptr())
            given.append(ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_double(a) if isinstance(a, float) else a)
        error = getattr(self.lib, name)(*given, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if error:
            raise RuntimeError(f"{name}: error {error}")

    def configs(self, model, tokens):
        """Returns the configuration in vLLM's file, or several candidates."""
        path = os.path.join(self.folder, "configs", f"E={model.experts},N={model.inner},device_name=NVIDIA_H200.json")
        if os.path.exists(path):
            with open(path) as file:
                known = {int(k): v for k, v in json.load(file).items() if k != "triton_version"}
            return [known[min(known, key=lambda k: abs(k - tokens))]]
        default = self.code.get_default_config(tokens, model.experts, model.up_rows, model.hidden, model.top_k, None)
        default.pop("SPLIT_K", None)
        others = next(tried for most, tried in TRIED if tokens <= most)
        return [default] + [c for c in (dict(zip(NAMES, o)) for o in others) if c != default]

    @staticmethod
    def naive(model, tokens):
        """Whether vLLM skips sorting and reads an expert once for each of its tokens."""
        return model.routed == model.experts and tokens * model.top_k * 4 <= model.experts

    def padded_rows(self, model, tokens):
        pairs, block = tokens * model.top_k, self.config["BLOCK_SIZE_M"]
        rows = pairs + model.routed * (block - 1)
        return min(rows, pairs * block) if pairs < model.routed else rows

    def grid_rows(self, model, tokens, down):
        pairs, block = tokens * model.top_k, self.config["BLOCK_SIZE_M"]
        if self.naive(model, tokens):
            return pairs * block
        rows = self.padded_rows(model, tokens)
        return min(rows, pairs * block) if (pairs if down else tokens) < block else rows

    def launch(self, model, tokens, down, a, b, c, weights, sorted_ids, blocks, padded, warm=False):
        """Calls the Triton kernel as invoke_fused_moe_triton_kernel does. With `warm` only compiles it, and takes types instead of tensors."""
        import triton.language as tl

        n, k = (model.hidden, model.inner) if down else (model.up_rows, model.hidden)
        rows = self.grid_rows(model, tokens, down)
        args = (a, b, c, None, None, None, weights, sorted_ids, blocks, padded, n, k, rows, tokens * model.top_k,
                k, 1, n * k, 1, k, n, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        more = dict(
            naive_block_assignment=sorted_ids is None, SPLIT_K=1, MUL_ROUTED_WEIGHT=down, top_k=1 if down else model.top_k,
            compute_type=tl.bfloat16, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False,
            per_channel_quant=False, HAS_BIAS=False, SWAP_AB=False, USE_TD=False, **self.config)
        grid = (-(-rows // self.config["BLOCK_SIZE_M"]) * -(-n // self.config["BLOCK_SIZE_N"]),)
        if warm:
            self.code.fused_moe_kernel.warmup(*args, grid=grid, **more)
        else:
            self.code.fused_moe_kernel[grid](*args, **more)

    def warm(self, model, tokens, config):
        self.config = config
        sorted_ids = None if self.naive(model, tokens) else torch.int32
        for down in (False, True):
            self.launch(model, tokens, down, BF16, BF16, BF16, torch.float32, sorted_ids, torch.int32, torch.int32, True)

    def prepare(self, model, tokens, w, x, ids, weights):
        self.model = model
        self.scratch = torch.empty(model.routed * 4 + 8192, dtype=torch.uint8, device="cuda")
        self.map = None
        if model.routed > model.experts:
            self.map = torch.full((model.routed,), -1, dtype=torch.int32, device="cuda")
            self.map[: model.experts] = torch.arange(model.experts, device="cuda", dtype=torch.int32)
        best = None
        configs = self.configs(model, tokens)
        for self.config in configs if len(configs) > 1 else []:
            graph = record(lambda i: self.layer(x[i % len(x)], ids[i % DRAWS], weights[i % DRAWS], w[i % len(w)]), 4)
            replay_ms(graph)
            ms = min(replay_ms(graph) for _ in range(3))
            if best is None or ms < best[0]:
                best = ms, self.config
        self.config = best[1] if best else configs[0]

    def global_ids(self, ids):
        return ids_of_all(self.model, ids)

    def group(self, ids):
        m, tokens, block = self.model, ids.shape[0], self.config["BLOCK_SIZE_M"]
        if self.naive(m, tokens):
            return None, ids.flatten(), torch.full((1,), ids.numel() * block, dtype=torch.int32, device="cuda")
        rows = self.padded_rows(m, tokens)
        make = lambda count: torch.empty(count, dtype=torch.int32, device="cuda")
        sorted_ids, blocks, padded = make(rows), make(-(-rows // block)), make(1)
        self.call("vllm_align", ids, tokens, m.top_k, m.routed, block, self.map, sorted_ids, blocks, padded, rows, self.scratch)
        return sorted_ids, blocks, padded

    def ready(self, x, ids):
        return x, self.group(self.global_ids(ids))

    def gemms(self, ready, w, weights):
        m, (x, group) = self.model, ready
        tokens = x.shape[0]
        pairs = tokens * m.top_k
        one = torch.empty(pairs * max(m.up_rows, m.hidden), dtype=BF16, device="cuda")
        z, g = one[: pairs * m.up_rows].view(pairs, -1), one[: pairs * m.hidden].view(pairs, -1)
        h = torch.empty((pairs, m.inner), dtype=BF16, device="cuda")
        self.launch(m, tokens, False, x, w.up, z, weights, *group)
        if m.gated:
            self.call("vllm_silu_and_mul", h, z, pairs, m.inner)
        else:
            F.relu(z, inplace=True)
            torch.square(z, out=h)
        if self.map is not None:
            g.zero_()
        self.launch(m, tokens, True, h, w.down, g, weights, *group)
        return g

    def layer(self, x, ids, weights, w):
        m = self.model
        g = self.gemms((x, self.group(ids)), w, weights)
        y = torch.empty_like(x)
        self.call("vllm_sum", y, g, x.shape[0], m.top_k, m.hidden)
        return y

    def draft(self, x, gate, w):
        m, tokens, here = self.model, x.shape[0], torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            z = F.linear(x, w.shared_up)
            h = torch.empty((tokens, m.inner), dtype=BF16, device="cuda")
            self.call("vllm_silu_and_mul", h, z, tokens, m.inner)
            shared = F.linear(h, w.shared_down)
        logits = torch.mm(x, gate.t(), out_dtype=torch.float32)
        ids = torch.empty((tokens, m.top_k), dtype=torch.int32, device="cuda")
        weights = torch.empty((tokens, m.top_k), dtype=torch.float32, device="cuda")
        self.call("vllm_grouped_topk", logits, w.bias, ids, weights, tokens, m.routed, m.groups, m.topk_groups, m.top_k, m.scale)
        y = self.layer(x, ids, weights, w)
        here.wait_stream(self.side)
        return y.add_(shared)

    @property
    def side(self):
        if not hasattr(self, "_side"):
            self._side = torch.cuda.Stream()
        return self._side


warming = None  # the baseline, in compiling processes


def warm_with(peer):
    global warming
    warming = peer


def warm_one(given):
    try:
        warming.warm(*given)
    except Exception as error:  # the same error occurs again, and is reported, when the problem is measured
        return f"{given}: {error!r}"
    return ""


def warm_all(peer, options):
    """Compiles all kernels in parallel processes, into Triton's cache on disk."""
    # Triton specializes on whether a number is a multiple of 16.
    work = {}
    for m in options.models:
        for n in options.tokens:
            for peer.config in peer.configs(m, n):
                rows = [peer.grid_rows(m, n, down) % 16 == 0 for down in (False, True)]
                key = (m.name, *peer.config.items(), peer.naive(m, n), n * m.top_k % 16 == 0, *rows)
                work[key] = m, n, peer.config
    work = list(work.values())
    start = time.monotonic()
    # The processes are forked before this one uses the GPU, so they inherit the baseline.
    with multiprocessing.get_context("fork").Pool(min(len(work), os.cpu_count()), warm_with, (peer,)) as pool:
        told = [t for t in pool.map(warm_one, work, chunksize=1) if t]
    print(f"compiled for {len(work)} problems in {time.monotonic() - start:.0f} s", *told, sep="\n", flush=True)


def draft_of(peer, model, tokens, sets, x):
    run = lambda i: peer.draft(x[i % len(x)], sets[i % len(sets)].gates[i % 16], sets[i % len(sets)])
    y, w = run(0), sets[0]
    ids, weights = choose(model, x[0].double() @ w.gates[0].double().t(), w.bias.double())
    return run, wrong_token(model, w, x[0], ids, weights, y, shared=True)


def measure_peer(peer, table, options, model, tokens, spread, sets, x, ids, weights):
    peer.prepare(model, tokens, sets, x, ids, weights)
    given = getattr(peer, "global_ids", lambda i: i)
    all_ids = [given(i) for i in ids]
    n = len(sets)
    layer = lambda i: peer.layer(x[i % len(x)], all_ids[i % DRAWS], weights[i % DRAWS], sets[i % n])
    wrong = wrong_token(model, sets[0], x[0], ids[0], weights[0], layer(0))
    if wrong:
        raise RuntimeError("wrong result: " + wrong)
    ready = [peer.ready(x[i % len(x)], ids[i]) for i in range(DRAWS)]
    runs = {
        "moe_layer": (layer, spread),
        "expert_gemms": (lambda i: peer.gemms(ready[i % DRAWS], sets[i % n], weights[i % DRAWS]), spread),
    }
    if "draft_step" in options.ops and model.groups and hasattr(peer, "draft") and tokens <= DRAFT_TOKENS and spread == options.routing[0]:
        run, wrong = draft_of(peer, model, tokens, sets, x)
        if wrong:
            print(f"!! {model.name} M={tokens} {peer.impl} draft_step: skipped, wrong result: {wrong}", flush=True)
        else:
            runs["draft_step"] = run, "by router"
    for op in (op for op in options.ops if op in runs):
        run, note = runs[op]
        for pace, times in measure(run, options.replays, options.pace).items():
            if times:
                table.add(op, model.name, tokens, f"{pace} {note}", times)
    if hasattr(peer, "config"):
        print(f"   {peer.impl} {model.name} M={tokens}: {peer.config}", flush=True)


def run_model(peers, tables, options, model, end):
    bytes_of_set = 2 * model.experts * model.hidden * (model.up_rows + model.inner)
    sets = [Weights(model, seed) for seed in range(max(1, min(3, ROOM // bytes_of_set)))]
    for tokens in options.tokens:
        x = [torch.randn((tokens, model.hidden), device="cuda").to(BF16) for _ in range(3)]
        for spread in options.routing:
            ids = read_draws(options.draws, model, spread, tokens)
            if ids is None:
                print(f"!! {model.name} M={tokens} {spread}: skipped, --expert-ids has no ids for so many tokens")
                continue
            weights = [torch.rand((tokens, model.top_k), device="cuda").add_(0.5) for _ in range(DRAWS)]
            weights = [w / w.sum(-1, keepdim=True) for w in weights]
            for peer, table in zip(peers, tables):
                what = f"{model.name} M={tokens} {spread} {peer.impl}"
                if time.monotonic() > end:
                    print(f"!! {what}: skipped, --seconds is used up")
                    continue
                try:
                    measure_peer(peer, table, options, model, tokens, spread, sets, x, list(ids), weights)
                except Exception as error:  # a refusal by the baseline: report it and measure the rest
                    print(f"!! {what}: skipped: {error!r}", flush=True)


def parse():
    words = lambda kind, known: lambda text: [known_word(kind, known, w) for w in text.split(",")]

    def known_word(kind, known, word):
        if word not in known:
            raise argparse.ArgumentTypeError(f"wanted {kind} of {', '.join(known)}, found '{word}'")
        return word

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True, help="bf16.csv of sluice_bench_cuda, to which rows are appended")
    parser.add_argument("--expert-ids", "--draws", dest="draws", required=True, metavar="DIR", help="folder that sluice_bench_cuda --expert-ids wrote")
    parser.add_argument("--vllm", metavar="DIR", help="folder vllm_fused_moe of bench/peers/build")
    parser.add_argument("--flashinfer", metavar="FILE", help="flashinfer_bf16_moe.so of bench/peers/build")
    parser.add_argument("--peers", type=words("some", ("torch", "vllm", "flashinfer")), help="default: torch, and each library whose file is given")
    parser.add_argument("--models", type=words("some", MODELS), default=[m for m in MODELS if "held-out" not in m])
    parser.add_argument("--tokens", type=lambda text: [int(w) for w in text.split(",")], default=TOKENS)
    parser.add_argument("--routing", type=words("some", ("uniform", "zipf")), default=["uniform", "zipf"])
    parser.add_argument("--pace", type=words("some", ("burst", "sustained")), default=["burst", "sustained"])
    ops = ["moe_layer", "expert_gemms", "draft_step"]
    parser.add_argument("--ops", type=words("some", ops), default=ops)
    parser.add_argument("--compile", action="store_true", help="only compile the kernels, so that a later run finds them")
    parser.add_argument("--replays", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    options.models = [MODELS[name] for name in options.models]
    files = {"vllm": options.vllm, "flashinfer": options.flashinfer}
    if options.peers is None:
        options.peers = ["torch"] + [p for p, file in files.items() if file]
    for peer, file in files.items():
        if peer in options.peers and not file:
            parser.error(f"--{peer}: wanted a path, because --peers has {peer}; found none")
    return options


def main():
    options = parse()
    end = time.monotonic() + options.seconds
    peers = []
    if "vllm" in options.peers:
        peers.append(VllmPeer(options.vllm))
        warm_all(peers[0], options)
        if options.compile:
            return
    if "torch" in options.peers:
        peers.append(TorchPeer())
    if "flashinfer" in options.peers:
        peers.append(FlashinferPeer(options.flashinfer))
    tables = [Csv(options.csv, p.impl, p.version, "bf16") for p in peers]
    for i, model in enumerate(options.models):
        now = time.monotonic()
        run_model(peers, tables, options, model, now + (end - now) / (len(options.models) - i))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
