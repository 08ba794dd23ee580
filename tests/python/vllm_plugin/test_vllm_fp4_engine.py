"""Small checkpoints with NVFP4, MXFP4 and MXFP8 experts in real vLLM on the CPU, compared with vLLM's own experts in bf16, which holds their weights
exactly."""
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests want vLLM (./dev test-python)")

from safetensors.torch import load_file, save_file  # noqa: E402
from test_vllm import agree, qwen3, tokens_of  # noqa: E402
from test_vllm_fp4 import CHECKPOINTS, FP8  # noqa: E402
from vllm_engine import run, sluice_lines  # noqa: E402

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SKIP = {"nvfp4": "ignore", "mxfp8_minimax": "ignored_layers", "ct_nvfp4": "ignore", "quark_mxfp4": "exclude"}


def of_four_bits(weight: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes, weight in units of its scales, scales of blocks, powers of two). Two codes a byte, the even column in the low bits."""
    parts = weight.float().unflatten(1, (-1, block))
    scales = (parts.abs().amax(-1, keepdim=True) / 6).log2().ceil().exp2()
    units = parts / scales
    magnitudes = (units.abs()[..., None] - E2M1).abs().argmin(-1)
    codes = (magnitudes + 8 * (units < 0)).flatten(1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, E2M1[magnitudes] * units.sign(), scales


def stored(weight: torch.Tensor, name: str, matrix: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """({end of a name: tensor of a checkpoint}, the weight that they mean). The scales of gate and up differ, and blocks of NVFP4 have any scales."""
    if name == "mxfp8_minimax":
        parts = weight.float().unflatten(1, (-1, 32))
        scales = (parts.abs().amax(-1, keepdim=True) / 448).log2().ceil().exp2()
        codes = (parts / scales).to(FP8)
        tensors = {"weight": codes.flatten(1), "weight_scale": (scales[..., 0].log2() + 127).to(torch.uint8)}
        return tensors, (codes.float() * scales).flatten(1)
    codes, units, scales = of_four_bits(weight, 32 if name == "quark_mxfp4" else 16)
    if name == "quark_mxfp4":
        return {"weight": codes, "weight_scale": (scales[..., 0].log2() + 127).to(torch.uint8)}, (units * scales).flatten(1)
    by = {"gate_proj": 2.0**-9, "up_proj": 2.0**-7, "down_proj": 2.0**-8}[matrix]
    draw = torch.Generator().manual_seed(len(matrix))
    scales = ((0.75 + 0.5 * torch.rand(scales.shape, generator=draw)) * scales / by).to(FP8)
    dense = (units * scales.float() * by).flatten(1)
    if name == "nvfp4":
        return {"weight": codes, "weight_scale": scales[..., 0], "weight_scale_2": torch.tensor(by), "input_scale": torch.tensor(0.1)}, dense
    return {"weight_packed": codes, "weight_scale": scales[..., 0], "weight_global_scale": torch.tensor([1 / by]),
            "input_global_scale": torch.tensor([10.0])}, dense


def quantized(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a checkpoint with quantized experts, and writes their exact weights into the bf16 checkpoint that they are made of."""
    exact, tensors, skipped = load_file(folder / "model.safetensors"), {}, ["lm_head"]
    for key, weight in exact.items():
        base = key.removesuffix(".weight")
        if ".experts." not in key:
            tensors[key] = weight
            skipped += [base] if base.endswith(("_proj", ".gate")) else []
            continue
        made, dense = stored(weight, name, base.rsplit(".", 1)[1])
        assert torch.equal(dense.bfloat16().float(), dense)
        tensors |= {f"{base}.{end}": tensor.contiguous() for end, tensor in made.items()}
        exact[key] = dense.bfloat16()
    save_file(exact, folder / "model.safetensors")
    out = folder / name
    out.mkdir()
    given = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(given | {"quantization_config": CHECKPOINTS[name] | {SKIP[name]: skipped}}))
    save_file(tensors, out / "model.safetensors")
    return out


@pytest.mark.parametrize("name, kind", [("nvfp4", "nvfp4"), ("mxfp8_minimax", "mxfp8")])
def test_models_say_what_their_exact_weights_say(tmp_path, name, kind):
    exact = qwen3(tmp_path)
    folder = quantized(exact, name)
    theirs, _ = run(tmp_path, {"model": str(exact), "skip_tokenizer_init": True}, [tokens_of(8)])
    engine = {"model": str(folder), "skip_tokenizer_init": True, "quantization": "sluice"}
    ours, log = run(tmp_path, engine, [tokens_of(8), tokens_of(8) | {"before": "reload"}])
    assert any(f"experts {kind} hidden=256 intermediate=128 experts=8 top_k=2 expert_w=" in line for line in sluice_lines(log))
    agree(theirs[0], ours[0])
    agree(ours[0], ours[1])
