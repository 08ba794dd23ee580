"""Older versions of vLLM that run on the CPU: the tests of layers, LoRA and choices, and engines without and with an adapter. tools/python_venv
unpacks their wheels into build/python/vllm; SLUICE_TEST_VLLM names another folder."""
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests need vLLM (./dev test-python)")

from test_vllm import ASK, right  # noqa: E402
from test_vllm_lora_engine import gpt_oss_is_kept  # noqa: E402
from vllm_engine import MODEL, run, sluice_lines  # noqa: E402

HERE = pathlib.Path(__file__).parent
VERSIONS = ("0.30.0", "0.31.0")


def path_of(version: str) -> str:
    """A PYTHONPATH in which a version hides the installed one."""
    named = os.environ.get("SLUICE_TEST_VLLM")
    folder = (pathlib.Path(named) if named else HERE.parents[2] / "build" / "python" / "vllm") / version
    if not (folder / "vllm").is_dir():
        pytest.fail(f"wanted vLLM {version} in {folder}, found none: ./dev test-python puts it there")
    return os.pathsep.join([str(folder), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize("version", VERSIONS)
def test_layers_and_choices(version):
    program = "import vllm, sys, pytest; assert vllm.__version__.startswith(sys.argv[1]), vllm.__version__; sys.exit(pytest.main(sys.argv[2:]))"
    files = [str(HERE / f"test_vllm_{name}.py") for name in ("layers", "choices", "plugin", "fp8", "fp4", "lora")]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, version, "-q", "-p", "no:cacheprovider", "--rootdir", str(HERE), *files],
                          env=os.environ | {"PYTHONPATH": path_of(version)}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine(tmp_path, version):
    answers, log = run(tmp_path, {"model": str(MODEL), "quantization": "sluice"}, [ASK], {"PYTHONPATH": path_of(version)})
    right(answers[0])
    assert any("torch.ops.sluice.router_gemm with bias" in line for line in sluice_lines(log)) and f"v{version}" in log


def test_an_adapter_on_experts(tmp_path):
    """In the oldest version; test_layers_and_choices has the others' LoRA without engines."""
    version = VERSIONS[0]
    assert f"v{version}" in gpt_oss_is_kept(tmp_path, {"PYTHONPATH": path_of(version)})
