"""Measures Humming's MXFP4 MoE layer and appends its rows to a mxfp4.csv of sluice_bench_cuda.

usage: python3 humming_layer.py --csv mxfp4.csv --expert-ids DIR --rows humming_rows.so [--package DIR] [--cubins DIR]
                                [--forms LIST] [--tokens LIST] [--models LIST] [--seconds N]

Humming is the PyPI package humming-kernels 0.1.19. Requires a GPU, torch and triton, layer_bench.py in the folder of this file, the
package (installed, or in the folder --package, which contains humming/), and humming_rows.so, which bench/peers/build makes from
vLLM's kernels. Humming compiles its kernels on first use. With --cubins it takes them from a folder that humming_export.py filled on
a machine without a GPU. layer_bench.py describes the method.

The layer is vLLM's, with the tiles of Humming's heuristics, in two forms.
`indexed`, vLLM's default on one GPU, has rows named humming: moe_align_block_size (twice if the two GEMMs use different block sizes),
GEMM, activation, GEMM, weighted sum (by a kernel in this file with the same grid as vLLM's).
`grouped`, vLLM's default with expert parallelism, has rows named humming-grouped: sort and copy of rows, GEMM, activation, GEMM,
weighted sum.
Weights are padded to multiples of 256 rows and 128 of k, as by vLLM's loader; x and y are not padded. `expert_gemms` covers both GEMMs and
the activation between them, with rows already sorted by expert.
"""

import ctypes
import hashlib
import json
import os
import shutil
import sys

import torch
import triton
import triton.language as tl

from layer_bench import DRAWS, MODELS, SETS, Csv, measure, options_of, random_experts, run_all, wrong_token

VERSION = "humming-kernels 0.1.19"
FORMS = {"indexed": "indexed", "grouped": "grouped_contiguous"}  # Humming's names


@triton.jit
def weighted_sum(g, weights, y, hidden: tl.constexpr, top_k: tl.constexpr, block: tl.constexpr):
    """y[t] = sum_k weights[t, k] * g[t * top_k + k]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for k in tl.static_range(top_k):
        row = tl.load(g + (token * top_k + k) * hidden + column, mask=column < hidden, other=0)
        total += row.to(tl.float32) * tl.load(weights + token * top_k + k)
    tl.store(y + token * hidden + column, total.to(tl.bfloat16), mask=column < hidden)


def keep_cubins(folder):
    """Makes Humming look for a kernel in `folder` before it compiles it, and keep new kernels there. Also keeps Humming's choices of
    tiles, which take seconds for each GEMM."""
    from humming.jit.compiler import NVCCCompiler, NVRTCCompiler

    for cls in (NVCCCompiler, NVRTCCompiler):

        def compiled(code, sm_version, kernel_expr, *args, compile=cls.compile, **more):
            key = hashlib.sha256("\0".join([VERSION, sm_version, str(kernel_expr), code]).encode()).hexdigest()[:32]
            path = os.path.join(folder, key + ".cubin")
            if not os.path.exists(path):
                print(f"compiling {' '.join(str(kernel_expr).split())[:100]}", flush=True)
                shutil.copyfile(compile(code, sm_version, kernel_expr, *args, **more), path)
            return path

        cls.compile = staticmethod(compiled)
    path = os.path.join(folder, "tuning.json")
    if os.path.exists(path):
        with open(path) as file:
            Layer.tables = json.load(file)


class Layer:
    """The configurations of one model's two GEMMs and of its activation, in one of FORMS."""

    tables = {}  # the choices of Humming's heuristics, by form and configuration

    def __init__(self, model, form):
        from humming import dtypes
        from humming.schema import HummingInputSchema, HummingWeightSchema
        from humming.transform import prepare_layer_config

        self.model, self.form = model, form
        self.schema = HummingWeightSchema(
            b_dtype=dtypes.float4e2m1, bs_dtype=dtypes.float8e8m0, weight_scale_group_size=32
        )
        self.input_schema = HummingInputSchema(a_dtype=dtypes.bfloat16)
        self.how = dict(
            weight_schema=self.schema, input_schema=self.input_schema, num_experts=model.experts, pad_n_to_multiple=256,
            pad_k_to_multiple=128, has_bias=model.gpt_oss, torch_dtype=torch.bfloat16, device=0,
        )
        self.shapes = {"up": (2 * model.inner, model.hidden), "down": (model.hidden, model.inner)}
        self.configs = {
            name: prepare_layer_config(shape_n=n, shape_k=k, **self.how) for name, (n, k) in self.shapes.items()
        }
        self.compute = json.dumps({"use_batch_invariant": False, "use_f16_accum": False, "gemm_type": FORMS[form]})
        limit = f"{model.limit}f"
        gate, up = f"fminf(a, {limit})", f"fmaxf(fminf(b, {limit}), -{limit})"
        self.activation = dict(
            activation_type="binary_interleaved" if model.gpt_oss else "binary_split",
            activation_impl=f"{gate} / (1.f + expf(-{model.alpha}f * {gate})) * ({up} + {model.beta}f)",
        )

    def table(self, name):
        """Humming's choices for a GEMM: a list of (min rows, exclusive; max rows; configuration)."""
        from humming.tune import get_heuristics_config

        key = f"{self.form} {self.configs[name].to_str()}"
        if key not in Layer.tables:
            found = get_heuristics_config(layer_config=self.configs[name], gemm_type=FORMS[self.form])
            Layer.tables[key] = json.loads(json.dumps(found))
        return Layer.tables[key]

    def tuning(self, name, tokens):
        """Returns the configuration for `tokens` as JSON, and its block size in rows."""
        pairs = tokens * self.model.top_k
        for least, most, config in self.table(name):
            if least < pairs <= most:
                return json.dumps(config), config["block_shape"][0]
        raise ValueError(f"Humming has no configuration for {pairs} rows")

    def weights(self, raw):
        from humming.transform import prepare_and_transform_humming_tensors

        out = {}
        for name, (n, k) in self.shapes.items():
            tensors = {
                "weight": raw[name].view(torch.int32),
                "weight_scale": raw[name + "_scale"].view(torch.float8_e8m0fnu),
            }
            if self.model.gpt_oss:
                tensors["bias"] = raw[name + "_bias"].to(torch.bfloat16)
            config, out[name] = prepare_and_transform_humming_tensors(tensors=tensors, shape_n=n, shape_k=k, **self.how)
            assert config == self.configs[name]
        return out


