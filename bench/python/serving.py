#!/usr/bin/env python3
"""Servers of gpt-oss's sizes under load, each asked by `sluice bench serve` on the same machine: Sluice's own, and vLLM's.

    serving.py all --out DIR --sluice PATH [MODEL-SERVER ...]   each that DIR does not have yet, in this order
    serving.py one MODEL SERVER --out DIR --sluice PATH         one of them
    serving.py table --out DIR                                  times of all servers side by side
    serving.py rows --out DIR --version COMMIT                  rows for bench/measured/h200/serving.csv

MODEL is 20b, 120b or tiny (the shipped model, for a try on the CPU). SERVER is sluice, sluice-fp8 (with
--kv-cache-dtype fp8), sluice-mixed-N (with --max-mixed-prefill-tokens N, which changes arrivals), vllm (the experts that it chooses) or
vllm+sluice (with Sluice's). PATH is the command `sluice`. --workloads a,b chooses some of these:

    latency      1024 tokens in, 128 out, 1 to 64 requests at once
    throughput   1024 in, 1024 out, 256 requests at once, and as many as the cache holds
    arrivals     32 answers of 1024 tokens, while prompts of 4096 tokens arrive as a Poisson process, 2 a second
    cached       a prompt of 65536 tokens, and others that begin with nine tenths of it; a server of its own, with prefix caching

All servers read one config.json and have random weights: Sluice's of `--load-format dummy`, vLLM's of engine_vllm_weights.py. Prompts are token
ids. A workload that DIR has is not repeated. SLUICE_BENCH_GPU in the environment is the GPU's index.
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

VLLM_BACKENDS = {"vllm": "default", "vllm+sluice": "sluice"}  # of engine_vllm_serving.py
ORDER = [("20b", "sluice"), ("20b", "vllm"), ("120b", "sluice"), ("120b", "vllm"), ("20b", "vllm+sluice"), ("120b", "vllm+sluice")]
SHARED = 0.9  # of a prompt whose beginning is cached
COLD, CACHED = 3, 5  # prompts that are timed
LEAST_US = 0.1  # two events of one read are 0 apart, and axes are logarithmic


@dataclasses.dataclass(frozen=True)
class Load:
    prompt: int
    answer: int
    requests: dict[int, int]  # in flight: in all


@dataclasses.dataclass(frozen=True)
class Sizes:
    vocabulary: int  # token ids are below it
    latency: Load
    throughput: Load
    streams: Load  # that decode while prompts arrive
    arriving: Load
    rate: float  # of prompts, a second
    cached_prompt: int
    limits: list[str]  # flags that all servers have
    cached_limits: list[str]


SIZES = Sizes(200_000, Load(1024, 128, {1: 8, 8: 48, 32: 160, 64: 256}), Load(1024, 1024, {256: 256, 1024: 1024, 2048: 2048}),
              Load(256, 1024, {32: 32}), Load(4096, 1, {0: 200}), 2, 65536,
              ["--max-num-seqs", "2048", "--max-model-len", "8256", "--max-num-batched-tokens", "8192", "--gpu-memory-utilization", "0.92"],
              ["--max-num-seqs", "8", "--max-model-len", "66560", "--max-num-batched-tokens", "8192", "--gpu-memory-utilization", "0.92"])
LARGE_SIZES = dataclasses.replace(SIZES, throughput=Load(1024, 1024, {256: 256, 768: 768}))  # what the cache holds beside 120b
TINY_SIZES = Sizes(1000, Load(32, 8, {1: 2, 4: 8}), Load(32, 32, {8: 8}), Load(16, 128, {4: 4}), Load(256, 1, {0: 200}), 4, 512,
                   ["--max-num-seqs", "8", "--max-model-len", "1024", "--max-num-batched-tokens", "1024"],
                   ["--max-num-seqs", "8", "--max-model-len", "1024", "--max-num-batched-tokens", "1024"])


# ---- Servers ----


def prepare(model: str, out: pathlib.Path) -> pathlib.Path:
    """A folder with config.json and a tokenizer that both servers can read: words of digits around the special tokens of gpt-oss."""
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
    letters = [word for word in shipped["model"]["vocab"] if len(word) == 1]  # one for each byte
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
    """Those of a variant of our own server."""
    _, *variant = server.split("-")
    match variant:
        case []:
            return []
        case ["fp8"]:
            return ["--kv-cache-dtype", "fp8"]
        case ["mixed", bound] if bound.isdecimal():
            return ["--max-mixed-prefill-tokens", bound]
    raise SystemExit(f"SERVER: wanted sluice, sluice-fp8, sluice-mixed-N, vllm or vllm+sluice, found {server}")


def command_of(model: str, server: str, sluice: str, folder: pathlib.Path, port: int, limits: list[str]) -> list[str]:
    if ours(server):
        weights = [] if model == "tiny" else ["--load-format", "dummy"]
        return [sluice, "serve", str(folder), *weights, "--port", str(port), *limits, *flags_of(server), "-q"]
    graphs = ["--enforce-eager"] if model == "tiny" else ["--compilation-config", json.dumps({"cudagraph_mode": "FULL_DECODE_ONLY"})]
    more = ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    return vllm_serving.command_of(model, VLLM_BACKENDS[server], folder, port, limits + graphs + more)


class Run:
    """One model on one server, and what has been found of it."""

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
        """`sluice bench serve`, begun. flight 0: no bound."""
        bound = ["--max-concurrency", str(flight)] if flight else []
        command = [self.sluice, "bench", "serve", "--port", str(self.port), "--random-input-len", str(load.prompt), "--random-output-len",
                   str(load.answer), "--num-prompts", str(load.requests[flight]), *bound, "--vocab-size", str(self.sizes.vocabulary),
                   "--ignore-eos", "--temperature", "0", "--seed", str(flight), "--metric-percentiles", "10,90,99,99.9", "--output-json",
                   str(to), "-q", *flags]
        return subprocess.Popen(command, stdout=sys.stderr)

    def found(self, client: subprocess.Popen, wanted: int, to: pathlib.Path) -> dict:
        if client.wait() != 0:
            raise SystemExit(f"bench serve ended with {client.returncode}")
        got = json.loads(to.read_text())
        if got["completed"] != wanted:
            raise SystemExit(f"wanted {wanted} answers, found {got['completed']}")
        return got

    def where(self, name: str) -> pathlib.Path:
        return self.out / "asked" / f"{self.model}-{self.server}-{name}.json"

    def keep(self, workload: str, op: str, count: int, times: tuple[float, float, float], note: str) -> None:
        """A row: median, p10 and p90 in microseconds."""
        median, p10, p90 = (max(LEAST_US, us) for us in times)
        self.result.data["rows"].append({"workload": workload, "op": op, "tokens": count, "median_us": median, "p10_us": p10, "p90_us": p90,
                                         "note": note})
        self.result.write()
        print(f"{self.result.name} {op} {count}: {median / 1e3:.3f} ms [{p10 / 1e3:.3f}, {p90 / 1e3:.3f}] {note}", flush=True)

    def keep_metric(self, workload: str, op: str, flight: int, got: dict, note: str, tails: tuple[str, ...] = ("99",), more: str = "") -> None:
        """A row of what bench serve found. Its tail stands behind "; ", where rows of other servers differ."""
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
    """The streams' times. Prompts arrive from where all of them decode until the last one ends; how long their first tokens take on
    average is the server's word, since their client is not waited for."""
    streams, arriving, rate = run.sizes.streams, run.sizes.arriving, run.sizes.rate
    (flight,), to = streams.requests, run.where("arrivals")
    wanted = first_tokens(run.port)[0] + 1 + flight  # the client's first request goes ahead of all others
    client = run.client(streams, flight, to, [])
    while (before := first_tokens(run.port))[0] < wanted:
        if client.poll() is not None:
            raise SystemExit("the streams ended before all of them were seen to decode")
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
    shared, slack = int(length * SHARED), 16 + length // 64  # servers keep whole pages
    times = []
    for _ in range(CACHED + 1):
        us, had = first_token(run, prompts[-1][:shared] + tokens(length - shared))
        if not shared - slack <= had <= shared:
            raise SystemExit(f"wanted about {shared} tokens of the prompt in the cache, found {had}")
        times.append(us)
    keep_times(run, f"first {SHARED:.0%} cached", times[1:])


