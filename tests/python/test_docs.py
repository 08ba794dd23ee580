"""Programs in the documentation run unchanged."""
import re

import pytest

pytest.importorskip("torch")

PAGES = ("README.md", "docs/python.md", "python/README.md")


def programs(page, root):
    return re.findall(r"```python\n(.*?)```", (root / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES[:2])
def test_the_first_program_runs(page, root, run_python):
    program = next(p for p in programs(page, root) if "sluice_moe" in p)
    assert program.count("\n") <= 11
    said = run_python(program + "\nassert y.shape == (8, 256) and y.isfinite().all()\n")
    assert page == "README.md" or "tokens   8\n" in said


@pytest.mark.parametrize("page", PAGES)
def test_every_program_is_python(page, root):
    assert programs(page, root)
    for program in programs(page, root):
        compile(program, page, "exec")
