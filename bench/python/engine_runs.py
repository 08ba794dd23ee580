"""Shared code of the benchmarks of whole engines: one process for each (model, backend), its results, tables and rows.

A result is a JSON file in DIR with model, backend, experts (the class that ran them), answers, rows, complete, and the engine's version
under the engine's name.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time
from typing import Callable, Sequence


class Result:
    """The results of one process, written to DIR after each row."""

    def __init__(self, model: str, backend: str, out: pathlib.Path, **known):
        self.name = f"{model} {backend}"
        self.path = out / f"{_file_name(model, backend)}.json"
        self.data = {"model": model, "backend": backend, "rows": [], "complete": False, **known}

    def resume(self) -> None:
        """Continues with the results of an earlier process, if there are any."""
        if self.path.exists():
            self.data |= json.loads(self.path.read_text())

    def write(self, **more) -> None:
        self.data |= more
        self.path.write_text(json.dumps(self.data))

    def keep(self, op: str, count: int, times: list[float], note: str) -> None:
        """Adds a row. `count`: sequences, or tokens of the prompt; `times`: microseconds of each step."""
        times = sorted(times)
        row = {"op": op, "tokens": count, "median_us": statistics.median(times), "p10_us": times[len(times) // 10],
               "p90_us": times[len(times) * 9 // 10], "steps": len(times), "note": note}
        self.data["rows"].append(row)
        self.write()
        print(f"{self.name} {op} {count}: {row['median_us']:.0f} us [p10 {row['p10_us']:.0f}, p90 {row['p90_us']:.0f}] in {len(times)} steps, "
              f"{count / row['median_us'] * 1e6:.0f} tokens/s", flush=True)


def _file_name(model: str, backend: str) -> str:
    return f"{model}-{backend.replace('+', '_')}"


def load(out: pathlib.Path) -> dict[tuple[str, str], dict]:
    found = [json.loads(p.read_text()) for p in sorted(out.glob("*-*.json"))]
    return {(r["model"], r["backend"]): r for r in found}


def run_all(program: str, out: pathlib.Path, seconds: float, order: list[tuple[str, str]], least: float, caches: dict[str, str],
            flags: Sequence[str] = ()) -> None:
    """Runs a process for each (model, backend) that is not complete, as long as there is time for another, which takes at least `least`
    seconds. `caches` maps environment variables to folders in DIR that keep compiled kernels for the next process. `flags` are passed to
    every process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began, longest = time.monotonic(), least
    environment = os.environ | {name: str(out / "cache" / folder) for name, folder in caches.items()}
    for model, backend in order:
        if load(out).get((model, backend), {}).get("complete"):
            continue
        left = seconds - (time.monotonic() - began)
        if left < longest:
            print(f"{model} {backend}: {left:.0f} s left, not started, because the longest process took {longest:.0f} s", flush=True)
            break
        started = time.monotonic()
        path = out / f"{_file_name(model, backend)}.log"
        with open(path, "w") as log:
            command = [sys.executable, program, "one", model, backend, "--out", str(out), *flags]
            process = subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)
            try:
                code = process.wait(left)
                ended = f"exited with {code}" if code else ""
            except subprocess.TimeoutExpired:
                ended = "out of time"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # also ends its servers, which would occupy the GPU
                    process.wait()
        if ended:
            print(f"{model} {backend}: {ended}: {path.read_text()[-3000:]}", flush=True)
        longest = max(longest, time.monotonic() - started)
        print(f"{model} {backend}: {time.monotonic() - started:.0f} s in total", flush=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def equal_tokens(one: list[int], other: list[int]) -> int:
    """Returns the length of the common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), len(one))


def compared(one: dict, other: dict) -> str:
    """Describes how many greedy tokens are equal before the first difference, and how far log probabilities differ up to there."""
    if "answers" not in one or "answers" not in other:
        return "no answers to compare"
    same, tokens, apart = 0, 0, []
    for a, b in zip(one["answers"], other["answers"]):
        equal = equal_tokens(a["tokens"], b["tokens"])
        same, tokens = same + equal, tokens + len(a["tokens"])
        for i in range(min(equal + 1, len(a["top"]), len(b["top"]))):  # the first different token still follows equal text
            apart += [abs(a["top"][i][t] - b["top"][i][t]) for t in a["top"][i].keys() & b["top"][i].keys()]
    worst = f"{max(apart):.4f} at most, {statistics.mean(apart):.4f} on average" if apart else "none shared"
    return f"{same} of {tokens} greedy tokens are equal; log probabilities differ by {worst}"


def table(out: pathlib.Path) -> None:
    """Prints ratios to Sluice, and how far answers differ. A variant ("marlin+lora") is compared with the same variant of Sluice. A variant
    with a draft is also compared with "+plain" of the same backend, which has none."""
    found = load(out)
    for (model, backend), base in found.items():
        chosen, _, variant = backend.partition("+")
        plain = found.get((model, f"{chosen}+plain"))
        if "guesses" in base:
            accepted = ", ".join(map(str, base["accepted"]))
            print(f"{model}, {backend}: of {base['guesses']} drafts, accepted by position: {accepted}; draft model: {base['draft']}")
        if "guesses" in base and plain:
            print(f"{model}, {backend} compared with {chosen}+plain: {compared(plain, base)}")
        ours = found.get((model, "sluice" + ("+" + variant if variant else "")))
        if chosen == "sluice" or ours is None:
            continue
        times = {(r["op"], r["tokens"]): r["median_us"] for r in ours["rows"]}
        print(f"{model}, {backend} ({base['experts']}) compared with sluice: {compared(base, ours)}")
        for r in base["rows"]:
            mine = times.get((r["op"], r["tokens"]))
            if mine:
                print(f"  {r['op']} {r['tokens']}: {r['median_us']:.0f} / {mine:.0f} us = {r['median_us'] / mine:.2f}")


def rows(engine: str, out: pathlib.Path, version: str) -> None:
    """Prints rows for bench/measured; `version` is Sluice's commit."""
    print("suite,op,model,tokens,impl,version,median_us,p10_us,p90_us,bytes,flops,note")
    for (model, backend), r in load(out).items():
        chosen, _, variant = backend.partition("+")
        ours = chosen.startswith("sluice")
        impl = chosen if ours else f"{engine}-{r['experts']}" if chosen == "default" else f"{engine}-{chosen}"
        which = f"{version}+{engine}-{r[engine]}" if ours or chosen == "gates" else r[engine]
        name = f"gpt-oss-{model}" if model in ("20b", "120b") else model
        for row in sorted(r["rows"], key=lambda row: (row["op"], row["tokens"])):
            print(f"engine_{engine},{row['op']},{name},{row['tokens']},{impl},{which},{row['median_us']:.4f},{row['p10_us']:.4f},"
                  f"{row['p90_us']:.4f},0,0,{row['note']}{' ' + variant if variant else ''}")


def main(engine: str, program: str, doc: str, one: Callable[[str, str, pathlib.Path], None], order: list[tuple[str, str]], *, seconds: float,
         least: float, caches: dict[str, str]) -> None:
    parse = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("command", choices=("all", "one", "table", "rows"))
    parse.add_argument("which", nargs="*", help="for one: MODEL BACKEND; for all: MODEL-BACKEND ..., in this order")
    parse.add_argument("--out", type=pathlib.Path, required=True)
    parse.add_argument("--seconds", type=float, default=seconds)
    parse.add_argument("--version", default="unknown")
    given = parse.parse_intermixed_args()
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if given.command == "one":
        one(*given.which, out)
    elif given.command == "all":
        run_all(program, out, given.seconds, [tuple(w.split("-", 1)) for w in given.which] or order, least, caches)
    if given.command in ("all", "table"):
        table(out)
    elif given.command == "rows":
        rows(engine, out, given.version)
