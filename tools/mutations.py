#!/usr/bin/env python3
"""Breaks the code by hand, one place at a time, and shows that a test notices.

Each mutation replaces one text, which must occur exactly once, in a copy of the tree under build/mutations, builds it and
runs the tests it names. A mutation that survives means that a case is missing. Exit status 1 if any does. CUDA's kernels are
mutated by mutations_cuda.py; only --check knows of them.

  tools/mutations.py           every mutation (some minutes)
  tools/mutations.py NAME...   these
  tools/mutations.py --list    names, files and what each breaks
  tools/mutations.py --check   only whether every text still occurs once
"""
import pathlib
import subprocess
import sys
import time

import mutations_cuda
from mutations_engine import ENGINE
from mutations_layers import LAYERS
from mutations_server import SERVER
from mutations_table import KERNELS
from mutations_text import TEXT

MUTATIONS = KERNELS + TEXT + LAYERS + ENGINE + SERVER
ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutations" / "src"
BUILD = ROOT / "build" / "mutations" / "out"


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", **options)


def stale():
    for m in MUTATIONS:
        count = (ROOT / m.path).read_text().count(m.old)
        if count != 1:
            yield f"{m.name}: its text occurs {count} times in {m.path}, wanted once"


def copy_tree():
    """Writes what differs, with the time of now: a build knows files by their times."""
    names = run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True).stdout.splitlines()
    wanted = {name for name in names if (ROOT / name).is_file()}
    for old in [p for p in COPY.rglob("*") if p.is_file() and str(p.relative_to(COPY)) not in wanted]:
        old.unlink()
    for name in wanted:
        content = (ROOT / name).read_bytes()
        copy = COPY / name
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)


def build(programs):
    return run(["cmake", "--build", BUILD, "--target", *sorted(programs)])


def tests(program, pattern):
    return run([BUILD / "tests" / program, f"--gtest_filter={pattern}"])


def main(words):
    broken = [*stale(), *mutations_cuda.stale()]
    if broken or words == ["--check"]:
        print("\n".join(broken) or f"{len(MUTATIONS)} mutations apply, and {len(mutations_cuda.KERNELS)} of CUDA's kernels")
        return 1 if broken else 0
    if words == ["--list"]:
        for m in MUTATIONS:
            print(f"{m.name:32} {m.path}: {m.breaks}")
        return 0
    unknown = set(words) - {m.name for m in MUTATIONS}
    if unknown:
        print(f"mutations: unknown: {', '.join(sorted(unknown))}; --list names them", file=sys.stderr)
        return 2
    chosen = [m for m in MUTATIONS if not words or m.name in words]
    print("building the tree as it is", flush=True)
    copy_tree()
    run(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DSLUICE_BENCH=OFF", "-DSLUICE_UNITY=OFF"], check=True)
    programs = {m.program for m in chosen}
    first = build(programs)
    if first.returncode:
        print(first.stdout[-3000:])
        return 2
    survived = 0
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    skipped = [m for m in chosen if m.needs and m.needs not in flags]
    chosen = [m for m in chosen if m not in skipped]
    for m in skipped:
        print(f"{m.name:32} not tried: this processor lacks {m.needs}")
    for program, pattern in sorted({(m.program, m.tests) for m in chosen}):
        healthy = tests(program, pattern)
        if healthy.returncode or "[  PASSED  ] 0 tests" in healthy.stdout:
            print(f"mutations: {pattern} names no test, or fails before anything is broken")
            return 2
    for m in chosen:
        file = COPY / m.path
        original = file.read_text()
        started = time.time()
        file.write_text(original.replace(m.old, m.new))
        built = build({m.program})
        if built.returncode:
            print(f"{m.name:32} does not compile:\n{built.stdout[-2000:]}")
            return 2
        result = tests(m.program, m.tests)
        caught = result.returncode != 0
        failed = sum(line.startswith("[  FAILED  ]") and line.endswith("ms)") for line in result.stdout.splitlines())
        survived += not caught
        by = f"{failed} test{'s' if failed != 1 else ''}" if failed else "a crash"
        word = f"caught by {by}" if caught else "SURVIVED"
        print(f"{m.name:32} {word:22} {m.breaks} ({time.time() - started:.0f} s)", flush=True)
        file.write_text(original)
    build(programs)
    print(f"{len(chosen) - survived} of {len(chosen)} mutations caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
