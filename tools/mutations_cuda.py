#!/usr/bin/env python3
"""Breaks CUDA kernels by hand, one place at a time, for a machine with a GPU to show that a test notices.

Each mutation becomes a small library: the kernel's card and the files that hold it, compiled with one text replaced, and linked
against what sluice_gpu_tests exports (tests/gpu/mutant.h loads it in place of the kernel of the same name). A control is the same
without a change, and must pass: it shows that a library by itself breaks nothing. `check --mutations` of the folder runs all.

  tools/mutations_cuda.py BUILD TO [NAME...]   builds these, or all, into the folder TO, with a list and CUDA's runtime
  tools/mutations_cuda.py --list               names, files and what each breaks
  tools/mutations_cuda.py --check              only whether every text still occurs once
"""
import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
CUDA = "src/backends/cuda/"
TILES = ["experts/tile_call.cu"]  # what the card of a tile kernel calls


class Mutation(NamedTuple):
    name: str
    breaks: str
    kernel: str  # the candidate's object in candidates.def
    path: str  # below src/backends/cuda
    old: str
    new: str
    op: str  # whose cases must fail
    also: list = []  # files that are compiled besides the card


KERNELS = [
    Mutation(
        "combine_scale_dropped",
        "the routed scale is not multiplied",
        "combine_rows_sm90",
        "kernels/combine_rows_sm90.cu",
        "sum[i] *= p.scale;",
        "sum[i] *= 1.f;",
        "combine",
    ),
    Mutation(
        "rank_counts_itself",
        "a row of an expert stands one place too far",
        "group_rows_cluster_sm90",
        "tile/grouping.cuh",
        "int rank = __popc(mask[bit / 32] & ((1u << bit % 32) - 1));",
        "int rank = __popc(mask[bit / 32] & ((2u << bit % 32) - 1));",
        "group_rows",
    ),
    Mutation(
        "topk_nan_first",
        "NaN ranks above everything",
        "route_topk_warp_sm90",
        "tile/topk.cuh",
        "return c != c ? kNanKey : key;",
        "return key;",
        "route_topk",
    ),
    Mutation(
        "groups_tie_to_higher",
        "of equal groups the higher one stays",
        "route_topk_warp_sm90",
        "tile/topk.cuh",
        "other > rank - static_cast<uint32_t>(g < mine);",
        "other > rank - static_cast<uint32_t>(g > mine);",
        "route_topk",
    ),
    Mutation(
        "group_renormalised_by_one_more",
        "chosen weights are divided by their sum and one, where the rows are grouped next",
        "route_group_cluster_sm90",
        "tile/topk.cuh",
        "score::reciprocal(sum_of_lanes(w, r.top_k) + 1e-20f)",
        "score::reciprocal(sum_of_lanes(w, r.top_k) + 1.f)",
        "route_group",
    ),
    Mutation(
        "renormalised_by_one_more",
        "chosen weights are divided by their sum and one",
        "router_route_fewtokens_sm90",
        "tile/few_tokens.cuh",
        "sum_of_list<kList>(w) + 1e-20f",
        "sum_of_list<kList>(w) + 1.f",
        "router_route",
    ),
    Mutation(
        "gemv_bias_dropped",
        "the router's bias is not added",
        "router_gemm_gemv_sm90",
        "kernels/router_gemm_gemv_sm90.cu",
        "total + tile::weight_value<W>(bias)",
        "total + 0.f * tile::weight_value<W>(bias)",
        "router_gemm",
    ),
    Mutation(
        "splitk_loses_a_cta",
        "the last CTA's part of each sum is left out",
        "router_gemm_splitk_sm90",
        "kernels/router_gemm_splitk_sm90.cu",
        "for (int j = 0; j < kBlocks; ++j) {",
        "for (int j = 0; j < kBlocks - 1; ++j) {",
        "router_gemm",
    ),
    Mutation(
        "router_tile_bias_of_neighbour",
        "four experts share the first one's bias",
        "router_gemm_tile_sm90",
        "kernels/router_gemm_tile_frame.cuh",
        "tile::to_f32(static_cast<const W*>(p.bias)[expert + i]);",
        "tile::to_f32(static_cast<const W*>(p.bias)[expert]);",
        "router_gemm",
    ),
    Mutation(
        "gemv_takes_another_slice",
        "products of different slices are kept",
        "router_gemm_gemv_sm90",
        "kernels/router_gemm_gemv_sm90.cu",
        "g % 2 == 0 ? acc[q][0][2 * half]",
        "g % 2 != 0 ? acc[q][0][2 * half]",
        "router_gemm",
    ),
    Mutation(
        "terms_lose_the_second",
        "an f32 weight has 16 of its 24 bits",
        "router_gemm_terms_sm90",
        "tile/split_terms.cuh",
        "term[1] = pack(v);",
        "term[1] = 0;",
        "router_gemm",
    ),
    Mutation(
        "norm_without_eps",
        "eps is not added",
        "rms_norm_rows_sm90",
        "kernels/rms_norm_rows_sm90.cu",
        "static_cast<float>(p.hidden) + p.eps",
        "static_cast<float>(p.hidden) + 0.f * p.eps",
        "rms_norm",
    ),
    Mutation(
        "lora_scale_dropped",
        "an adapter's scale is not multiplied",
        "lora_delta_cluster_sm90",
        "kernels/lora_delta_cluster_sm90.cu",
        "fmaf(scale, sum, before)",
        "fmaf(scale - scale + 1.f, sum, before)",
        "lora_delta",
    ),
    Mutation(
        "lora_keeps_rows_of_others",
        "an adapter's sums stand in the rows of all tokens of the tile",
        "lora_delta_mma_sm90",
        "kernels/lora_delta_mma_sm90.cu",
        "if ((members >> row & 1) && r < p.rank)",
        "if ((members >> row | 1) && r < p.rank)",
        "lora_delta",
    ),
    Mutation(
        "pack_lanes_the_other_way",
        "lanes keep what they should send",
        "pack_experts_fragments_sm90",
        "kernels/pack_experts_fragments_sm90.cu",
        "const bool upper = (lane & bit) != 0;",
        "const bool upper = (lane & bit) == 0;",
        "pack_experts",
    ),
    Mutation(
        "half_is_zero",
        "the code of a half is taken for zero",
        "expert_gemm_fma_sm90",
        "experts/expert_gemm_fma_sm90.cu",
        "0.5f * static_cast<float>(mantissa)",
        "0.f * static_cast<float>(mantissa)",
        "expert_gemm",
    ),
    Mutation(
        "stream_clamps_up_from_above_alone",
        "up passes the limit below",
        "expert_gemm_mxfp4_stream_sm90",
        "tile/activation.cuh",
        "return at_least(at_most(x, limit), -limit);",
        "return at_most(x, limit);",
        "expert_gemm",
    ),
    Mutation(
        "tile_clamps_gate_from_below",
        "the tile kernel clamps a gate from below, too",
        "expert_gemm_mxfp4_tile_sm90",
        "experts/epilogue.cuh",
        "tile::swish(tile::at_most(x[h], act.limit), act.alpha)",
        "tile::swish(tile::within(x[h], act.limit), act.alpha)",
        "expert_gemm",
        ["experts/tiles_mxfp4_narrow.cu"],
    ),
    Mutation(
        "tile_writes_its_padding",
        "features of the padding are written, too",
        "expert_gemm_bf16_tile_sm90",
        "experts/epilogue.cuh",
        "rows = feature < p.features ? t.rows - row : 0;",
        "rows = t.rows - row;",
        "expert_gemm",
        ["experts/tiles_bf16.cu"],
    ),
    Mutation(
        "mlp_ignores_alpha",
        "swish is silu whatever alpha is",
        "expert_mlp_mxfp4_fewtokens_sm90",
        "tile/activation.cuh",
        "return swish(at_most(g, a.limit), a.alpha)",
        "return swish(at_most(g, a.limit), 1.f)",
        "expert_mlp",
    ),
]
CONTROLS = [
    m._replace(name=f"control_{m.kernel}", breaks="nothing", new=m.old)
    for m in KERNELS
    if m.name in ("combine_scale_dropped", "topk_nan_first", "tile_clamps_gate_from_below")
]


