#!/usr/bin/env python3
"""Measures SGLang with and without Sluice: gpt-oss-20b and -120b with equal random weights, decode and prefill steps, and greedy answers.

    engine_sglang.py all --out DIR [--seconds N]           runs every (model, backend) that DIR has no result of, the most important first
    engine_sglang.py one MODEL BACKEND --out DIR           runs one of them, in this process
    engine_sglang.py table --out DIR                       prints ratios, and how far the answers of backends differ
    engine_sglang.py rows --out DIR --version COMMIT       prints rows for bench/measured/archive/h200/engine_sglang.csv

MODEL is 20b or 120b. BACKEND is default (SGLang's choice) or sluice. Requires SGLang 0.5.17 and, for sluice, the package sluice_moe, both
installed with their dist-info. Uses no network.

Weights are those of engine_vllm_weights.py. As in SGLang's bench_one_batch, steps use SGLang's ModelRunner and batches without its
scheduler. Several steps are enqueued back to back and their time is divided by their number, so that host and GPU work overlap as they
do under SGLang's scheduler.
"""
from __future__ import annotations

import json
import os
import pathlib
import time
from array import array

import engine_runs
from engine_vllm_weights import SEED, config_of, fill

ORDER = [("20b", "sluice"), ("20b", "default"), ("120b", "sluice"), ("120b", "default")]
SEQUENCES = (1, 64, 8, 256, 32, 128)
PROMPTS = (4096, 1024, 8192)
CONTEXT = 1024
NEW = 8  # tokens of each sequence that are prefilled, after a context of zeros
BLOCK, BLOCKS = 10, 5  # decode steps per timed block, and number of blocks
CHECKED_PROMPTS, CHECKED_TOKENS, CHECKED_LENGTH = 4, 16, 48


