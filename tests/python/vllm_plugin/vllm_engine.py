"""Engines of real vLLM for tests: each in its own process, so that plug-ins are found and workers are started as for users."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/sluice-16e-tiny"
PROMPT = ("<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
          "Current date: 2025-06-28\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for "
          "every message.<|end|><|start|>user<|message|>{}<|end|><|start|>assistant")
SECONDS = 600


class Failed(Exception):
    """The engine gave no answers; the text is the end of its log."""


def run(folder: pathlib.Path, engine: dict, ask: list[dict], environment: dict | None = None) -> tuple[list, str]:
    """(answers to each request, log) of an engine."""
    path = folder / "vllm.json"
    defaults = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    path.write_text(json.dumps({"engine": defaults | engine, "ask": ask}))
    both = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(folder / "cache"),
            "VLLM_LOGGING_LEVEL": "INFO", "OMP_NUM_THREADS": "1",
            # vLLM requires one NUMA node per worker, or explicit lists of processors.
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(i) for i in range(engine.get("tensor_parallel_size", 1)))}
    done = subprocess.run([sys.executable, str(pathlib.Path(__file__).with_name("vllm_run.py")), str(path)], text=True, timeout=SECONDS,
                          capture_output=True, env=os.environ | both | (environment or {}))
    log = done.stdout + done.stderr
    if done.returncode:
        raise Failed(log)
    return json.loads(path.with_name("vllm.json.out").read_text()), log


def sluice_lines(log: str) -> list[str]:
    """The plug-in's log lines, without repetitions by workers."""
    return sorted({line.split("] sluice ", 1)[1] for line in log.splitlines() if "] sluice " in line})