def stale():
    for m in KERNELS:
        count = (ROOT / CUDA / m.path).read_text().count(m.old)
        if count != 1:
            yield f"{m.name}: its text occurs {count} times in {CUDA}{m.path}, wanted once"


def op_of(kernel: str) -> str:
    return re.search(rf"SLUICE_CANDIDATE\((\w+), {kernel}\)", (ROOT / CUDA / "candidates.def").read_text())[1]


def card_of(kernel: str) -> str:
    return next(p for p in ("kernels/", "experts/") if (ROOT / CUDA / p / f"{kernel}.cu").exists()) + f"{kernel}.cu"


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def command_of(build: pathlib.Path, source: str) -> list:
    """How the build compiles this file, as words."""
    target = f"CMakeFiles/sluice_cuda.dir/{CUDA}{source}.o"
    return shlex.split(run(["ninja", "-C", build, "-t", "commands", target]).splitlines()[-1])


def compiled(build: pathlib.Path, m: Mutation, source: str, at: pathlib.Path) -> pathlib.Path:
    """The object of one file, with the mutated text in front of the tree's own."""
    words = command_of(build, source)
    changed = at / "tree" / "backends/cuda" / m.path
    out = at / (pathlib.Path(source).name + ".o")
    for i, word in enumerate(words):
        if word in ("-o", "-MT"):
            words[i + 1] = str(out)
        if word == "-MF":
            words[i + 1] = f"{out}.d"
        if word == "-c" and source == m.path:
            words[i + 1] = str(changed)
    words.insert(next(i for i, word in enumerate(words) if word.startswith("-I")), f"-I{at / 'tree'}")
    run(words, cwd=build)
    return out


