"""Runs the checks of gpu.py if there is a GPU."""
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("wanted a Hopper GPU, found none", allow_module_level=True)

import gpu  # noqa: E402


@pytest.mark.parametrize("name", gpu.CHECKS)
def test_on_a_gpu(name):
    gpu.CHECKS[name]()
