#!/usr/bin/env python3
"""Measures vLLM with and without Sluice: models with equal random weights, decode and prefill steps, and greedy answers.

    engine_vllm.py all --out DIR [--seconds N]           runs every (model, backend) that DIR has no result of, the most important first
    engine_vllm.py one MODEL BACKEND --out DIR           runs one of them, in this process
    engine_vllm.py table --out DIR                       prints ratios, and how far the answers of backends differ
    engine_vllm.py rows --out DIR --version COMMIT       prints rows for bench/measured/h200/engine_vllm.csv

MODEL is 20b or 120b (gpt-oss), qwen3 (eight layers of Qwen3-30B-A3B, bf16 experts), qwen3-fp8 (all of its layers, FP8 in blocks of 128),
hy3 (one layer of Hunyuan 3 and its MTP layer, bf16) or tiny (the shape of the shipped model, for a trial on the CPU). BACKEND is default
(vLLM's choice), marlin, gates (vLLM's choice of experts, Sluice's gates), sluice or sluice-fp8x (experts' inputs in FP8 where that is
faster), and may have a variant. Variants only answer prompts, without graphs and with a small cache,
so that several fit on a GPU:
    +plain              answers only; the baseline of +draft and +mtp
    +draft              a draft model, whose weights equal the target's, drafts three tokens
    +mtp                the MTP layer drafts one token (hy3 only; its weights equal those of the model's layer)
    +chunked            prompts in chunks of 256 tokens; asks twice, with a prefix cache
    +ngram              tokens drafted by n-gram lookup
    +lora               an adapter on the routers
    +sleep              asks, sleeps (weights in host memory), wakes up, asks again
    +prefill, +decode   disaggregated prefill: run +prefill first, which writes the prompts' keys and values, then +decode, which reads them
    +tp2, +ep2          two GPUs; each expert is split between them (+tp2), or each GPU has half of the experts (+ep2)
    +dp2                two data-parallel GPUs that share the experts
    +eplb               like +ep2, with four redundant experts, rebalanced every eight steps; asks twice (qwen3 only: vLLM's gpt-oss cannot)
Requires vLLM and, for sluice, the package sluice_moe, both installed with their dist-info. Uses no network.

Weights follow from a seed and are equal in all processes (engine_vllm_weights.py). A step is timed from one return of the engine to
the next, so its time includes the host's part, as for a user.
"""
from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys
import time

import engine_runs
from engine_vllm_weights import SEED, Shard, adapter_of, config_of, fill