def keep_times(run: Run, note: str, times: list[float]) -> None:
    times = sorted(times)
    of = (times[len(times) // 2], times[len(times) // 10], times[len(times) * 9 // 10])
    run.keep("cached", "cached_prompt", run.sizes.cached_prompt, of, note)


def first_tokens(port: int) -> tuple[float, float]:
    """Sequences that have had their first token since the server began, and the seconds that they waited for it in all."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return tuple(sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:time_to_first_token_seconds_{of}"))
                 for of in ("count", "sum"))


def first_token(run: Run, prompt: list[int]) -> tuple[float, int]:
    """Microseconds from before the connection until the event of the first token, and the tokens that the server had in its cache."""
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
    """Milliseconds of each server, and the ratio to Sluice's."""
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
    parse.add_argument("which", nargs="*", help="one: MODEL SERVER; all: MODEL-SERVER ..., in that order")
    parse.add_argument("--out", type=pathlib.Path, required=True)
    parse.add_argument("--sluice", help="the command; for all and one")
    parse.add_argument("--workloads", default=",".join(WORKLOADS))
    parse.add_argument("--seconds", type=float, default=550, help="of all")
    parse.add_argument("--version", default="unknown", help="Sluice's commit, for rows")
    given = parse.parse_intermixed_args()
    workloads = given.workloads.split(",")
    if unknown := [w for w in workloads if w not in WORKLOADS]:
        parse.error(f"--workloads: wanted some of {', '.join(WORKLOADS)}, found {', '.join(unknown)}")
    if given.command in ("all", "one") and not given.sluice:
        parse.error(f"{given.command}: wanted --sluice with it, found none")
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
