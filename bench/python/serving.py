#!/usr/bin/env python3
"""Measures Sluice's server and vLLM's server under load, with gpt-oss-20b and -120b. `sluice bench serve` is the client on the same machine.

    serving.py all --out DIR --sluice PATH [MODEL-SERVER ...]   runs each that DIR has no result of, in this order
    serving.py one MODEL SERVER --out DIR --sluice PATH         runs one of them
    serving.py table --out DIR                                  prints the times of all servers
    serving.py rows --out DIR --version COMMIT                  prints rows for bench/measured/h200/serving.csv

MODEL is 20b, 120b or tiny (the shipped model, for a trial on the CPU). SERVER is sluice, sluice-fp8 (--kv-cache-dtype fp8), sluice-mixed-N
(--max-mixed-prefill-tokens N, which affects the workload `arrivals`), vllm (with the expert kernels that vLLM chooses) or vllm+sluice (with
Sluice's). PATH is the command `sluice`. --workloads a,b selects some of these:

    latency      1024 input and 128 output tokens, 1 to 64 concurrent requests
    throughput   1024 input and 1024 output tokens, 256 concurrent requests, and as many as the KV cache holds
    arrivals     32 concurrent answers of 1024 tokens, while prompts of 4096 tokens arrive as a Poisson process, 2 per second
    cached       a prompt of 65536 tokens, and prompts that share its first nine tenths; on a separate server with prefix caching

All servers read one config.json and have random weights: Sluice from `--load-format dummy`, vLLM from engine_vllm_weights.py. Prompts are
token ids. Workloads that DIR has results of are not repeated. The environment variable SLUICE_BENCH_GPU is the index of the GPU.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import urllib.request
from typing import Callable, Iterator

import engine_runs
import engine_vllm_serving as vllm_serving
from engine_vllm_weights import SEED, TINY, config_of

VLLM_BACKENDS = {"vllm": "default", "vllm+sluice": "sluice"}  # their names in engine_vllm_serving.py
ORDER = [("20b", "sluice"), ("20b", "vllm"), ("120b", "sluice"), ("120b", "vllm"), ("20b", "vllm+sluice"), ("120b", "vllm+sluice")]
SHARED = 0.9  # fraction of a prompt that is cached
COLD, CACHED = 3, 5  # numbers of timed prompts
MIN_US = 0.1  # two events in one read have no time between them, but axes are logarithmic


@dataclasses.dataclass(frozen=True)
class Load:
    prompt: int
    answer: int
    requests: dict[int, int]  # concurrent requests: total requests


@dataclasses.dataclass(frozen=True)
class Sizes:
    vocabulary: int  # token ids are below it
    latency: Load
    throughput: Load
    streams: Load  # the requests that decode while prompts arrive
    arriving: Load
    rate: float  # prompts per second
    cached_prompt: int
    limits: list[str]  # flags of all servers
    cached_limits: list[str]


SIZES = Sizes(200_000, Load(1024, 128, {1: 8, 8: 48, 32: 160, 64: 256}), Load(1024, 1024, {256: 256, 1024: 1024, 2048: 2048}),
              Load(256, 1024, {32: 32}), Load(4096, 1, {0: 200}), 2, 65536,
              ["--max-num-seqs", "2048", "--max-model-len", "8256", "--max-num-batched-tokens", "8192", "--gpu-memory-utilization", "0.92"],
              ["--max-num-seqs", "8", "--max-model-len", "66560", "--max-num-batched-tokens", "8192", "--gpu-memory-utilization", "0.92"])
LARGE_SIZES = dataclasses.replace(SIZES, throughput=Load(1024, 1024, {256: 256, 768: 768}))  # as many as the cache holds with the 120b model
TINY_SIZES = Sizes(1000, Load(32, 8, {1: 2, 4: 8}), Load(32, 32, {8: 8}), Load(16, 128, {4: 4}), Load(256, 1, {0: 200}), 4, 512,
                   ["--max-num-seqs", "8", "--max-model-len", "1024", "--max-num-batched-tokens", "1024"],
                   ["--max-num-seqs", "8", "--max-model-len", "1024", "--max-num-batched-tokens", "1024"])


# ---- Servers ----


def prepare(model: str, out: pathlib.Path) -> pathlib.Path:
    """Makes a folder with config.json and a tokenizer for both servers: its tokens are gpt-oss's special tokens and words of digits."""
    if model == "tiny":
        return TINY.parent
    folder = out / f"serving-{model}"
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model)
    (folder / "config.json").write_text(json.dumps(config))
    shipped = json.loads((TINY.parent / "tokenizer.json").read_text())
    names = {199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain", 200005: "channel", 200006: "start",
             200007: "end", 200008: "message", 200012: "call", 200018: "endofprompt"}
    first = min(names)
    letters = [word for word in shipped["model"]["vocab"] if len(word) == 1]  # one per byte
    words = letters + [f"w{i}" for i in range(len(letters), first)]
    shipped["model"] |= {"vocab": {word: i for i, word in enumerate(words)}, "merges": []}
    shipped["added_tokens"] = [{"id": i, "content": f"<|{names.get(i, f'reserved_{i}')}|>", "single_word": False, "lstrip": False,
                                "rstrip": False, "normalized": False, "special": True} for i in range(first, config["vocab_size"])]
    (folder / "tokenizer.json").write_text(json.dumps(shipped))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072}))
    return folder


