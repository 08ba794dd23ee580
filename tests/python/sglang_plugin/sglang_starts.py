"""Starts of SGLang, each in its own process: SGLang is imported once, and each case runs in a fork of that process.

    python sglang_starts.py CASE...     prints one line of JSON per case
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from typing import Callable

import sglang_engine

LOGGED: list[str] = []


def built() -> dict:
    """The class that runs the experts of a new layer, and the functions that hooks have patched."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.plugins.hook_registry import HookRegistry

    layer = FusedMoE(num_experts=4, hidden_size=64, intermediate_size=64, layer_id=0, top_k=2, prefix="model.layers.0.mlp.experts")
    return {"method": type(layer.quant_method).__name__, "hooks": sorted(HookRegistry._patched)}


def start_and_build(*flags: str) -> dict:
    sglang_engine.start(*flags)
    sglang_engine.groups()
    import torch

    torch.set_default_dtype(torch.bfloat16)
    return built()


def without_flag() -> dict:
    out = start_and_build()
    return out | {"experts imported": "sluice_moe.sglang.experts" in sys.modules, "logged": LOGGED}


def draft_alone() -> dict:
    """The draft's layers are Sluice's, the target's are not."""
    from sglang.srt.layers.moe import utils

    target = start_and_build("--speculative-moe-runner-backend", "sluice")
    with utils.speculative_moe_backend_context():
        draft = built()
    return {"target": target["method"], "draft": draft["method"]}


def target_alone() -> dict:
    from sglang.srt.layers.moe import utils

    target = start_and_build("--moe-runner-backend", "sluice", "--speculative-moe-runner-backend", "triton")
    with utils.speculative_moe_backend_context():
        draft = built()
    return {"target": target["method"], "draft": draft["method"]}


def gates_alone() -> dict:
    os.environ["SLUICE_SGLANG_GATES"] = "1"
    return start_and_build() | {"logged": LOGGED}


def gates_after_load() -> dict:
    """The gates of a model that ModelRunner has loaded; here load_model() only assigns a small model."""
    os.environ["SLUICE_SGLANG_GATES"] = "1"
    from sglang.srt.layers.linear import ReplicatedLinear
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.model_executor.model_runner import ModelRunner

    def load_model(self: ModelRunner) -> None:
        self.model = torch.nn.Module()
        self.model.gate = ReplicatedLinear(64, 4, bias=False)
        self.model.experts = FusedMoE(num_experts=4, hidden_size=64, intermediate_size=64, layer_id=0, top_k=2, prefix="experts")

    ModelRunner.load_model = load_model
    start_and_build()
    import torch
    from sluice_moe.sglang import gates

    runner = ModelRunner.__new__(ModelRunner)
    runner.load_model()
    return {"on Sluice": gates.runs(runner.model.gate)}


def automatic() -> dict:
    os.environ["SLUICE_SGLANG_AUTO"] = "1"
    logging.getLogger("sluice_moe.sglang").setLevel(logging.INFO)
    return start_and_build() | {"logged": LOGGED}


def automatic_beside_a_flag() -> dict:
    """A flag chooses a backend, so the variable has no effect."""
    os.environ["SLUICE_SGLANG_AUTO"] = "1"
    return start_and_build("--moe-runner-backend", "triton")


def automatic_refused() -> dict:
    """Experts that Sluice cannot run stay with SGLang."""
    os.environ |= {"SLUICE_SGLANG_AUTO": "1", "SLUICE_DECODE_KERNEL": "nonsense"}
    logging.getLogger("sluice_moe.sglang").setLevel(logging.INFO)
    return start_and_build() | {"logged": LOGGED}


def gates_misspelt() -> dict:
    os.environ["SLUICE_SGLANG_GATES"] = "yes"
    return start_and_build()


def moved_method() -> dict:
    """SGLang without a method that a hook needs."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    del ModelRunner.load_model
    return start_and_build(*sglang_engine.asked_for_sluice())


def other_signature() -> dict:
    from sglang.srt.layers.quantization.mxfp4 import Mxfp4Config

    Mxfp4Config.get_quant_method = lambda self, x: x
    return start_and_build(*sglang_engine.asked_for_sluice())


def other_plug_in() -> dict:
    """Another plug-in's hook, applied before Sluice's."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.layers.quantization.mxfp4.Mxfp4Config.get_quant_method", lambda original, *a, **k: original(*a, **k),
                          HookType.AROUND)
    return start_and_build(*sglang_engine.asked_for_sluice())


def other_version() -> dict:
    from sluice_moe.sglang import compat

    compat.found_version = lambda: "0.6.0"
    try:
        sglang_engine.start(*sglang_engine.asked_for_sluice())
    except BaseException as why:
        return {"stopped": f"{type(why).__name__}: {why}", "logged": LOGGED}
    return {"logged": LOGGED}


def switch_on_newest() -> dict:
    os.environ["SLUICE_SGLANG"] = "1"
    return start_and_build("--moe-runner-backend", "sluice")


def switch_without_triton() -> dict:
    os.environ["SLUICE_SGLANG"] = "1"
    return start_and_build("--moe-runner-backend", "cutlass")


def switch_misspelt() -> dict:
    os.environ["SLUICE_SGLANG"] = "yes"
    return start_and_build()


def flag_overridden() -> dict:
    """SGLang selects another backend than the flag names."""
    from sglang.srt import runtime_context
    from sluice_moe.sglang import hooks

    class Settled:
        class moe:
            moe_runner_backend = "triton"

        speculative_moe_runner_backend = None

    real = runtime_context.get_exec, runtime_context.get_spec
    whole = hooks._asked_for

    def asked(settings: object) -> bool:
        runtime_context.get_exec = runtime_context.get_spec = lambda: Settled
        try:
            return whole(settings)
        finally:
            runtime_context.get_exec, runtime_context.get_spec = real

    hooks._asked_for = asked
    return start_and_build("--moe-runner-backend", "sluice")


def run(case: Callable[[], dict]) -> dict:
    """Runs a case in a fork of this process. Returns its result, or the error that stopped it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            out = case()
        except BaseException as why:
            out = {"stopped": f"{type(why).__name__}: {why}", "where": traceback.format_exc(limit=-2), "logged": LOGGED}
        with os.fdopen(write, "w") as pipe:
            json.dump(out, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else {"stopped": "the process died"}


def main() -> None:
    sglang_engine.prepare()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            LOGGED.append(f"{record.levelname} {record.getMessage()}")

    logging.getLogger("sluice_moe.sglang").addHandler(Lines())
    import sglang.srt.models.deepseek_v2
    import sglang.srt.models.gpt_oss  # noqa: F401

    for name in sys.argv[1:]:
        print(json.dumps([name, run(globals()[name])]), flush=True)


if __name__ == "__main__":
    main()
