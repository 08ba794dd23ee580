#!/usr/bin/env python3
"""Builds with ninja, writes ninja's output to a log, and shows progress and an estimate of the remaining time.

  build_progress.py LOG DIRECTORY [TARGET...]   exits with ninja's status
  build_progress.py --check                     tests itself

On a terminal it updates one line in place; elsewhere it prints a line every 20 seconds.
"""
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time

# Core seconds of a step without a compiler cache, by the first pattern that matches: averages of clean builds on two cores of an EPYC
# server. Other steps (links, archives) take almost no time.
KINDS = [(r"Building CUDA object", 9.0), (r"Building CXX object tests/.*/Unity/", 15.0), (r"Building CXX object .*/Unity/", 13.0),
         (r"Building CXX object .*\.cu\.o", 0.8), (r"Building CXX object tests/", 6.5), (r"Building C(XX)? object", 3.6)]
STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)")


def weight(step):
    return next((seconds for kind, seconds in KINDS if re.search(kind, step)), 0.2)


def minutes(seconds):
    return "about a minute" if seconds < 90 else f"about {seconds / 60:.0f} minutes"


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """Counts finished steps and estimates the remaining time from their pace, which reflects a compiler cache or a busy machine."""

    def __init__(self, steps):
        self.total = sum(map(weight, steps))
        self.done = 0.0
        self.line = ""

    def read(self, line):
        found = STEP.match(line)
        if not found or found[1] == "0":
            return False
        self.done += weight(found[3])
        self.line = f"{found[1]} of {found[2]} steps"
        return True

    def text(self, elapsed):
        known = elapsed >= 20 and self.done >= 0.15 * self.total
        left = max(self.total - self.done, 0) * elapsed / self.done if known else 0
        return f"{self.line or 'starting'}, {clock(elapsed)}" + (f", {minutes(left)} left" if left > 45 else "")


def planned(directory, targets):
    """Returns the steps that ninja would run now. The rule that runs CMake again is removed, because a dry run that needs it shows no other
    steps, and CMake has just run."""
    with open(f"{directory}/build.ninja", encoding="utf-8") as file:
        rules = re.sub(r"^build [^\n:]*: RERUN_CMAKE", "build unused: RERUN_CMAKE", file.read(), flags=re.M)
    with tempfile.NamedTemporaryFile("w", suffix=".ninja", encoding="utf-8") as plan:
        plan.write(rules)
        plan.flush()
        out = subprocess.run(["ninja", "-C", directory, "-f", plan.name, "-n", *targets],
                             env={**os.environ, "NINJA_STATUS": "[%f/%t] "}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False).stdout
    found = [STEP.match(line) for line in out.splitlines()]
    return [f[3] for f in found if f and f[1] != "0"]


def forecast(steps, cores):
    """Returns an estimate to print before a long build, or an empty string."""
    seconds = sum(map(weight, steps)) / max(cores, 1)
    if seconds < 45:
        return ""
    return f"{minutes(seconds)} on {cores} idle cores, or less with a filled compiler cache"


def build(log, directory, targets, show=sys.stderr):
    steps = planned(directory, targets)
    terminal, every = show.isatty(), 20.0
    if said := forecast(steps, len(os.sched_getaffinity(0))):
        print(f"   {len(steps)} steps: {said}", file=show, flush=True)
    progress, start, last, quiet = Progress(steps), time.monotonic(), 0.0, b""
    ninja = subprocess.Popen(["ninja", "-C", directory, *targets], env={**os.environ, "NINJA_STATUS": "[%f/%t] "},
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    os.set_blocking(ninja.stdout.fileno(), False)
    selector = selectors.DefaultSelector()
    selector.register(ninja.stdout, selectors.EVENT_READ)
    with open(log, "wb") as out:
        while True:
            if selector.select(timeout=1.0):
                piece = ninja.stdout.read()
                if not piece:
                    break
                out.write(piece)
                out.flush()
                *lines, quiet = (quiet + piece).split(b"\n")
                for line in lines:
                    progress.read(line.decode(errors="replace"))
            elapsed = time.monotonic() - start
            if terminal:
                print(f"\r   {progress.text(elapsed)}\033[K", end="", file=show, flush=True)
            elif elapsed - last >= every:
                last = elapsed
                print(f"   {progress.text(elapsed)}", file=show, flush=True)
    if terminal:
        print("\r\033[K", end="", file=show, flush=True)
    return ninja.wait()


def check():
    kernel, test, link = "Building CUDA object a.cu.o", "Building CXX object tests/a.cc.o", "Linking CXX executable a"
    assert weight(kernel) > weight(test) > weight("Building CXX object src/a.cc.o") > weight(link)
    p = Progress([kernel, kernel, link])
    assert p.text(5) == "starting, 0:05"
    assert not p.read("FAILED: a.o") and not p.read("[0/2] Re-checking globbed directories...")
    assert p.read(f"[1/3] {kernel}")
    assert p.text(65) == "1 of 3 steps, 1:05, about a minute left", p.text(65)
    assert p.text(600).endswith("about 10 minutes left"), p.text(600)
    assert p.read(f"[2/3] {kernel}") and p.text(1200) == "2 of 3 steps, 20:00"
    assert forecast([link], 2) == "" and forecast([kernel] * 60, 2).startswith("about 4 minutes on 2 idle cores")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/build.ninja", "w", encoding="utf-8") as out:
            out.write("rule RERUN_CMAKE\n  command = false\nrule say\n  command = echo made >$out\n  description = Linking $out\n"
                      "rule fail\n  command = echo no such thing && false\nbuild a: say\nbuild b: fail\n"
                      "build never: RERUN_CMAKE\n")
        with open(f"{folder}/shown", "w", encoding="utf-8") as shown:
            assert planned(folder, ["a"]) == ["Linking a"]
            assert build(f"{folder}/log", folder, ["a"], shown) == 0
            assert build(f"{folder}/log", folder, ["b"], shown) != 0
        with open(f"{folder}/log", encoding="utf-8") as log:
            assert "no such thing" in log.read()


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        sys.exit(build(sys.argv[1], sys.argv[2], sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
