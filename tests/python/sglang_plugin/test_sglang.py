"""SGLang with the plug-in installed: its layers, and its starts when Sluice was requested, was not requested, or cannot be used."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

import sglang_engine
from sluice_moe.sglang import compat

HERE = pathlib.Path(__file__).parent
NEWEST_CASES = ("without_flag", "draft_alone", "target_alone", "gates_alone", "gates_after_load", "automatic", "automatic_beside_a_flag",
                "automatic_refused", "moved_method", "other_signature", "other_plug_in", "other_version", "switch_on_newest", "switch_misspelt", "gates_misspelt",
                "flag_overridden")
OLDER_CASES = ("without_flag", "gates_alone", "gates_after_load", "automatic", "automatic_refused", "moved_method", "other_version",
               "switch_without_triton")


def run_beside(version: str, *arguments: str) -> subprocess.CompletedProcess:
    """A new Python process in which one version of SGLang and its dependencies can be imported."""
    path = os.pathsep.join([str(sglang_engine.wheel(version)), str(HERE), *(p for p in sys.path if p)])
    environment = os.environ | {"PYTHONPATH": path, "SLUICE_TEST_SGLANG_VERSION": version}
    environment.pop("SLUICE_SGLANG", None)
    return subprocess.run([sys.executable, "-W", "ignore", *arguments], env=environment, capture_output=True, text=True, timeout=900)


def outcomes(version: str, cases: tuple[str, ...]) -> dict[str, dict]:
    done = run_beside(version, str(HERE / "sglang_starts.py"), *cases)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    assert set(found) == set(cases), done.stderr[-4000:]
    return found


@pytest.fixture(scope="module")
def newest() -> dict[str, dict]:
    return outcomes(sglang_engine.NEWEST, NEWEST_CASES)


@pytest.fixture(scope="module")
def older() -> dict[str, dict]:
    return outcomes("0.5.17", OLDER_CASES)


@pytest.mark.parametrize("which", ["newest", "older"])
def test_without_the_flag_nothing_is_changed(which: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(which)["without_flag"]
    assert found == {"method": "UnquantizedFusedMoEMethod", "hooks": ["sglang.srt.runtime_context.publish"], "experts imported": False,
                     "logged": []}


def test_target_and_draft_choose_apart(newest: dict[str, dict]) -> None:
    assert newest["draft_alone"] == {"target": "UnquantizedFusedMoEMethod", "draft": "SluiceExperts"}
    assert newest["target_alone"] == {"target": "SluiceExperts", "draft": "UnquantizedFusedMoEMethod"}


GATE_HOOKS = [*(f"sglang.srt.lora.lora_manager.LoRAManager.{name}" for name in (
    "init_lora_modules", "load_lora_weights", "load_lora_weights_from_tensors", "prepare_lora_batch", "set_lora_module")),
    *(f"sglang.srt.lora.mem_pool.LoRAMemoryPool.{name}" for name in ("get_lora_A_shape", "get_lora_B_shape", "load_lora_weight_to_buffer")),
    "sglang.srt.model_executor.model_runner.ModelRunner.load_model", "sglang.srt.runtime_context.publish"]


@pytest.mark.parametrize("which", ["newest", "older"])
def test_gates_alone_leave_experts_as_they_are(which: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(which)["gates_alone"]
    assert found == {"method": "UnquantizedFusedMoEMethod", "hooks": GATE_HOOKS, "logged": []}
    assert request.getfixturevalue(which)["gates_after_load"] == {"on Sluice": True}


@pytest.mark.parametrize("which", ["newest", "older"])
def test_unquantized_experts_run_on_sluice_by_themselves(which: str, request: pytest.FixtureRequest) -> None:
    cases = request.getfixturevalue(which)
    assert cases["automatic"]["method"] == "SluiceExperts"
    assert cases["automatic"]["logged"] == ["INFO sluice: SLUICE_SGLANG_AUTO=1: unquantized experts run on Sluice"]
    refused = cases["automatic_refused"]
    assert refused["method"] == "UnquantizedFusedMoEMethod" and len(refused["logged"]) == 1
    assert refused["logged"][0].startswith("INFO sluice: SLUICE_SGLANG_AUTO=1: unquantized experts run on SGLang: SLUICE_DECODE_KERNEL=nonsense: ")


def test_a_flag_wins_over_the_variable(newest: dict[str, dict]) -> None:
    assert newest["automatic_beside_a_flag"]["method"] == "UnquantizedFusedMoEMethod"


@pytest.mark.parametrize("case, line", [
    ("moved_method", "wanted sglang.srt.model_executor.model_runner.ModelRunner.load_model of SGLang 0.5.23, found AttributeError"),
    ("other_signature", "wanted sglang.srt.layers.quantization.mxfp4.Mxfp4Config.get_quant_method of SGLang 0.5.23 with layer, prefix, found "
                        "only self, x"),
    ("other_plug_in", "Sluice's hooks are missing on sglang.srt.layers.quantization.mxfp4.Mxfp4Config.get_quant_method: remove other plug-ins "
                      "with hooks there"),
    ("gates_misspelt", "SLUICE_SGLANG_GATES: wanted 0 or 1, found 'yes'"),
    ("switch_on_newest", "SLUICE_SGLANG=1: wanted SGLang 0.5.17, found 0.5.23: use --moe-runner-backend sluice instead"),
    ("switch_misspelt", "SLUICE_SGLANG: wanted 0 or 1, found 'yes'"),
    ("flag_overridden", "wanted --moe-runner-backend sluice, found 'triton': SGLang overrides the flag"),
])
def test_what_does_not_fit_stops_the_start(newest: dict[str, dict], case: str, line: str) -> None:
    assert line in newest[case].get("stopped", f"it started: {newest[case]}")


def test_an_unknown_version_says_so_and_refuses_the_flag(newest: dict[str, dict]) -> None:
    found = newest["other_version"]
    assert "invalid choice: 'sluice'" in found["stopped"]
    assert found["logged"] == [f"WARNING sluice: wanted SGLang {compat.wanted_versions()}, found 0.6.0: SGLang runs without Sluice"]


def test_older_versions_stop_as_well(older: dict[str, dict]) -> None:
    assert "wanted sglang.srt.model_executor.model_runner.ModelRunner.load_model of SGLang 0.5.17" in older["moved_method"]["stopped"]
    assert "SLUICE_SGLANG=1: wanted --moe-runner-backend triton" in older["switch_without_triton"]["stopped"]
    assert "SGLang runs without Sluice, but SLUICE_SGLANG=1 asks for it" in older["other_version"]["stopped"]


@pytest.mark.parametrize("version", sglang_engine.VERSIONS)
@pytest.mark.parametrize("files", [("sglang_layers.py", "sglang_fp8.py", "sglang_fp4.py"), ("sglang_gates.py",), ("sglang_lora.py",),
                                   ("sglang_expert_lora.py",)], ids=lambda files: files[0])
def test_in_a_process_of_a_version(version: str, files: tuple[str, ...]) -> None:
    """Runs all tests of the files."""
    done = run_beside(version, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / file) for file in files))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
