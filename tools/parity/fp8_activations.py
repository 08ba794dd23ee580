"""Measures what rounding the inputs of expert products to FP8 costs, for each way to choose the scales.

    fp8_activations.py model MODEL_DIR [--questions N]   a gpt-oss checkpoint: its logits over whole answers
    fp8_activations.py layers [--tokens N]               layers of gpt-oss-120b's shape with random MXFP4 weights: one, and 36 in a row

Everything else is computed in float64 (layers: float32), so the errors are those of the rounding alone. Both products of an expert round their input
to e4m3. "bf16" rounds what a bf16 implementation rounds, for comparison.
"""

import argparse
import contextlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train"))

import torch

E4M3_MAX = 448
HIDDEN, INTERMEDIATE, EXPERTS, TOP, LAYERS = 2880, 2880, 128, 4, 36  # gpt-oss-120b
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def rounded(x, group, power_of_two):
    """Rounds x [rows, width] to e4m3 with one scale for each `group` columns: the largest magnitude / 448, or the next power of two."""
    rows, width = x.shape
    padded = torch.nn.functional.pad(x, (0, -width % group)).view(rows, -1, group)
    scale = padded.abs().amax(-1, keepdim=True).clamp(min=1e-10) / E4M3_MAX
    scale = torch.exp2(torch.ceil(torch.log2(scale))) if power_of_two else scale
    codes = (padded / scale).float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(x.dtype) * scale).view(rows, -1)[:, :width]


def rounded_together(x):
    """Rounds x to e4m3 with one scale for all rows."""
    return rounded(x.reshape(1, -1), x.numel(), False).view(x.shape)


WAYS = {
    "a row": lambda x: rounded(x, x.shape[1], False),
    "128 columns": lambda x: rounded(x, 128, False),
    "128 columns, powers of two": lambda x: rounded(x, 128, True),
    "32 columns, powers of two (MXFP8)": lambda x: rounded(x, 32, True),
    "all rows together": rounded_together,
}