def build_one(build: pathlib.Path, to: pathlib.Path, m: Mutation) -> None:
    at = build / "mutant_objects" / m.name
    changed = at / "tree" / "backends/cuda" / m.path
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text((ROOT / CUDA / m.path).read_text().replace(m.old, m.new))
    card = card_of(m.kernel)
    files = [card, *m.also] + (TILES if m.also else [])
    objects = [compiled(build, m, source, at) for source in files]
    glue, names = at / "glue.cc", at / "names.map"
    op = op_of(m.kernel)
    glue.write_text(
        '#include "ops/all.h"\n#include "dispatch/candidate.h"\n'
        f"namespace sluice::cuda {{\nextern const Candidate<{op}> {m.kernel};\n}}\n"
        f'extern "C" const char* sluice_mutant_op() {{ return sluice::{op}::kName.data(); }}\n'
        f'extern "C" const void* sluice_mutant() {{ return &sluice::cuda::{m.kernel}; }}\n'
    )
    names.write_text("{ global: sluice_mutant; sluice_mutant_op; local: *; };\n")
    includes = [word for word in command_of(build, card) if word.startswith("-I")]
    run(["c++", "-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", *includes, "-c", glue, "-o", at / "glue.o"], cwd=build)
    # CUDA's runtime is a library here: what registers these kernels must also launch them, so launch.cc is theirs, too.
    run(
        ["c++", "-shared", "-o", to / f"{m.name}.so", *objects, at / "glue.o", f"CMakeFiles/sluice_cuda.dir/{CUDA}launch.cc.o"]
        + [runtime(build), f"-Wl,--version-script={names},-Bsymbolic,-rpath,$ORIGIN", "-s"],
        cwd=build,
    )


def runtime(build: pathlib.Path) -> pathlib.Path:
    cache = (build / "CMakeCache.txt").read_text()
    static = pathlib.Path(re.search(r"^CUDA_cudart_static_LIBRARY:\w+=(.*)$", cache, re.M)[1])
    return next(iter(sorted(static.parent.glob("libcudart.so.*"))))


def main(words):
    broken = list(stale())
    if broken or words == ["--check"]:
        print("\n".join(broken) or f"{len(KERNELS)} mutations apply")
        return 1 if broken else 0
    if words == ["--list"]:
        for m in KERNELS:
            print(f"{m.name:34} {CUDA}{m.path}: {m.breaks}")
        return 0
    unknown = set(words[2:]) - {m.name for m in CONTROLS + KERNELS}
    if len(words) < 2 or unknown:
        print(f"mutations_cuda: wanted BUILD TO [NAME...], found {' '.join(words)}; --list names them", file=sys.stderr)
        return 2
    build, to = (pathlib.Path(word).resolve() for word in words[:2])
    chosen = [m for m in CONTROLS + KERNELS if not words[2:] or m.name in words[2:]]
    to.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for m, _ in zip(chosen, pool.map(lambda m: build_one(build, to, m), chosen)):
            print(f"{m.name}: {(to / f'{m.name}.so').stat().st_size >> 10} KiB", flush=True)
    shutil.copy(runtime(build), to)
    (to / "list").write_text("".join(f"{m.name}\t{m.op}\t{m.breaks}\n" for m in chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