def ours(server: str) -> bool:
    return server.split("-")[0] == "sluice"


def flags_of(server: str) -> list[str]:
    """Returns the additional flags of a variant of Sluice's server."""
    _, *variant = server.split("-")
    match variant:
        case []:
            return []
        case ["fp8"]:
            return ["--kv-cache-dtype", "fp8"]
        case ["mixed", bound] if bound.isdecimal():
            return ["--max-mixed-prefill-tokens", bound]
    raise SystemExit(f"SERVER: wanted sluice, sluice-fp8, sluice-mixed-N, vllm or vllm+sluice, found '{server}'")


def command_of(model: str, server: str, sluice: str, folder: pathlib.Path, port: int, limits: list[str]) -> list[str]:
    if ours(server):
        weights = [] if model == "tiny" else ["--load-format", "dummy"]
        return [sluice, "serve", str(folder), *weights, "--port", str(port), *limits, *flags_of(server), "-q"]
    graphs = ["--enforce-eager"] if model == "tiny" else ["--compilation-config", json.dumps({"cudagraph_mode": "FULL_DECODE_ONLY"})]
    more = ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    return vllm_serving.command_of(model, VLLM_BACKENDS[server], folder, port, limits + graphs + more)


class Run:
    """One model on one server, and its results."""

    def __init__(self, model: str, server: str, out: pathlib.Path, sluice: str):
        self.model, self.server, self.out, self.sluice = model, server, out, sluice
        self.sizes = {"tiny": TINY_SIZES, "120b": LARGE_SIZES}.get(model, SIZES)
        self.folder, self.port = prepare(model, out), 0
        (out / "asked").mkdir(parents=True, exist_ok=True)
        known = {} if ours(server) else {"vllm": vllm_serving.version()}
        self.result = engine_runs.Result(model, server, out, ready_s={}, done=[], **known)
        self.result.resume()

    @contextlib.contextmanager
    def serving(self, limits: list[str], name: str) -> Iterator[None]:
        self.port = engine_runs.free_port()
        command = command_of(self.model, self.server, self.sluice, self.folder, self.port, limits)
        server = subprocess.Popen(command, stdout=sys.stderr)
        try:
            ready = vllm_serving.wait_until_ready(server, self.port)
            self.result.data["ready_s"][name] = round(ready, 1)
            print(f"{self.result.name}: ready for {name} after {ready:.1f} s", flush=True)
            yield
        finally:
            vllm_serving.end(server)

    def client(self, load: Load, flight: int, to: pathlib.Path, flags: list[str]) -> subprocess.Popen:
        """Starts `sluice bench serve`. flight: concurrent requests, 0: unlimited."""
        bound = ["--max-concurrency", str(flight)] if flight else []
        command = [self.sluice, "bench", "serve", "--port", str(self.port), "--random-input-len", str(load.prompt), "--random-output-len",
                   str(load.answer), "--num-prompts", str(load.requests[flight]), *bound, "--vocab-size", str(self.sizes.vocabulary),
                   "--ignore-eos", "--temperature", "0", "--seed", str(flight), "--metric-percentiles", "10,90,99,99.9", "--output-json",
                   str(to), "-q", *flags]
        return subprocess.Popen(command, stdout=sys.stderr)

    def found(self, client: subprocess.Popen, wanted: int, to: pathlib.Path) -> dict:
        if client.wait() != 0:
            raise SystemExit(f"bench serve exited with {client.returncode}")
        got = json.loads(to.read_text())
        if got["completed"] != wanted:
            raise SystemExit(f"wanted {wanted} answers, found {got['completed']}")
        return got

    def where(self, name: str) -> pathlib.Path:
        return self.out / "asked" / f"{self.model}-{self.server}-{name}.json"

    def keep(self, workload: str, op: str, count: int, times: tuple[float, float, float], note: str) -> None:
        """Adds a row. times: median, p10 and p90 in microseconds."""
        median, p10, p90 = (max(MIN_US, us) for us in times)
        self.result.data["rows"].append({"workload": workload, "op": op, "tokens": count, "median_us": median, "p10_us": p10, "p90_us": p90,
                                         "note": note})
        self.result.write()
        print(f"{self.result.name} {op} {count}: {median / 1e3:.3f} ms [p10 {p10 / 1e3:.3f}, p90 {p90 / 1e3:.3f}] {note}", flush=True)

    def keep_metric(self, workload: str, op: str, flight: int, got: dict, note: str, tails: tuple[str, ...] = ("99",), more: str = "") -> None:
        """Adds a row of bench serve's results. Tail latencies follow "; " in the note; comparisons of rows ignore that part."""
        tail = " ".join(f"p{p} {got[f'p{p}_{op}_ms']:.2f} ms" for p in tails)
        times = tuple(got[f"{of}_{op}_ms"] * 1e3 for of in ("median", "p10", "p90"))
        self.keep(workload, op, flight, times, f"{note}; {tail}{more}")