class Rows:
    """The functions of humming_rows.so."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.humming_sort_bytes.restype = ctypes.c_int64

    def __call__(self, name, *arguments):
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int64(a) for a in arguments
        ]
        error = getattr(self.library, name)(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if error != 0:
            raise RuntimeError(f"{name}: error {error}")

    def sort_bytes(self, pairs, experts):
        return self.library.humming_sort_bytes(ctypes.c_int64(pairs), ctypes.c_int64(experts))


class Problem:
    """The buffers and steps of a layer at one token count."""

    def __init__(self, layer, tokens, rows, locks):
        self.layer, self.rows, self.locks, self.tokens = layer, rows, locks, tokens
        self.sizes = (tokens, layer.model.top_k, layer.model.experts)
        model, pairs = layer.model, tokens * layer.model.top_k
        bf16 = lambda n, width: torch.empty((n, width), dtype=torch.bfloat16, device="cuda")
        self.z, self.h = bf16(pairs, 2 * model.inner), bf16(pairs, model.inner)
        self.g, self.y = bf16(pairs, model.hidden), bf16(tokens, model.hidden)
        self.x = bf16(pairs, model.hidden) if layer.form == "grouped" else None
        self.tuned = {name: layer.tuning(name, tokens) for name in ("up", "down")}
        self.counted = torch.arange(pairs, dtype=torch.int32, device="cuda")
        self.sort = torch.empty(rows.sort_bytes(pairs, model.experts), dtype=torch.uint8, device="cuda")

    def poison(self):
        for t in (self.z, self.h, self.g, self.y):
            t.fill_(float("nan"))

    def blocks(self, ids, block):
        experts, pairs = self.layer.model.experts, ids.numel()
        most = pairs + experts * (block - 1)
        if pairs < experts:
            most = min(pairs * block, most)
        empty = lambda n: torch.empty(n, dtype=torch.int32, device="cuda")
        rows, of_blocks, padded = empty(most), empty(-(-most // block)), empty(1)
        self.rows("humming_blocks", ids, rows, of_blocks, padded, empty(experts + 1025), *self.sizes, block, most)
        return dict(sorted_ids=rows, expert_ids=of_blocks, num_tokens_padded=padded)

    def group(self, ids):
        """Returns the row layout of each GEMM, and for the grouped form the target row of each (token, slot) pair."""
        if self.layer.form == "grouped":
            int32 = lambda *shape: torch.empty(shape, dtype=torch.int32, device="cuda")
            offsets = torch.empty(self.layer.model.experts + 1, dtype=torch.int64, device="cuda")
            to, keys = int32(*ids.shape), int32(3 * ids.numel())
            self.rows("humming_scatter", ids, self.counted, keys, offsets, to, self.sort, *self.sizes)
            return dict(expert_layout=offsets), dict(expert_layout=offsets), to
        up = self.blocks(ids, self.tuned["up"][1])
        same = self.tuned["up"][1] == self.tuned["down"][1]
        return up, up if same else self.blocks(ids, self.tuned["down"][1]), None

    def gemm(self, name, x, y, weights, rows, top_k):
        from humming.forward import humming_forward

        w = weights[name]
        humming_forward(
            self.layer.configs[name], inputs=x, weight=w["weight"], weight_scale=w["weight_scale"], bias=w.get("bias"),
            weight_scale_2=w.get("weight_scale_2"), outputs=y, locks=self.locks, top_k=top_k,
            valid_shape_m=self.tokens * self.layer.model.top_k, compute_config=self.layer.compute,
            tuning_config=self.tuned[name][0], **rows,
        )

    def gemms(self, x, weights, group):
        """Runs both GEMMs; x has one row per token (indexed) or per routed row (grouped)."""
        from humming.forward import may_process_input

        up, down, to = group
        valid = {} if to is None else {"num_valid_tokens": up["expert_layout"][-1:]}
        self.gemm("up", x, self.z, weights, up, self.layer.model.top_k if to is None else 1)
        may_process_input(self.layer.configs["down"], inputs=self.z, outputs=self.h, **self.layer.activation, **valid)
        self.gemm("down", self.h, self.g, weights, down, 1)

    def by_row(self, x, group):
        """Returns x in the layout that gemms() reads."""
        from humming.forward import may_process_input

        if self.x is None:
            return x
        valid = group[0]["expert_layout"][-1:]
        may_process_input(
            self.layer.configs["up"], inputs=x, outputs=self.x, layout="scatter", scatter_idx=group[2], num_valid_tokens=valid
        )
        return self.x

    def run(self, x, weights, ids, router):
        group = self.group(ids)
        self.gemms(self.by_row(x, group), weights, group)
        tokens, top_k, experts = self.sizes
        hidden = self.layer.model.hidden
        if self.layer.form == "grouped":
            offsets = group[0]["expert_layout"]
            self.rows("humming_sum", self.g, self.y, router, group[2], offsets, tokens, hidden, top_k, experts)
        else:
            block = triton.next_power_of_2(hidden)
            weighted_sum[(tokens,)](self.g, router, self.y, hidden, top_k, block, num_warps=16)
        return self.y


def main():
    parser = options_of(__doc__, list(MODELS))
    parser.add_argument("--rows", required=True, help="humming_rows.so")
    parser.add_argument("--cubins", help="folder that humming_export.py filled")
    parser.add_argument("--forms", type=lambda text: text.split(","), default=list(FORMS))
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, options.package)
    os.environ["HUMMING_DISABLE_PARALLEL_BUILD"] = "1"  # without this the import starts compilers
    if options.cubins:
        keep_cubins(options.cubins)
    rows = Rows(options.rows)
    tables = {form: Csv(options.csv, "humming" if form == "indexed" else f"humming-{form}", VERSION) for form in FORMS}
    locks = torch.zeros(8 * torch.cuda.get_device_properties(0).multi_processor_count, dtype=torch.int32, device="cuda")

    def load(model):
        layers, sets, raw = [Layer(model, form) for form in options.forms], [], None
        for seed in reversed(range(SETS)):
            raw = random_experts(model, seed)  # after the loop: the weights of set 0
            sets.insert(0, layers[0].weights(raw))  # both forms share the weights
        return layers, sets, raw

    def measure_problem(loaded, model, tokens, spread, ids):
        layers, sets, raw = loaded
        x = [torch.randn((tokens, model.hidden), device="cuda").to(torch.bfloat16) for _ in range(3)]
        router = torch.rand((tokens, model.top_k), device="cuda") + 0.1
        router /= router.sum(1, keepdim=True)
        ids = [ids[d].contiguous() for d in range(DRAWS)]
        for layer in layers:
            problem = Problem(layer, tokens, rows, locks)
            problem.poison()
            wrong = wrong_token(model, raw, x[0], ids[0], router, problem.run(x[0], sets[0], ids[0], router))
            if wrong:
                print(f"!! {layer.form} {model.name} M={tokens} {spread}: skipped, wrong result: {wrong}")
                continue
            groups = [problem.group(i) for i in ids]
            moved = [problem.by_row(v, groups[0]) for v in x]
            runs = {
                "expert_gemms": lambda i: problem.gemms(moved[i % 3], sets[i % SETS], groups[i % DRAWS]),
                "moe_layer": lambda i: problem.run(x[i % 3], sets[i % SETS], ids[i % DRAWS], router),
            }
            for op in options.ops:
                for pace, times in measure(runs[op], options.replays, options.pace).items():
                    if times:
                        tables[layer.form].add(op, model.name, tokens, f"{pace} {spread}", times)

    run_all(options, load, measure_problem)


if __name__ == "__main__":
    main()