ORDER = [("20b", "sluice"), ("20b", "default"), ("120b", "default"), ("120b", "sluice"), ("20b", "marlin"), ("120b", "marlin")]
SEQUENCES = (1, 8, 32, 64, 128, 256)
PROMPTS = (1024, 4096, 8192)
CONTEXT = 1024
STEPS = {1: 200, 8: 150, 32: 100, 64: 80, 128: 60, 256: 40}  # number of timed decode steps, by sequences
CHECKED_PROMPTS, CHECKED_TOKENS, CHECKED_LENGTH = 4, 16, 48
VARIANTS = {
    "": {},
    "plain": {},
    "draft": {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}, "disable_log_stats": False,
              "disable_hybrid_kv_cache_manager": True},  # vLLM requires all layers of a draft in one KV cache group
    "mtp": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}, "disable_log_stats": False},
    "chunked": {"enable_prefix_caching": True, "max_num_batched_tokens": 256},
    "ngram": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}},
    "prefill": {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
    "decode": {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
    "tp2": {"tensor_parallel_size": 2},
    "ep2": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "sleep": {"enable_sleep_mode": True},
    "dp2": {"enable_expert_parallel": True},
    "eplb": {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True,
             "eplb_config": {"window_size": 8, "step_interval": 8, "num_redundant_experts": 4, "log_balancedness": True}},
    "lora": {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["router"]},
}
RANKS = ("+tp2", "+ep2", "+eplb")
VARIANT_LENGTH = 700  # prompt tokens of the other variants: three chunks


# ---- One process: one model, one backend ----


def experts_of(model) -> str:
    """Returns the class that runs the experts of a rank. vLLM sends this function to ranks by name."""
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            return type(kernel.fused_experts).__name__
    return "unknown"


def draft_of(worker) -> str:
    """Returns the class that runs the experts of a worker's draft, and how many of the draft's gates are Sluice's."""
    draft = worker.model_runner.drafter.model
    return f"{experts_of(draft)}, {sum(getattr(module, 'sluice', False) is True for module in draft.modules())} gates of Sluice"


def fill_dummies(config: dict) -> None:
    """Makes --load-format dummy fill in the weights of engine_vllm_weights.py, in this process and its forks."""
    from vllm.config import get_current_vllm_config
    from vllm.distributed import get_ep_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    def load_weights(loader, module, model_config) -> None:
        by_expert = get_current_vllm_config().parallel_config.enable_expert_parallel
        fill(module, config, Shard(get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size(), by_expert,
                                   get_ep_group().rank_in_group if by_expert else 0))

    DummyModelLoader.load_weights = load_weights


class Steps:
    """Runs vLLM in this process and times its steps."""

    def __init__(self, llm, vocabulary: int, adapter=None):
        self.llm, self.engine, self.vocabulary, self.adapter, self.number = llm, llm.llm_engine, vocabulary, adapter, 0

    def prompt(self, length: int, which: int) -> dict:
        import random

        draw = random.Random(SEED * 7919 + which)
        return {"prompt_token_ids": [draw.randrange(self.vocabulary // 2) for _ in range(length)]}

    def add(self, prompts: list[dict], tokens: int, **sampling) -> list[str]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False,
                                    output_kind=RequestOutputKind.DELTA, **sampling)
        names = []
        for prompt in prompts:
            self.number += 1
            names.append(str(self.number))
            self.engine.add_request(names[-1], prompt, parameters, lora_request=self.adapter)
        return names

    def steps(self):
        """Yields (microseconds since the previous such step, number of tokens, outputs) for each step that returns tokens, until all requests
        are done."""
        last = time.perf_counter()
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            count = sum(len(o.outputs[0].token_ids) for o in outputs)
            if count:
                now = time.perf_counter()
                yield (now - last) * 1e6, count, outputs
                last = now

    def decode(self, sequences: int, steps: int, context: int) -> list[float]:
        """Returns the times of steps that only decode, with a token for each sequence."""
        budget = self.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
        waiting = 2 * math.ceil(sequences * context / budget) + 4  # tokens that the first sequences decode during the last prompts
        self.add([self.prompt(context, i) for i in range(sequences)], steps + waiting)
        times, full = [], 0
        for us, count, _ in self.steps():
            full = full + 1 if count == sequences else 0
            if full > 3:  # the first full steps may still share the GPU with a prompt
                times.append(us)
        return times[:steps]

    def prefill(self, length: int, repeats: int) -> list[float]:
        times = []
        for repeat in range(repeats + 1):
            prompt = self.prompt(length, 1000 + repeat)
            began = time.perf_counter()
            self.add([prompt], 1)
            for _ in self.steps():
                pass
            times.append((time.perf_counter() - began) * 1e6)
        return times[1:]


class Engine(Steps):
    """One of this program's models, with a backend and a variant."""

    def __init__(self, model: str, backend: str, out: pathlib.Path):
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1",
                       "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
        if backend.endswith(RANKS):  # forked ranks inherit the random weights' loader
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        folder = out / f"config-{model}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config_of(model)))
        from vllm import LLM

        fill_dummies(config_of(model))
        tiny = model == "tiny"
        backend, _, self.variant = backend.partition("+")
        arguments = dict(model=str(folder), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", seed=SEED,
                         max_model_len=1024 if tiny else 8192 + 64, max_num_seqs=8 if tiny else max(SEQUENCES),
                         max_num_batched_tokens=1024 if tiny else 8192, enable_prefix_caching=False, disable_log_stats=True)
        if not tiny:
            arguments["gpu_memory_utilization"] = 0.92
        self.timed = not self.variant
        if not self.timed:
            arguments |= {"gpu_memory_utilization": 0.22, "kv_cache_memory_bytes": 2 << 30}
        if tiny or not self.timed:
            arguments |= {"enforce_eager": True}
        else:
            arguments |= {"compilation_config": {
                "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(SEQUENCES)}}
        if backend in ("sluice", "sluice-fp8x"):
            arguments["quantization"] = "sluice"
            os.environ["SLUICE_MOE_ACTIVATIONS"] = "fp8" if backend == "sluice-fp8x" else "bf16"
        elif backend == "gates":
            os.environ["SLUICE_VLLM_GATES"] = "1"
        elif backend != "default":
            arguments["moe_backend"] = backend
        arguments |= VARIANTS[self.variant]
        if self.variant in ("prefill", "decode"):
            where = {"kv_connector_extra_config": {"shared_storage_path": str(out / f"keys-and-values-{model}")}}
            arguments["kv_transfer_config"] = arguments["kv_transfer_config"] | where
        if self.variant == "draft":
            of_draft = {"model": str(folder)} | ({"quantization": "sluice"} if backend == "sluice" else {})
            arguments["speculative_config"] = arguments["speculative_config"] | of_draft
        began = time.perf_counter()
        llm = LLM(**arguments)
        self.ready_s = time.perf_counter() - began
        super().__init__(llm, config_of(model)["vocab_size"], adapter_of(model, out) if self.variant == "lora" else None)

    def experts(self) -> str:
        """Returns the class with which vLLM runs the experts."""
        return self.llm.apply_model(experts_of)[0]

    def guessed(self) -> tuple[list[int], int]:
        """Returns vLLM's counts: accepted draft tokens at the first, second, ... position, and the number of drafts."""
        found = {metric.name.removeprefix("vllm:spec_decode_num_"): metric for metric in self.llm.get_metrics()}
        return found["accepted_tokens_per_pos"].values, found["drafts"].value

    def nap(self) -> int:
        """Puts the engine to sleep and wakes it up. Returns the free bytes of the GPU in between."""
        import torch

        self.llm.sleep(level=1)
        free = torch.cuda.mem_get_info()[0]
        self.llm.wake_up()
        return free

    def answers(self, length: int, tokens: int) -> list[dict]:
        """Returns the greedy tokens of a few prompts, and the log probabilities of the 20 most likely tokens at each position."""
        names = self.add([self.prompt(length, 100 + i) for i in range(CHECKED_PROMPTS)], tokens, logprobs=20)
        said = {name: {"tokens": [], "top": []} for name in names}
        for _, _, outputs in self.steps():
            for output in outputs:
                one = output.outputs[0]
                said[output.request_id]["tokens"] += list(one.token_ids)
                said[output.request_id]["top"] += [{int(t): p.logprob for t, p in at.items()} for at in one.logprobs or []]
        return list(said.values())


def join_as_rank(model: str, backend: str, out: pathlib.Path) -> subprocess.Popen | None:
    """Makes this process the first of two data-parallel ranks, and starts and returns the second. Returns None in the second."""
    if "VLLM_DP_RANK" in os.environ:
        return None
    port = engine_runs.free_port()
    of_rank = [{"VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank), "VLLM_DP_SIZE": "2", "VLLM_DP_MASTER_IP": "127.0.0.1",
                "VLLM_DP_MASTER_PORT": str(port)} for rank in range(2)]
    command = [sys.executable, __file__, "one", model, backend, "--out", str(out / "rank1")]
    other = subprocess.Popen(command, env=os.environ | of_rank[1])
    os.environ |= of_rank[0]
    return other


def one(model: str, backend: str, out: pathlib.Path) -> None:
    other = join_as_rank(model, backend, out) if backend.endswith("+dp2") else None
    engine = Engine(model, backend, out)
    tiny = model == "tiny"
    import vllm

    result = engine_runs.Result(model, backend, out, vllm=vllm.__version__, ready_s=round(engine.ready_s, 1), experts=engine.experts())
    print(f"{model} {backend}: ready after {engine.ready_s:.0f} s, experts {result.data['experts']}", flush=True)
    answers = engine.answers(CHECKED_LENGTH if engine.timed else VARIANT_LENGTH, CHECKED_TOKENS)
    if engine.variant == "sleep":
        print(f"{model} {backend}: slept and woke up, {engine.nap() / 1e9:.1f} GB were free in between", flush=True)
    if engine.variant in ("chunked", "sleep", "eplb"):
        answers += engine.answers(VARIANT_LENGTH, CHECKED_TOKENS)  # +chunked: now the prompts are in the prefix cache
    result.write(answers=answers)
    if engine.variant in ("draft", "mtp"):
        accepted, guesses = engine.guessed()
        result.write(accepted=accepted, guesses=guesses, draft=engine.llm.collective_rpc(draft_of)[0])
    if other is not None and other.wait():
        raise SystemExit(f"rank 1 exited with {other.returncode}")
    if not engine.timed:
        return result.write(complete=True)
    graphs = "eager" if tiny else "torch.compile and full graphs"
    context = 64 if tiny else CONTEXT
    for sequences in (1, 4) if tiny else SEQUENCES:
        result.keep("decode", sequences, engine.decode(sequences, 10 if tiny else STEPS[sequences], context),
                    f"context {context} sustained {graphs}")
    for length in (256,) if tiny else PROMPTS:
        result.keep("prefill", length, engine.prefill(length, 3 if tiny else 7),
                    f"one prompt in bursts {graphs.replace(' and full graphs', '')}")
    result.write(complete=True)


if __name__ == "__main__":
    engine_runs.main("vllm", __file__, __doc__, one, ORDER, seconds=550, least=60,
                     caches={"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"})