class Runner:
    """Runs SGLang's ModelRunner in this process."""

    def __init__(self, model: str, backend: str, out: pathlib.Path):
        os.environ |= {"SGLANG_IS_FLASHINFER_AVAILABLE": "false", "HF_HUB_OFFLINE": "1", "SLUICE_SGLANG": str(int(backend == "sluice"))}
        folder = out / f"config-{model}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config_of(model)))
        began = time.perf_counter()
        import sglang.benchmark.one_batch as bench
        from sglang.srt.model_loader import loader
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import PortArgs, ServerArgs

        load_plugins()
        loader.initialize_dummy_weights = lambda module: fill(module, config_of(model))
        bench.get_tokenizer = lambda *args, **kwargs: None
        arguments = ServerArgs(
            model_path=str(folder), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", random_seed=SEED,
            attention_backend="triton", sampling_backend="pytorch", moe_runner_backend="triton" if backend == "sluice" else "auto",
            context_length=16384, max_total_tokens=300_000, mem_fraction_static=0.9, max_running_requests=max(SEQUENCES),
            disable_radix_cache=True, disable_hybrid_swa_memory=True, chunked_prefill_size=8192,
            cuda_graph_bs_decode=sorted(SEQUENCES), cuda_graph_max_bs_decode=max(SEQUENCES), cuda_graph_backend_prefill="disabled")
        self.backend = arguments.moe_runner_backend
        bench._set_envs_and_config(arguments)
        bench.configure_logger(arguments) if hasattr(bench, "configure_logger") else None
        bench.initialize_moe_config(arguments)
        bench.initialize_fp8_gemm_config(arguments)
        bench.initialize_fp4_gemm_config(arguments)
        self.bench = bench
        self.runner, _ = bench.load_model(arguments, PortArgs.init_new(arguments), 0, 0)
        self.inner = self.runner.torch_runner
        self.vocabulary = config_of(model)["vocab_size"]
        self.ready_s = time.perf_counter() - began

    def experts(self) -> str:
        """Returns the class that runs the experts, and SGLang's name of its backend."""
        method = type(self.inner.model.model.layers[0].mlp.experts.quant_method).__name__
        return f"{method}-{self.backend}"

    def prompt(self, length: int, which: int) -> list[int]:
        import random

        draw = random.Random(SEED * 7919 + which)
        return [draw.randrange(self.vocabulary // 2) for _ in range(length)]

    def requests(self, prompts: list[list[int]], context: int = 0) -> list:
        """Makes a request for each prompt. The first `context` tokens count as cached, whatever the cache contains."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        out = []
        for i, prompt in enumerate(prompts):
            req = Req(rid=str(i), origin_input_text="", origin_input_ids=array("q", prompt),
                      sampling_params=SamplingParams(temperature=0, max_new_tokens=1024))
            req.full_untruncated_fill_ids = req.origin_input_ids
            req.logprob_start_len = -1
            if context:
                req.prefix_indices = self.inner.token_to_kv_pool_allocator.alloc(context)
            req.set_extend_range(len(req.prefix_indices), len(req.origin_input_ids))
            out.append(req)
        return out

    def decode(self, sequences: int) -> list[float]:
        """Returns the microseconds of a step, for each block."""
        import torch

        self.runner.clear()
        context = CONTEXT - NEW
        reqs = self.requests([self.prompt(CONTEXT, i) for i in range(sequences)], context)
        ids, _, batch = self.runner.extend(reqs)
        for _ in range(BLOCK):
            ids, _ = self.runner.decode(ids, batch)
        torch.cuda.synchronize()
        times = []
        for _ in range(BLOCKS):
            began = time.perf_counter()
            for _ in range(BLOCK):
                ids, _ = self.runner.decode(ids, batch)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e6 / BLOCK)
        return times

    def prefill(self, length: int, repeats: int) -> list[float]:
        import torch

        times = []
        for repeat in range(repeats + 1):
            self.runner.clear()
            reqs = self.requests([self.prompt(length, 1000 + repeat)])
            torch.cuda.synchronize()
            began = time.perf_counter()
            self.runner.extend(reqs)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e6)
        return times[1:]

    def answers(self) -> list[dict]:
        """Returns the greedy tokens of a few prompts, and the log probabilities of the 20 most likely tokens at each position."""
        import torch

        self.runner.clear()
        ids, logits, batch = self.runner.extend(self.requests([self.prompt(CHECKED_LENGTH, 100 + i) for i in range(CHECKED_PROMPTS)]))
        said = [{"tokens": [], "top": []} for _ in range(CHECKED_PROMPTS)]
        for _ in range(CHECKED_TOKENS):
            values, top = torch.log_softmax(logits[:CHECKED_PROMPTS].float(), -1).topk(20)
            for one, token, v, t in zip(said, ids.tolist(), values.tolist(), top.tolist()):
                one["tokens"].append(token)
                one["top"].append(dict(zip(map(str, t), v)))
            ids, logits = self.runner.decode(ids, batch)
        return said


def one(model: str, backend: str, out: pathlib.Path) -> None:
    import torch

    runner = Runner(model, backend, out)
    import sglang

    result = engine_runs.Result(model, backend, out, sglang=sglang.__version__, ready_s=round(runner.ready_s, 1), experts=runner.experts())
    print(f"{model} {backend}: ready after {runner.ready_s:.0f} s, experts {result.data['experts']}, "
          f"{torch.cuda.memory_allocated() / 2**30:.1f} GiB", flush=True)

    def attempt(what: str, measure) -> None:
        # A failure omits one row, prints the reason, and does not stop the others.
        try:
            measure()
        except Exception:
            import traceback

            print(f"{model} {backend} {what}: failed: {traceback.format_exc(limit=-3)}", flush=True)
            result.data.setdefault("failed", []).append(what)

    attempt("answers", lambda: result.write(answers=runner.answers()))
    for sequences in SEQUENCES:
        attempt(f"decode {sequences}", lambda: result.keep("decode", sequences, runner.decode(sequences),
                                                           f"context {CONTEXT} sustained full graphs {BLOCK} steps in flight"))
    for length in PROMPTS:
        attempt(f"prefill {length}", lambda: result.keep("prefill", length, runner.prefill(length, 3), "one prompt in bursts eager"))
    result.write(complete="failed" not in result.data)


if __name__ == "__main__":
    engine_runs.main("sglang", __file__, __doc__, one, ORDER, seconds=240, least=40,
                     caches={"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"})
