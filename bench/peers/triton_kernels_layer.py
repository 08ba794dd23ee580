"""Measures triton_kernels' MXFP4 MoE layer (gpt-oss shapes) and appends its rows to a mxfp4.csv of sluice_bench_cuda.

usage: python3 triton_kernels_layer.py --csv mxfp4.csv --expert-ids DIR [--package DIR] [--tokens LIST] [--models LIST]
                                       [--seconds N]

Requires a GPU, torch and triton, layer_bench.py in the folder of this file, and triton_kernels (installed, or in the folder --package,
which contains triton_kernels/). layer_bench.py describes the method.

The layer is the same as in the authors' gpt-oss model and in vLLM: top-k and softmax from logits, metadata, GEMM with SwiGLU, GEMM with
router weights, sum over a token's experts (by a kernel in this file). So here `moe_layer` includes top-k and softmax; for
other libraries it does not. `expert_gemms` covers both GEMMs, with metadata already computed.
"""

import sys

import torch
import triton
import triton.language as tl

from layer_bench import DRAWS, MODELS, SETS, Csv, measure, options_of, random_experts, run_all, wrong_token

GPT_OSS = [name for name, model in MODELS.items() if model.gpt_oss]
TOP_K, HIDDEN = 4, 2880


@triton.jit
def sum_rows(g, y, hidden: tl.constexpr, top_k: tl.constexpr, block: tl.constexpr):
    """y[t] = sum_k g[t * top_k + k]. Replaces triton_kernels' reduce, which does not compile with this Triton."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for k in tl.static_range(top_k):
        total += tl.load(g + (token * top_k + k) * hidden + column, mask=column < hidden, other=0).to(tl.float32)
    tl.store(y + token * hidden + column, total.to(tl.bfloat16), mask=column < hidden)


def is_another_gpu():
    return False


class Peer:
    """The parts of triton_kernels that the layer uses."""

    def __init__(self, package):
        if package:
            sys.path.insert(0, package)
        from importlib.metadata import PackageNotFoundError, version

        import triton.language.target_info as target_info

        # Functions that exist only in Triton after 3.6. Each returns whether this GPU has a certain AMD architecture; here that is always false.
        for name in ("is_hip_gfx1250", "is_hip_cdna4", "is_hip_cdna3"):
            if not hasattr(target_info, name):
                setattr(target_info, name, triton.constexpr_function(is_another_gpu))
        # Attributes that exist only in Triton after 3.6: the line and column of a kernel, for messages.
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
            FnSpecs("swiglu", swiglu_fn, ("alpha", "limit"), reduction_n=2), (MODELS[GPT_OSS[0]].alpha, MODELS[GPT_OSS[0]].limit)
        )
        try:
            of_package = "tokenspeed-triton-kernels " + version("tokenspeed-triton-kernels")
        except PackageNotFoundError:
            of_package = "triton_kernels"
        self.version = f"{of_package} on triton {triton.__version__}"

    def weights(self, codes, scales):
        """Converts codes u8[E, N, K / 2] and scales u8[E, N, K / 32] from checkpoint order."""
        t, l = self.tensor, self.layout
        w = t.wrap_torch_tensor(codes.transpose(-2, -1), dtype=t.FP4)
        w = t.convert_layout(w, l.make_default_matmul_mxfp4_w_layout(mx_axis=-2))
        s = t.wrap_torch_tensor(scales.transpose(-2, -1))
        s = t.convert_layout(s, l.make_default_matmul_mxfp4_w_scale_layout(mx_axis=-2, num_warps=8))
        return w, self.matmul.PrecisionConfig(b_mx_scale=s, b_microblock_size=32, out_dtype=torch.bfloat16)

    def group(self, logits):
        """Routes, and returns the inputs of both GEMMs: metadata, the token of each row, the row of each pair, the router weight of each row."""
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


def logits_of(ids, experts, seed):
    """Returns logits whose top experts are `ids`."""
    make = torch.Generator(device="cuda").manual_seed(seed)
    chosen = torch.rand(ids.shape, device="cuda", generator=make)
    out = torch.full((ids.shape[0], experts), -30.0, device="cuda")
    return out.scatter_(1, ids.long(), chosen).to(torch.bfloat16)


def main():
    options = options_of(__doc__, GPT_OSS).parse_args()
    peer = Peer(options.package)
    table = Csv(options.csv, "triton-kernels", peer.version)

    def load(model):
        sets, raw = [], None
        for seed in reversed(range(SETS)):
            raw = random_experts(model, seed)  # after the loop: the weights of set 0
            up, up_precision = peer.weights(raw["up"], raw["up_scale"])
            down, down_precision = peer.weights(raw["down"], raw["down_scale"])
            sets.insert(0, (up, up_precision, raw["up_bias"], down, down_precision, raw["down_bias"]))
        return sets, raw

    def problem(loaded, model, tokens, spread, ids):
        sets, raw = loaded
        logits = [logits_of(ids[d], model.experts, d) for d in range(DRAWS)]
        x = [torch.randn((tokens, HIDDEN), device="cuda").to(torch.bfloat16) for _ in range(3)]
        vals, chosen = torch.topk(logits[0].float(), TOP_K, dim=1)
        y = peer.sum(peer.gemms(x[0], sets[0], peer.group(logits[0])))
        wrong = wrong_token(model, raw, x[0], chosen, torch.softmax(vals, 1), y)
        if wrong:
            print(f"!! {model.name} M={tokens} {spread}: skipped, wrong result: {wrong}")
            return
        groups = [peer.group(l) for l in logits]
        runs = {
            "expert_gemms": lambda i: peer.gemms(x[i % 3], sets[i % SETS], groups[i % DRAWS]),
            "moe_layer": lambda i: peer.sum(peer.gemms(x[i % 3], sets[i % SETS], peer.group(logits[i % DRAWS]))),
        }
        for op in options.ops:
            for pace, times in measure(runs[op], options.replays, options.pace).items():
                if times:
                    table.add(op, model.name, tokens, f"{pace} {spread}", times)

    run_all(options, load, problem)


if __name__ == "__main__":
    main()