# ---- Workloads ----


def _loads(run: Run, workload: str, load: Load) -> None:
    for flight, requests in load.requests.items():
        to = run.where(f"{workload}-{flight}")
        got = run.found(run.client(load, flight, to, ["--num-warmups", str(min(flight, 4))]), requests, to)
        note = f"{load.prompt} in {load.answer} out"
        for op in ("ttft", "tpot", "itl"):
            run.keep_metric(workload, op, flight, got, note)
        run.keep(workload, "output_token", flight, (1e6 / got["output_throughput"],) * 3, note)


def latency(run: Run) -> None:
    _loads(run, "latency", run.sizes.latency)


def throughput(run: Run) -> None:
    _loads(run, "throughput", run.sizes.throughput)


def arrivals(run: Run) -> None:
    """Times the streams. Prompts arrive from the time when all streams decode until the last stream ends. The mean time to first token of the
    prompts comes from the server's metrics, because their client is killed."""
    streams, arriving, rate = run.sizes.streams, run.sizes.arriving, run.sizes.rate
    (flight,), to = streams.requests, run.where("arrivals")
    wanted = first_tokens(run.port)[0] + 1 + flight  # the client's first request goes ahead of all others
    client = run.client(streams, flight, to, [])
    while (before := first_tokens(run.port))[0] < wanted:
        if client.poll() is not None:
            raise SystemExit("the streams ended before all of them decoded at the same time")
        time.sleep(0.02)
    prompts = run.client(arriving, 0, run.where("arrivals-prompts"), ["--request-rate", str(rate)])
    try:
        got = run.found(client, flight, to)
        if prompts.poll() is not None:
            raise SystemExit("the prompts ended before the streams")
        count, seconds = (new - old for old, new in zip(before, first_tokens(run.port)))
    finally:
        prompts.kill()
        prompts.wait()
    note = f"{streams.prompt} in {streams.answer} out beside {arriving.prompt} in at {rate}/s"
    for op in ("itl", "tpot"):
        run.keep_metric("arrivals", op, flight, got, note, ("99", "99.9"), f" prompts ttft {seconds / count * 1e3:.1f} ms")


def cached(run: Run) -> None:
    draw, length = random.Random(SEED), run.sizes.cached_prompt

    def tokens(count: int) -> list[int]:
        return [draw.randrange(run.sizes.vocabulary) for _ in range(count)]

    first_token(run, tokens(length))
    prompts = [tokens(length) for _ in range(COLD)]
    keep_times(run, "nothing cached", [first_token(run, prompt)[0] for prompt in prompts])
    shared, slack = int(length * SHARED), 16 + length // 64  # servers cache whole pages
    times = []
    for _ in range(CACHED + 1):
        us, had = first_token(run, prompts[-1][:shared] + tokens(length - shared))
        if not shared - slack <= had <= shared:
            raise SystemExit(f"wanted about {shared} cached tokens of the prompt, found {had}")
        times.append(us)
    keep_times(run, f"first {SHARED:.0%} cached", times[1:])


