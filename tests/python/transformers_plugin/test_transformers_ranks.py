"""Two ranks share the experts of a small model: split by width, and split by expert."""
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HERE = pathlib.Path(__file__).resolve().parent
NEW = tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= (5, 23)
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
import sluice_moe
from test_transformers import experts_of, run
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
kinds = {"tp": dict(tp_size=2), "ep": dict(tp_size=2, **({"ep_size": 2} if sys.argv[3] == "new" else {"enable_expert_parallel": True}))}
whole = lambda y: y.full_tensor() if hasattr(y, "full_tensor") else y
for kind, sizes in kinds.items():
    made = {}
    for name in ("grouped_mm", "sluice"):
        model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.bfloat16, experts_implementation=name,
                                                     distributed_config=DistributedConfig(**sizes)).eval().requires_grad_(False)
        try:
            made[name] = whole(run(model)).float()
        except sluice_moe.Unsupported as why:
            sys.stdout.write(f"{kind} refused: {why}\\n")
            break
    else:
        assert torch.equal(whole(run(model)).float(), made["sluice"])
        apart = (made["sluice"] - made["grouped_mm"]).square().mean().sqrt() / made["grouped_mm"].square().mean().sqrt()
        try:
            model.state_dict()
        except sluice_moe.Unsupported as why:
            sys.stdout.write(f"{kind} apart {apart.item() <= 0.02} {experts_of(model)[0].sluice.experts.text} {why}\\n")
"""


def test_two_ranks(tmp_path):
    pytest.importorskip("accelerate")
    from test_transformers import QWEN3, model_of

    model_of(QWEN3, "grouped_mm").save_pretrained(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(tmp_path / "program.py"), str(HERE),
               str(tmp_path), "new" if NEW else "old"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said = done.stdout  # output of two processes; each line is written at once
    if not NEW:
        assert said.count("wanted transformers 5.23 or newer for experts that several ranks share") == 4, said
        return
    assert said.count("tp apart True 16 experts of 64 x 48 in bf16") == said.count("ep apart True 8 experts of 64 x 96 in bf16") == 2, said
    assert said.count("cannot unpack one rank's part of a module") == 4, said
