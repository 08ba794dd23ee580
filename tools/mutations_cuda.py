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

from mutations_attention import ATTENTION
from mutations_dense import DENSE
from mutations_kernels import KERNELS as OTHERS
from mutations_kernels import Mutation

ROOT = pathlib.Path(__file__).resolve().parent.parent
CUDA = "src/backends/cuda/"
KERNELS = OTHERS + ATTENTION + DENSE
TILES = ["experts/tile/tile_call.cu"]  # what the card of a tile kernel calls

CONTROLS = [
    m._replace(name=f"control_{m.kernel}", breaks="nothing", new=m.old)
    for m in KERNELS
    if m.name in ("combine_scale_dropped", "topk_nan_first", "tile_clamps_gate_from_below", "linear_tile_bias_of_neighbour")
]


def stale():
    for m in KERNELS:
        count = (ROOT / CUDA / m.path).read_text().count(m.old)
        if count != 1:
            yield f"{m.name}: its text occurs {count} times in {CUDA}{m.path}, wanted once"


def op_of(kernel: str) -> str:
    return re.search(rf"SLUICE_CANDIDATE\((\w+), {kernel}\)", (ROOT / CUDA / "candidates.def").read_text())[1]


def card_of(kernel: str) -> str:
    return str(next((ROOT / CUDA).rglob(f"{kernel}.cu")).relative_to(ROOT / CUDA))


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