def keep_times(run: Run, note: str, times: list[float]) -> None:
    times = sorted(times)
    of = (times[len(times) // 2], times[len(times) // 10], times[len(times) * 9 // 10])
    run.keep("cached", "cached_prompt", run.sizes.cached_prompt, of, note)


def first_tokens(port: int) -> tuple[float, float]:
    """Returns the number of first tokens since the server started, and the sum of the seconds until each of them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return tuple(sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:time_to_first_token_seconds_{of}"))
                 for of in ("count", "sum"))


def first_token(run: Run, prompt: list[int]) -> tuple[float, int]:
    """Returns the microseconds from before the connection until the first token's event, and the number of cached prompt tokens."""
    with urllib.request.urlopen(f"http://127.0.0.1:{run.port}/v1/models", timeout=10) as answer:
        name = json.load(answer)["data"][0]["id"]
    body = json.dumps({"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}})
    us, usage = 0.0, None
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", run.port, timeout=600)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"wanted status 200, found {answer.status}: {answer.read(1000)!r}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: "):])
        if event.get("choices") and not us:
            us = (time.perf_counter() - began) * 1e6
        usage = event.get("usage") or usage
    connection.close()
    if not us or not usage:
        raise SystemExit("wanted a token and the usage in the answer, found none")
    return us, (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


WORKLOADS: dict[str, Callable[[Run], None]] = {"latency": latency, "throughput": throughput, "arrivals": arrivals, "cached": cached}


# ---- One process: one model on one server ----


def one(model: str, server: str, out: pathlib.Path, sluice: str, workloads: list[str]) -> None:
    os.environ |= vllm_serving.ENVIRONMENT
    vllm_serving.choose_gpu()
    run = Run(model, server, out, sluice)
    left = [w for w in workloads if w not in run.result.data["done"]]
    prefixes = {True: "--enable-prefix-caching", False: "--no-enable-prefix-caching"}
    for of_cache, limits in ((False, run.sizes.limits), (True, run.sizes.cached_limits)):
        these = [w for w in left if (w == "cached") == of_cache]
        if not these:
            continue
        with run.serving([*limits, prefixes[of_cache]], "cached" if of_cache else "load"):
            for workload in these:
                run.result.data["rows"] = [r for r in run.result.data["rows"] if r["workload"] != workload]
                WORKLOADS[workload](run)
                run.result.data["done"].append(workload)
                run.result.write()
    run.result.write(complete=all(w in run.result.data["done"] for w in WORKLOADS))


# ---- What was found ----


def table(out: pathlib.Path) -> None:
    """Prints the milliseconds of each server, and the ratio to Sluice's."""
    found: dict[tuple, dict[str, float]] = {}
    for (model, server), result in engine_runs.load(out).items():
        for row in result["rows"]:
            found.setdefault((model, row["op"], row["note"].split("; ")[0], row["tokens"]), {})[server] = row["median_us"]
    for (model, op, note, count), times in sorted(found.items()):
        ours = times.get("sluice")
        said = [f"{server} {us / 1e3:.3f} ms" + (f" ({us / ours:.2f})" if ours and server != "sluice" else "") for server, us in times.items()]
        print(f"{model} {op} {count}, {note}: {', '.join(said)}")


def rows(out: pathlib.Path, version: str) -> None:
    print("suite,op,model,tokens,impl,version,median_us,p10_us,p90_us,bytes,flops,note")
    for (model, server), result in engine_runs.load(out).items():
        vllm = result.get("vllm", "")
        which = version if ours(server) else vllm if server == "vllm" else f"{version}+vllm-{vllm}"
        name = "sluice-16e-tiny" if model == "tiny" else f"gpt-oss-{model}"
        for row in sorted(result["rows"], key=lambda row: (row["op"], row["tokens"])):
            print(f"serving,{row['op']},{name},{row['tokens']},{server},{which},{row['median_us']:.4f},{row['p10_us']:.4f},"
                  f"{row['p90_us']:.4f},0,0,{row['note']}")


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("command", choices=("all", "one", "table", "rows"))
    parse.add_argument("which", nargs="*", help="for one: MODEL SERVER; for all: MODEL-SERVER ..., in this order")
    parse.add_argument("--out", type=pathlib.Path, required=True)
    parse.add_argument("--sluice", help="path of the command sluice, for all and one")
    parse.add_argument("--workloads", default=",".join(WORKLOADS))
    parse.add_argument("--seconds", type=float, default=550, help="time limit of all")
    parse.add_argument("--version", default="unknown", help="Sluice's commit, for rows")
    given = parse.parse_intermixed_args()
    workloads = given.workloads.split(",")
    if unknown := [w for w in workloads if w not in WORKLOADS]:
        parse.error(f"--workloads: wanted names of {', '.join(WORKLOADS)}, found {', '.join(unknown)}")
    if given.command in ("all", "one") and not given.sluice:
        parse.error(f"{given.command}: wanted --sluice PATH, found none")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    sluice = str(pathlib.Path(given.sluice).absolute()) if given.sluice else ""
    if given.command == "one":
        one(*given.which, out, sluice, workloads)
    elif given.command == "all":
        caches = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        engine_runs.run_all(__file__, out, given.seconds, [tuple(w.split("-", 1)) for w in given.which] or ORDER, 60, caches,
                            ["--sluice", sluice, "--workloads", given.workloads])
    if given.command in ("all", "table"):
        table(out)
    elif given.command == "rows":
        rows(out, given.version)


if __name__ == "__main__":
    main()
