#!/usr/bin/env python3
"""Builds mutants of CUDA kernels, so that a machine with a GPU can check that a test detects each.

Each mutant of tests/gpu/mutants.toml becomes a small library with the kernel's file and the code that it calls, compiled with one place
replaced. It links against symbols of sluice_gpu_tests, which loads it instead of the kernel of the same name (tests/gpu/mutant.h). A
control is such a library without a change. It must pass, which shows that the library itself breaks nothing. `check --mutations` in the
folder of ./dev gpu runs all. tools/mutations.py lists and checks them.

  tools/mutations_cuda.py BUILD TO [NAME...]   builds these mutants, or all, into the folder TO, with a list and the CUDA runtime
"""
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import mutations
from mutations import ROOT, Mutant

CUDA = "src/backends/cuda"


def all_of_gpu():
    kernels = [m for m in mutations.load() if m.kernel]
    controls = [
        dataclasses.replace(m, name=f"control_{m.kernel}", breaks="Nothing: the unchanged kernel.", replace=m.find)
        for m in kernels
        if m.control
    ]
    return controls + kernels


def word_of(op: str) -> str:
    """Returns the name of an operation type: combine_norm for CombineNorm."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", op).lower()


def file_of(kernel: str) -> str:
    return str(next((ROOT / CUDA).rglob(f"{kernel}.cu")).relative_to(ROOT))


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def command_of(build: pathlib.Path, source: str) -> list:
    """Returns the build's compile command of a file, split into words."""
    target = f"CMakeFiles/sluice_cuda.dir/{source}.o"
    return shlex.split(run(["ninja", "-C", build, "-t", "commands", target]).splitlines()[-1])


def changed_file(at: pathlib.Path, m: Mutant) -> pathlib.Path:
    return at / "tree" / pathlib.Path(m.file).relative_to("src")


def compiled(build: pathlib.Path, m: Mutant, source: str, at: pathlib.Path) -> pathlib.Path:
    """Compiles one file, with the mutated file before the tree in the include path."""
    words = command_of(build, source)
    changed = changed_file(at, m)
    out = at / (pathlib.Path(source).name + ".o")
    for i, word in enumerate(words):
        if word in ("-o", "-MT"):
            words[i + 1] = str(out)
        if word == "-MF":
            words[i + 1] = f"{out}.d"
        if word == "-c" and source == m.file:
            words[i + 1] = str(changed)
    words.insert(next(i for i, word in enumerate(words) if word.startswith("-I")), f"-I{at / 'tree'}")
    run(words, cwd=build)
    return out


def build_one(build: pathlib.Path, to: pathlib.Path, m: Mutant) -> None:
    at = build / "mutant_objects" / m.name
    changed = changed_file(at, m)
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(mutations.mutated((ROOT / m.file).read_text(), m))
    own = file_of(m.kernel)
    objects = [compiled(build, m, source, at) for source in [own, *m.also]]
    glue, names = at / "glue.cc", at / "names.map"
    op = mutations.op_of(m.kernel)
    glue.write_text(
        '#include "ops/all.h"\n#include "dispatch/candidate.h"\n'
        f"namespace sluice::cuda {{\nextern const Candidate<{op}> {m.kernel};\n}}\n"
        f'extern "C" const char* sluice_mutant_op() {{ return sluice::{op}::kName.data(); }}\n'
        f'extern "C" const void* sluice_mutant() {{ return &sluice::cuda::{m.kernel}; }}\n'
    )
    names.write_text("{ global: sluice_mutant; sluice_mutant_op; local: *; };\n")
    includes = [word for word in command_of(build, own) if word.startswith("-I")]
    run(["c++", "-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", *includes, "-c", glue, "-o", at / "glue.o"], cwd=build)
    # The CUDA runtime is a shared library here. The library that registers kernels must also launch them, so it contains launch.cc.
    run(
        ["c++", "-shared", "-o", to / f"{m.name}.so", *objects, at / "glue.o", f"CMakeFiles/sluice_cuda.dir/{CUDA}/launch.cc.o"]
        + [runtime(build), f"-Wl,--version-script={names},-Bsymbolic,-rpath,$ORIGIN", "-s"],
        cwd=build,
    )


def runtime(build: pathlib.Path) -> pathlib.Path:
    cache = (build / "CMakeCache.txt").read_text()
    static = pathlib.Path(re.search(r"^CUDA_cudart_static_LIBRARY:\w+=(.*)$", cache, re.M)[1])
    return next(iter(sorted(static.parent.glob("libcudart.so.*"))))


def main(words):
    every = all_of_gpu()
    unknown = set(words[2:]) - {m.name for m in every}
    if len(words) < 2 or unknown:
        mutations.fail(f"wanted BUILD TO [NAME...], found {' '.join(words)}; tools/mutations.py --list shows the names")
    if broken := list(mutations.stale(m for m in every if m.find != m.replace)):
        mutations.fail("\n".join(broken))
    build, to = (pathlib.Path(word).resolve() for word in words[:2])
    chosen = [m for m in every if not words[2:] or m.name in words[2:]]
    to.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for m, _ in zip(chosen, pool.map(lambda m: build_one(build, to, m), chosen)):
            print(f"{m.name}: {(to / f'{m.name}.so').stat().st_size >> 10} KiB", flush=True)
    shutil.copy(runtime(build), to)
    (to / "list").write_text("".join(f"{m.name}\t{word_of(mutations.op_of(m.kernel))}\t{m.breaks}\n" for m in chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
