"""openai-python talks to `sluice serve`."""
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

openai = pytest.importorskip("openai")

MODEL = "sluice-16e-tiny"


@pytest.fixture(scope="module")
def url():
    words = ["serve", str(ROOT / "models" / MODEL), "--port", "0", "-q"]
    server = subprocess.Popen([sys.executable, "-m", "sluice_moe", *words], stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.stdout.close()


def test_the_program_of_the_readme(url, run_python):
    program = next(p for p in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "OpenAI" in p)
    here = program.replace("http://127.0.0.1:8000", url)
    assert here != program
    assert "685" in run_python(here)
