#!/usr/bin/env python3
"""vLLM on a checkpoint of `sluice make-checkpoint`, timed as `sluice bench` times Sluice on the same bytes.

    engine_beside.py run DIR --out FILE.json [--biases FILE.safetensors] [--decode 1,8] [--prefill 4096] [--moe-backend NAME]
    engine_beside.py rows FILE.json... --beside SLUICE.csv      prints rows for bench/measured/GPU/engine.csv

Decoding, at a mean context of 1024 tokens: 20 ms of steps after a rest of 100 ms, six times (burst), then 600 ms without rest, of which
the second half is timed (sustained). Prompts: one at a time, with and without a rest before each. A step is timed from one return of
the engine to the next, host included. Afterwards some steps run without CUDA graphs, to count the distinct experts of each layer from
the router's logits.

DIR may be on a tmpfs, so that Sluice and vLLM share one copy of gpt-oss-120b's 65 GB.

--biases FILE: replaces the routers' biases by those of a second checkpoint (`make-checkpoint --routing zipf --only mlp.router.bias`) and
times decoding again. The notes of these rows say zipf.

`rows` copies bytes and flops from Sluice's row of the same measurement, so that both use one roofline. It warns if the two engines read
different numbers of experts.
"""
from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import statistics
import sys
import time

from engine_vllm import Steps, experts_of

CONTEXT = 1024
BURSTS, BURST_S, REST_S, SUSTAINED_S = 6, 0.02, 0.1, 0.6
COUNTED_STEPS, PROMPTS = 8, 5
MODEL_TOKENS = 8192 + 64
chosen: list | None = None  # while experts are counted: the expert ids of each call of an MoE layer


def watch_experts() -> None:
    """Makes every MoE layer append its tokens' expert ids to `chosen`, unless `chosen` is None."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    original = MoERunner._apply_quant_method

    def noted(self, hidden_states, router_logits, *rest, **named):
        if chosen is not None:
            chosen.append(router_logits.topk(self.moe_config.experts_per_token, dim=-1).indices.flatten())
        return original(self, hidden_states, router_logits, *rest, **named)

    MoERunner._apply_quant_method = noted


def set_graphs(worker, on: bool) -> None:
    """Makes a worker's steps replay CUDA graphs, or launch every kernel."""
    from vllm.config import CUDAGraphMode

    dispatcher = worker.model_runner.cudagraph_dispatcher
    dispatcher.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY if on else CUDAGraphMode.NONE


def without_graphs(worker) -> None:
    set_graphs(worker, False)


def with_graphs(worker) -> None:
    set_graphs(worker, True)


def replace_biases(model, path: str) -> int:
    """Copies router biases from a file into the parameters, in place because CUDA graphs keep their addresses. Returns their number."""
    from safetensors.torch import load_file

    given, replaced = load_file(path), 0
    for name, parameter in model.named_parameters():
        if name.endswith("mlp.router.bias"):
            parameter.data.copy_(given[name])
            replaced += 1
    return replaced


