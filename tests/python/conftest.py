"""Layers with generated weights, and their expected outputs, computed in float64 with torch alone."""
from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


# Files that take minutes come first, so that two processes end at about the same time.
SLOW = ("test_vllm.py", "test_sglang.py", "test_vllm_lora_engine.py", "test_vllm_versions.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))


@pytest.fixture
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture
def run_python():
    """Runs a program in a new Python process, which must succeed unless `fails`, and returns its output."""

    def run(program: str, *arguments: str, fails: bool = False, **environment: str) -> str:
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=300,
                              env={**os.environ, **environment}, cwd="/")
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + (done.stderr if fails else "")

    return run


@contextlib.contextmanager
def serve(*flags: str, model: pathlib.Path = ROOT / "models" / "sluice-16e-tiny"):
    """Runs `sluice serve` with a model and yields its address; the server must exit cleanly. Uses the command SLUICE_COMMAND, or else the package's command."""
    command = os.environ.get("SLUICE_COMMAND")
    words = [*([command] if command else [sys.executable, "-m", "sluice_moe"]), "serve", str(model), "--port", "0", "-q", *flags]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.stdout.close()


class Made:
    """Weights of one layer under plain names, and its reference."""

    def __init__(self, *, hidden=64, intermediate=96, experts=8, top_k=2, expert_w="bf16", gate_order="gate_first", bias=False, seed=1):
        import torch

        self.fields = dict(hidden=hidden, intermediate=intermediate, experts=experts, top_k=top_k, expert_w=expert_w,
                           gate_order=gate_order, act="swiglu")
        random = torch.Generator().manual_seed(seed)
        self.random = random

        def normal(*shape, scale=1.0, dtype=torch.bfloat16):
            return (torch.randn(*shape, generator=random) * scale).to(dtype)

        self.tensors = {"router": normal(experts, hidden, scale=hidden**-0.5)}
        self.dense = {}
        for name, rows, width in (("experts.up", 2 * intermediate, hidden), ("experts.down", hidden, intermediate)):
            if expert_w == "bf16":
                self.tensors[name] = normal(experts, rows, width, scale=width**-0.5)
                self.dense[name] = self.tensors[name].double()
            else:
                codes = torch.randint(0, 256, (experts, rows, width // 2), generator=random, dtype=torch.uint8)
                scales = torch.randint(118, 124, (experts, rows, width // 32), generator=random, dtype=torch.uint8)
                self.tensors[name], self.tensors[name + "_scale"] = codes, scales
                self.dense[name] = mxfp4(codes, scales)
        if bias:
            self.fields.update(router_bias=True, up_bias=True, down_bias=True)
            self.tensors["router_bias"] = normal(experts)
            self.tensors["experts.up_bias"] = normal(experts, 2 * intermediate)
            self.tensors["experts.down_bias"] = normal(experts, hidden)

    def x(self, tokens: int):
        import torch

        return torch.randn(tokens, self.fields["hidden"], generator=self.random).to(torch.bfloat16)

    def layer(self, **options):
        import sluice_moe

        layer = sluice_moe.MoeLayer(device="cpu", **{"tokens_max": 64, **self.fields, **options})
        # A layer without a router of its own needs no router weights.
        given = self.tensors if layer.fields["input"] == "logits" else {k: t for k, t in self.tensors.items() if "router" not in k}
        layer.load(given)
        return layer

    def choice(self, x):
        """Returns (ids, weights) of each token."""
        import torch

        logits = x.double() @ self.tensors["router"].double().T
        if "router_bias" in self.tensors:
            logits = logits + self.tensors["router_bias"].double()
        top = torch.topk(logits, self.fields["top_k"], dim=-1)
        return top.indices.to(torch.int32), torch.softmax(top.values, dim=-1).float()

    def experts(self, x, ids, weights):
        """The weighted sum of experts' outputs for each token, float64 [tokens, hidden]; an id below 0 is an empty slot."""
        import torch

        out = torch.zeros(x.shape, dtype=torch.float64)
        for token in range(x.shape[0]):
            for slot in range(ids.shape[1]):
                e = int(ids[token, slot])
                if e < 0:
                    continue
                h = self.dense["experts.up"][e] @ x[token].double()
                if "experts.up_bias" in self.tensors:
                    h = h + self.tensors["experts.up_bias"][e].double()
                gate, up = (h[0::2], h[1::2]) if self.fields["gate_order"] == "interleaved" else h.chunk(2)
                if self.fields["gate_order"] == "up_first":
                    gate, up = up, gate
                y = self.dense["experts.down"][e] @ (torch.nn.functional.silu(gate) * up)
                if "experts.down_bias" in self.tensors:
                    y = y + self.tensors["experts.down_bias"][e].double()
                out[token] += weights[token, slot].double() * y
        return out

    def wanted(self, x):
        return self.experts(x, *self.choice(x))


def mxfp4(codes, scales):
    """float64 [..., width] from e2m1 codes [..., width / 2], the even element in the low half, and e8m0 scales [..., width / 32]."""
    import torch

    values = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64)
    wide = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], dim=-1).flatten(-2)
    return wide * torch.exp2(scales.double() - 127).repeat_interleave(32, dim=-1)


def close(got, wanted, share=0.02):
    """Whether bf16 outputs are as close as intermediate rounding allows, relative to the largest output."""
    import torch

    assert got.shape == wanted.shape, f"wanted {list(wanted.shape)}, found {list(got.shape)}"
    apart = (got.double() - wanted).abs().max().item() / max(wanted.abs().max().item(), 1e-9)
    assert apart < share, f"wanted a difference of at most {share} of the largest value, found {apart}"
    return bool(torch.isfinite(got).all())


@pytest.fixture
def made():
    return Made