@contextlib.contextmanager
def experts_round(way):
    """A context in which the experts of transformers' gpt-oss round the inputs of both products."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts as Experts

    forward, gate = Experts.forward, Experts._apply_gate
    Experts.forward = lambda self, x, *rest, **named: forward(self, way(x), *rest, **named)
    Experts._apply_gate = lambda self, x: way(gate(self, x))
    try:
        yield
    finally:
        Experts.forward, Experts._apply_gate = forward, gate


def compare_model(directory, questions):
    import tokenizers
    from double import make_double, perturbed
    from harmony import System, ids_of, prompt_parts
    from record import greedy, load

    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    model = make_double(load(directory))
    ends = model.generation_config.eos_token_id
    ways = {"bf16": lambda: perturbed(model, torch.Generator().manual_seed(1)), **{n: lambda w=w: experts_round(w) for n, w in WAYS.items()}}
    kl, changed, error = ({name: [] for name in ways} for _ in range(3))
    positions, energy = 0, 0.0
    with open(directory / "eval.jsonl") as lines, torch.no_grad():
        asked = [json.loads(line)["question"] for line in lines]
        for question in asked[:: max(len(asked) // questions, 1)][:questions]:
            prompt = ids_of(prompt_parts(System(), [(question, None)]), tokenizer)
            answer = greedy(model, torch.tensor([prompt]), ends)[0].tolist()
            ids = torch.tensor([prompt + answer])
            at = slice(len(prompt) - 1, len(prompt) + len(answer) - 1)
            exact = model(ids, use_cache=False).logits[0, at]
            probable = exact.log_softmax(-1)
            positions += len(answer)
            energy += (exact - exact.mean(-1, keepdim=True)).square().sum().item()
            for name, way in ways.items():
                with way():
                    logits = model(ids, use_cache=False).logits[0, at]
                kl[name] += (probable.exp() * (probable - logits.log_softmax(-1))).sum(-1).tolist()
                changed[name] += (logits.argmax(-1) != exact.argmax(-1)).tolist()
                error[name].append((logits - exact).square().sum().item())
    print(f"{questions} questions, {positions} tokens of answers")
    print(f"{'scale for':34} {'mean KL':>9} {'largest':>9} {'other first token':>18} {'RMS error':>10}")
    for name in ways:
        of = sorted(kl[name])
        print(f"{name:34} {sum(of) / len(of):9.2e} {of[-1]:9.2e} {sum(changed[name]):18} {(sum(error[name]) / energy) ** 0.5:10.2%}")


def random_expert(layer, expert):
    """The two matrices of an expert, decoded from random MXFP4 codes with scales of three neighbouring powers of two."""
    generator = torch.Generator().manual_seed(layer * EXPERTS + expert)
    out = []
    for rows, width in ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)):
        codes = torch.randint(0, 16, (rows, width), generator=generator, dtype=torch.uint8)
        weights = torch.cat([E2M1, -E2M1])[codes.int()]
        scales = torch.exp2(torch.randint(-2, 1, (rows, width // 32, 1), generator=generator).float())
        out.append((weights.view(rows, -1, 32) * scales).view(rows, width) / (2 * width**0.5))
    return out


def swiglu(x):
    gate, up = x[:, ::2].clamp(max=7), x[:, 1::2].clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def moe(layer, inputs):
    """The layer's output for each name's (way, x, experts): a way rounds the inputs of both products of x [tokens, HIDDEN]; `experts` names whose input
    chooses the experts."""
    router = torch.randn(EXPERTS, HIDDEN, generator=torch.Generator().manual_seed(layer)) / HIDDEN**0.5
    top = {n: (x @ router.T).topk(TOP) for n, (way, x, experts) in inputs.items()}
    out = {n: torch.zeros_like(x) for n, (way, x, experts) in inputs.items()}
    for expert in sorted({e for chosen in top.values() for e in chosen.indices.flatten().tolist()}):
        up, down = random_expert(layer, expert)
        for name, (way, x, experts) in inputs.items():
            tokens, place = (top[experts].indices == expert).nonzero(as_tuple=True)
            if len(tokens):
                y = way(swiglu(way(x[tokens]) @ up.T)) @ down.T
                out[name][tokens] += top[experts].values.softmax(-1)[tokens, place, None] * y
    return out


def compare_layers(tokens):
    ways = {"exact": lambda x: x, "bf16": lambda x: x.bfloat16().float(), **WAYS}
    for about, outliers in (("normal inputs", 1.0), ("one column in 128 is 30 times as large", 30.0)):
        weight = torch.ones(HIDDEN)
        weight[::128] = outliers
        start = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(7))
        streams = {(n, experts): start.clone() for n in ways for experts in ("own", "exact")}
        one, share = {n: [] for n in ways}, None

        def normed(x, weight=weight):
            return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)

        for layer in range(LAYERS):
            inputs = {(n, e): (ways[n], normed(x), (n, "own") if e == "own" else ("exact", "own")) for (n, e), x in streams.items()}
            right = inputs["exact", "own"][1]
            out = moe(layer, {**inputs, **{(n, "one"): (ways[n], right, ("exact", "own")) for n in ways}})
            exact = out["exact", "own"]
            share = share or start.square().mean().sqrt() / exact.square().mean().sqrt() / LAYERS**0.5  # all layers add as much as the start
            for at in streams:
                streams[at] = streams[at] + share * out[at]
            for name in ways:
                one[name].append(((out[name, "one"] - exact).norm() / exact.norm()).item())
        print(f"{about}: relative RMS error of one layer's output (mean of {LAYERS}), of the residual stream after {LAYERS} layers with the experts "
              "of the exact run, and with its own")
        for name in ways:
            if name != "exact":
                exact = streams["exact", "own"]
                after = [((streams[name, e] - exact).norm() / exact.norm()).item() for e in ("exact", "own")]
                print(f"{name:34} {sum(one[name]) / LAYERS:7.2%} {after[0]:7.2%} {after[1]:7.2%}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_model = kinds.add_parser("model")
    of_model.add_argument("directory", type=pathlib.Path)
    of_model.add_argument("--questions", type=int, default=200)
    kinds.add_parser("layers").add_argument("--tokens", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.kind == "model":
        compare_model(arguments.directory, arguments.questions)
    else:
        compare_layers(arguments.tokens)


if __name__ == "__main__":
    main()