class Beside(Steps):
    def __init__(self, folder: str, vocabulary: int, decode: list[int], moe_backend: str | None):
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1",
                       "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
        from vllm import LLM

        watch_experts()
        began = time.perf_counter()
        llm = LLM(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MODEL_TOKENS, max_num_seqs=max(decode),
                  max_num_batched_tokens=8192, enable_prefix_caching=False, disable_log_stats=True, gpu_memory_utilization=0.92,
                  compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": decode},
                  **({"moe_backend": moe_backend} if moe_backend else {}))
        self.ready_s = time.perf_counter() - began
        self.step_ms = 4.0  # expected step time of the next decode, taken from the previous one
        super().__init__(llm, vocabulary)

    def timed(self, steps, seconds: float, least: int, count: int) -> list[float]:
        """Returns the times of decode steps with `count` tokens, in us, until `seconds` have passed."""
        times, total = [], 0.0
        for us, tokens, _ in steps:
            if tokens == count:
                times.append(us)
                total += us
            if total >= seconds * 1e6 and len(times) >= least:
                break
        return times

    def experts(self, steps, layers: int) -> float:
        """Returns the number of distinct experts per layer and step, averaged over layers and several steps."""
        global chosen
        self.llm.collective_rpc(without_graphs)
        for _ in range(3):
            next(steps)  # steps that were already in flight
        counts, chosen = [], []
        for _ in range(COUNTED_STEPS):
            chosen.clear()
            next(steps)
            counts += [ids.unique().numel() for ids in chosen]
        chosen = None
        self.llm.collective_rpc(with_graphs)
        if not counts or len(counts) % layers:
            raise SystemExit(f"experts: wanted a multiple of {layers} calls, one per layer, found {len(counts)}")
        return statistics.mean(counts)

    def decode_paces(self, count: int, layers: int) -> tuple[dict, float]:
        """Returns the times of steps in us, by pace, and the mean number of distinct experts per layer."""
        planned = int((BURSTS * BURST_S + SUSTAINED_S) * 1e3 / self.step_ms) + BURSTS * 5
        waiting = 2 * -(-count * CONTEXT // 8192) + 4
        prompts = [self.prompt(max(CONTEXT - planned // 2, 1), i) for i in range(count)]
        names = self.add(prompts, 2 * planned + waiting + COUNTED_STEPS + 20)
        steps = self.steps()
        for _, tokens, _ in steps:
            if tokens == count:
                break
        self.timed(steps, 0, 3, count)
        burst: list[float] = []
        for _ in range(BURSTS):
            time.sleep(REST_S)
            self.timed(steps, 0, 2, count)
            burst += self.timed(steps, BURST_S, 3, count)
        self.timed(steps, SUSTAINED_S / 2, 1, count)
        sustained = self.timed(steps, SUSTAINED_S / 2, 3, count)
        experts = self.experts(steps, layers)
        self.engine.abort_request(names)
        for _ in steps:
            pass
        self.step_ms = statistics.median(sustained) / 1e3
        return {"burst": burst, "sustained": sustained}, experts

    def prompt_paces(self, length: int) -> dict:
        def one(which: int) -> float:
            prompt = self.prompt(length, 1000 + which)
            began = time.perf_counter()
            self.add([prompt], 1)
            for _ in self.steps():
                pass
            return (time.perf_counter() - began) * 1e6

        one(0)
        burst = []
        for i in range(PROMPTS):
            time.sleep(REST_S)
            burst.append(one(1 + i))
        sustained: list[float] = []
        while sum(sustained) < SUSTAINED_S * 1e6 or len(sustained) < PROMPTS:
            sustained.append(one(100 + len(sustained)))
        return {"burst": burst, "sustained": sustained[len(sustained) // 2:]}


def run(given: argparse.Namespace) -> None:
    import vllm

    config = json.loads((pathlib.Path(given.checkpoint) / "config.json").read_text())
    layers, experts = config["num_hidden_layers"], config.get("num_local_experts") or config["num_experts"]
    name = {("gpt_oss", 24): "gpt-oss-20b", ("gpt_oss", 36): "gpt-oss-120b", ("qwen3_moe", 48): "qwen3-30b-a3b"}[config["model_type"], layers]
    engine = Beside(given.checkpoint, config["vocab_size"], given.decode, given.moe_backend)
    found = {"model": name, "vllm": vllm.__version__, "backend": given.moe_backend or "", "ready_s": round(engine.ready_s, 1),
             "experts_by": engine.llm.apply_model(experts_of)[0], "experts": experts, "rows": []}
    print(f"{name}: ready after {engine.ready_s:.0f} s, experts by {found['experts_by']}", flush=True)

    def keep(op: str, tokens: int, note: str, paces: dict, read: float | None) -> None:
        for pace, times in paces.items():
            times = sorted(times)
            row = {"op": op, "tokens": tokens, "median_us": statistics.median(times), "p10_us": times[len(times) // 10],
                   "p90_us": times[len(times) * 9 // 10], "steps": len(times), "note": f"{note} {pace}", "experts": read}
            found["rows"].append(row)
            print(f"{name} {op} {tokens} {row['note']}: {row['median_us']:.0f} us (median of {len(times)}), experts {read}", flush=True)
        pathlib.Path(given.out).write_text(json.dumps(found))

    for count in given.decode:
        paces, read = engine.decode_paces(count, layers)
        keep("decode", count, f"context {CONTEXT}", paces, read)
    for length in given.prefill:
        keep("prefill", length, "prompt", engine.prompt_paces(length), None)
    if given.biases:
        replaced = engine.llm.apply_model(lambda model: replace_biases(model, given.biases))[0]
        if replaced != layers:
            raise SystemExit(f"--biases: wanted biases of {layers} routers, found {replaced}")
        engine.step_ms = 4.0
        for count in given.decode:
            paces, read = engine.decode_paces(count, layers)
            keep("decode", count, f"context {CONTEXT} zipf", paces, read)


def rows(given: argparse.Namespace) -> None:
    def key(row: dict) -> tuple:
        return row["op"], row["model"], str(row["tokens"]), row["note"].split("; ")[0]

    with open(given.beside) as file:
        ours = {key(row): row for row in csv.DictReader(file) if row["impl"] == "sluice"}
    print("suite,op,model,tokens,impl,version,median_us,p10_us,p90_us,bytes,flops,note")
    for path in given.files:
        found = json.loads(pathlib.Path(path).read_text())
        impl = "vllm-" + found["backend"] if found["backend"] else "vllm"
        for row in found["rows"]:
            mine = ours.get(key(row | {"model": found["model"]}))
            if mine is None:
                print(f"{path}: {row['op']} {row['tokens']} {row['note']}: Sluice has no row for it; skipped", file=sys.stderr)
                continue
            remark = "" if row["experts"] is None else f"; {row['experts']:.1f} of {found['experts']} experts"
            read = float(mine["note"].split("; ")[1].split()[0])
            if row["experts"] is not None and abs(row["experts"] / read - 1) > 0.02:
                print(f"{path}: {row['op']} {row['tokens']} {row['note']}: {row['experts']:.1f} experts, Sluice reads {read}", file=sys.stderr)
            print(f"engine,{row['op']},{found['model']},{row['tokens']},{impl},{found['vllm']},{row['median_us']:.4f},{row['p10_us']:.4f},"
                  f"{row['p90_us']:.4f},{mine['bytes']},{mine['flops']},{row['note']}{remark}")


def counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parse.add_subparsers(required=True)
    of_run = commands.add_parser("run")
    of_run.add_argument("checkpoint")
    of_run.add_argument("--out", required=True)
    of_run.add_argument("--biases")
    of_run.add_argument("--decode", type=counts, default=[1, 8, 32, 64, 128, 256])
    of_run.add_argument("--prefill", type=counts, default=[4096, 8192])
    of_run.add_argument("--moe-backend")
    of_run.set_defaults(run=run)
    of_rows = commands.add_parser("rows")
    of_rows.add_argument("files", nargs="+")
    of_rows.add_argument("--beside", required=True)
    of_rows.set_defaults(run=rows)
    given = parse.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
