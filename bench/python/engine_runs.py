"""What the benchmarks of whole engines share: one process for each (model, backend), what each found, tables and rows.

A result is a JSON file of DIR: model, backend, experts (the class that ran them), answers, rows, complete, and under the engine's own
name its version.
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
    """What one process found, written to DIR after each row."""

    def __init__(self, model: str, backend: str, out: pathlib.Path, **known):
        self.name = f"{model} {backend}"
        self.path = out / f"{_file_name(model, backend)}.json"
        self.data = {"model": model, "backend": backend, "rows": [], "complete": False, **known}

    def resume(self) -> None:
        """Goes on with what a process before this one had found, if it left something."""
        if self.path.exists():
            self.data |= json.loads(self.path.read_text())

    def write(self, **more) -> None:
        self.data |= more
        self.path.write_text(json.dumps(self.data))

    def keep(self, op: str, count: int, times: list[float], note: str) -> None:
        """A row: `count` sequences or tokens of a prompt, microseconds of each step."""
        times = sorted(times)
        row = {"op": op, "tokens": count, "median_us": statistics.median(times), "p10_us": times[len(times) // 10],
               "p90_us": times[len(times) * 9 // 10], "steps": len(times), "note": note}
        self.data["rows"].append(row)
        self.write()
        print(f"{self.name} {op} {count}: {row['median_us']:.0f} us [{row['p10_us']:.0f}, {row['p90_us']:.0f}] of {len(times)}, "
              f"{count / row['median_us'] * 1e6:.0f} tokens a second", flush=True)


def _file_name(model: str, backend: str) -> str:
    return f"{model}-{backend.replace('+', '_')}"


def load(out: pathlib.Path) -> dict[tuple[str, str], dict]:
    found = [json.loads(p.read_text()) for p in sorted(out.glob("*-*.json"))]
    return {(r["model"], r["backend"]): r for r in found}


def run_all(program: str, out: pathlib.Path, seconds: float, order: list[tuple[str, str]], least: float, caches: dict[str, str],
            flags: Sequence[str] = ()) -> None:
    """A process for each that is not complete, while there is time for one more, which takes at least `least` seconds. `caches`:
    names of the environment, and folders of DIR, for what a process compiles and the next one finds. `flags`: more for each process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began, longest = time.monotonic(), least
    environment = os.environ | {name: str(out / "cache" / folder) for name, folder in caches.items()}
    for model, backend in order:
        if load(out).get((model, backend), {}).get("complete"):
            continue
        left = seconds - (time.monotonic() - began)
        if left < longest:
            print(f"{model} {backend}: {left:.0f} s left, the longest took {longest:.0f}: not begun", flush=True)
            break
        started = time.monotonic()
        path = out / f"{_file_name(model, backend)}.log"
        with open(path, "w") as log:
            command = [sys.executable, program, "one", model, backend, "--out", str(out), *flags]
            process = subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)
            try:
                code = process.wait(left)
                ended = f"ended with {code}" if code else ""
            except subprocess.TimeoutExpired:
                ended = "out of time"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # its servers too, which would keep the card
                    process.wait()
        if ended:
            print(f"{model} {backend}: {ended}: {path.read_text()[-3000:]}", flush=True)
        longest = max(longest, time.monotonic() - started)
        print(f"{model} {backend}: {time.monotonic() - started:.0f} s in all", flush=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def equal_tokens(one: list[int], other: list[int]) -> int:
    """How many are the same before the first that is not."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), len(one))


def compared(one: dict, other: dict) -> str:
    """Greedy tokens that are the same before the first that is not, and how far logarithms of likely tokens are apart there."""
    if "answers" not in one or "answers" not in other:
        return "no answers to compare"
    same, tokens, apart = 0, 0, []
    for a, b in zip(one["answers"], other["answers"]):
        equal = equal_tokens(a["tokens"], b["tokens"])
        same, tokens = same + equal, tokens + len(a["tokens"])
        for i in range(min(equal + 1, len(a["top"]), len(b["top"]))):  # the first different token still has the same text before it
            apart += [abs(a["top"][i][t] - b["top"][i][t]) for t in a["top"][i].keys() & b["top"][i].keys()]
    worst = f"{max(apart):.4f} at most, {statistics.mean(apart):.4f} on average" if apart else "none shared"
    return f"{same} of {tokens} greedy tokens are the same; logarithms of probabilities apart by {worst}"


def table(out: pathlib.Path) -> None:
    """Ratios to Sluice, and how far answers are apart. A backend's variant ("marlin+lora") is held to Sluice's own, and one whose draft
    guesses to the same backend's "+plain", which has none."""
    found = load(out)
    for (model, backend), base in found.items():
        chosen, _, variant = backend.partition("+")
        plain = found.get((model, f"{chosen}+plain"))
        if "guesses" in base:
            accepted = ", ".join(map(str, base["accepted"]))
            print(f"{model}, {backend}: of {base['guesses']} guesses {accepted} accepted, by place; the draft: {base['draft']}")
        if "guesses" in base and plain:
            print(f"{model}, {backend} over {chosen}+plain: {compared(plain, base)}")
        ours = found.get((model, "sluice" + ("+" + variant if variant else "")))
        if chosen == "sluice" or ours is None:
            continue
        times = {(r["op"], r["tokens"]): r["median_us"] for r in ours["rows"]}
        print(f"{model}, {backend} ({base['experts']}) over sluice: {compared(base, ours)}")
        for r in base["rows"]:
            mine = times.get((r["op"], r["tokens"]))
            if mine:
                print(f"  {r['op']} {r['tokens']}: {r['median_us']:.0f} / {mine:.0f} us = {r['median_us'] / mine:.2f}")


def rows(engine: str, out: pathlib.Path, version: str) -> None:
    """Rows of bench/measured; `version` is Sluice's."""
    print("suite,op,model,tokens,impl,version,median_us,p10_us,p90_us,bytes,flops,note")
    for (model, backend), r in load(out).items():
        chosen, _, variant = backend.partition("+")
        impl = {"sluice": "sluice", "default": f"{engine}-{r['experts']}"}.get(chosen, f"{engine}-{chosen}")
        which = f"{version}+{engine}-{r[engine]}" if chosen == "sluice" else r[engine]
        name = f"gpt-oss-{model}" if model in ("20b", "120b") else model
        for row in sorted(r["rows"], key=lambda row: (row["op"], row["tokens"])):
            print(f"engine_{engine},{row['op']},{name},{row['tokens']},{impl},{which},{row['median_us']:.4f},{row['p10_us']:.4f},"
                  f"{row['p90_us']:.4f},0,0,{row['note']}{' ' + variant if variant else ''}")


def main(engine: str, program: str, doc: str, one: Callable[[str, str, pathlib.Path], None], order: list[tuple[str, str]], *, seconds: float,
         least: float, caches: dict[str, str]) -> None:
    parse = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("command", choices=("all", "one", "table", "rows"))
    parse.add_argument("which", nargs="*", help="MODEL BACKEND; for all: MODEL-BACKEND ..., in that order")
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
