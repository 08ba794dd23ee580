"""The README's program, and every supported transformers: tools/python_venv installs the oldest and the newest in folders."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = pathlib.Path(os.environ.get("SLUICE_TRANSFORMERS") or pathlib.Path(sys.prefix).parent / "transformers")
VERSIONS = [file.stem.split("-")[1] for file in sorted((HERE.parents[2] / "python" / "requirements").glob("transformers-*.txt"))]
CHOSEN = "not text and not graph and not static and not f32 and not greedy"


def test_the_program_of_the_readme_answers(root, run_python):
    programs = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    program = next(p for p in programs if "sluice_moe.transformers" in p)
    assert program.count("\n") <= 11
    said = run_python(f"import os, torch\nos.chdir({str(root)!r})\ntorch.set_num_threads(1)\n" + program)
    assert "<|channel|>final<|message|>685<|return|>" in said


@pytest.mark.parametrize("version", VERSIONS)
def test_another_version(version):
    folder = FOLDERS / version
    if not folder.is_dir():
        pytest.skip(f"wanted transformers {version} in {folder}, where tools/python_venv puts it, found nothing")
    files = [str(HERE / name) for name in ("test_transformers.py", "test_transformers_experts.py", "test_transformers_models.py")]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    asked = f"import transformers; assert transformers.__version__.startswith('{version}.'), transformers.__version__"
    subprocess.run([sys.executable, "-c", asked], env={**os.environ, "PYTHONPATH": path}, check=True)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", "-k", CHOSEN, *files],
                          env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and "skipped" not in done.stdout.splitlines()[-1], done.stdout[-6000:] + done.stderr[-2000:]
