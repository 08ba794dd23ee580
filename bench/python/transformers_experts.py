#!/usr/bin/env python3
"""Checks and measures Sluice's experts in transformers: the checks of tests/python/transformers_plugin on a device, and tokens per second
compared with transformers' own experts.

    transformers_experts.py check                  checks every experts class, logits and text of the shipped model, and compiled decoding
    transformers_experts.py ratio [--threads N]    times generate() with the shipped model; prints seconds and ratios
    transformers_experts.py make DIR [--layers N]  makes a checkpoint with random weights in the layout of gpt-oss-20b (13 GB)
    transformers_experts.py bench DIR [--experts sluice,sluice-bf16,grouped_mm] [--batches 1,8,32] [--static]

--device is cuda or cpu. `bench` prints one CSV row for each number of sequences. With --rows COMMIT it also prints rows for
bench/measured/archive/h200/engine_transformers.csv: the op decode is a step of all sequences, the op prefill all their prompts.
--experts: `sluice` packs experts in MXFP4; all other names dequantize them to bf16 while loading, and `sluice-bf16` packs them in bf16.
--static uses a static cache, for which generate() compiles decoding into CUDA graphs. transformers' own MXFP4 kernels come from a hub; the
program prints why they do not run.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python" / "transformers_plugin")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import sluice_moe
import sluice_moe.transformers  # noqa: F401  registers the experts

DEVICE = torch.device("cuda")


def settle():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def loaded(directory, experts: str):
    """Loads a model with these experts. Returns it and the seconds of loading."""
    from shipped_model import load

    start, options = time.perf_counter(), {"experts_implementation": "sluice" if experts.startswith("sluice") else experts}
    if experts != "sluice":
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    try:
        import accelerate  # noqa: F401

        options["device_map"] = DEVICE.type
    except ModuleNotFoundError:
        pass
    model = load(directory, **options).to(DEVICE)
    settle()
    return model, time.perf_counter() - start


def own_mxfp4_kernels() -> str:
    """Describes whether transformers' own MXFP4 kernels can run here, or why not."""
    from transformers.utils import is_kernels_available

    if not is_kernels_available():
        return "transformers' own MXFP4 kernels: not run, because no suitable package `kernels` is installed"
    return "transformers' own MXFP4 kernels: not run, because `kernels` loads them from a hub, which is offline here"


# ---- check ----


def check_experts() -> bool:
    from experts_in_float64 import bound, reference
    from experts_of_transformers import CLASSES, inputs, made

    fine, worst, refused = True, 0.0, []
    for name in sorted(CLASSES):
        module = made(name)
        try:
            for tokens in (1, 7, 200):
                x, ids, weights = inputs(tokens)
                plain = made(name)
                wanted, allowed = reference(plain, x, ids, weights), bound(plain, x, ids, weights)
                found = module.to(DEVICE)(x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)).cpu()
                share = ((found.double() - wanted).abs() / allowed).max().item()
                worst = max(worst, share)
                if not share <= 1:
                    fine = False
                    print(f"FAILED {name}, {tokens} tokens: {share:.2f} times the allowed error")
        except sluice_moe.Unsupported as why:
            refused.append(f"{name}: {str(why)[:160]}")
    plain = made("GptOssExperts").state_dict()
    module = made("GptOssExperts").to(DEVICE)
    x, ids, weights = (t.to(DEVICE) for t in inputs(3))
    module(x, ids, weights)
    same = all(torch.equal(value, plain[name]) for name, value in module.state_dict().items())
    print(f"experts: {len(CLASSES) - len(refused)} classes have at most {worst:.2f} of the allowed error; state_dict of packed experts is bit-identical: {same}")
    for line in refused:
        print("  refused", line)
    return fine and same and len(CLASSES) - len(refused) > 40


def check_model(experts: str) -> bool:
    from shipped_model import MODEL, PROMPTS, answers, answers_of_the_engine, distances, is_start, questions

    fine, (model, _) = True, loaded(MODEL, experts)
    for prompt in PROMPTS:
        rms, most = (worst.max().item() for worst in distances(model, prompt))
        fine &= rms <= 4 and most <= 2
        print(f"{experts}: logits of {prompt}: RMS error {rms:.2f} times the rounding noise (4 allowed), largest error {most:.2f} times the largest noise (2 allowed)")
    asked = questions(100)
    try:
        wanted = answers_of_the_engine(asked)
    except AssertionError as why:
        print(f"{experts}: text: not compared, because Sluice's engine gave no answers: {why}")
        return fine
    found = answers(model, asked, 150)
    same = sum(is_start(b, a) for a, b in zip(wanted, found))
    for question, a, b in zip(asked, wanted, found):
        if not is_start(b, a):
            print(f"  {question!r}\n    engine {a!r}\n    here   {b!r}")
    print(f"{experts}: text: {same} of {len(asked)} answers equal those of Sluice's engine on the CPU")
    return fine and same >= 98  # different rounding may flip near ties


def check_compiled() -> bool:
    from shipped_model import MODEL, batch_of, questions

    model, _ = loaded(MODEL, "sluice")
    ids, mask = batch_of(questions(1), DEVICE)
    options = dict(attention_mask=mask, max_new_tokens=24, min_new_tokens=24, do_sample=False)
    wanted = model.generate(ids, **options)
    made = model.generate(ids, cache_implementation="static", **options)
    again = model.generate(ids, cache_implementation="static", **options)
    same = torch.equal(made, wanted) and torch.equal(again, wanted)
    print(f"compiled decoding with a static cache gives equal tokens: {same}")
    return same


def check() -> int:
    fine = [check_experts(), check_model("sluice"), check_model("sluice-bf16"), check_compiled()]
    print("all checks passed" if all(fine) else "CHECKS FAILED")
    return 0 if all(fine) else 1


# ---- bench ----


def machine() -> str:
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else f"{torch.get_num_threads()} threads of a CPU"
    return f"{name}, torch {torch.__version__}, transformers {transformers.__version__}, Sluice {sluice_moe.version()}"


def ratio(arguments) -> int:
    """Times generate() with the shipped model: medians of alternating runs, in seconds."""
    from shipped_model import MODEL, batch_of, questions

    kinds = ("sluice", "sluice-bf16", "grouped_mm", "eager")
    models = {experts: loaded(MODEL, experts)[0] for experts in kinds}
    print(f"{machine()}\n\n| sequences x tokens | " + " | ".join(kinds) + " | grouped_mm / sluice |\n|---|" + "--:|" * (len(kinds) + 1))
    for count, new in ((1, 32), (8, 32), (32, 32)):
        ids, mask = batch_of(questions(count), DEVICE)
        seconds = {experts: [] for experts in kinds}
        for run in range(arguments.runs + 1):
            for experts, model in models.items():
                start = time.perf_counter()
                model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False)
                settle()
                seconds[experts] += [time.perf_counter() - start] if run else []
        middle = {experts: statistics.median(all_of) for experts, all_of in seconds.items()}
        print(f"| {count} x {new} | " + " | ".join(f"{middle[k]:.2f} s" for k in kinds)
              + f" | {middle['grouped_mm'] / middle['sluice']:.2f} |", flush=True)
    return 0


def timed(model, ids, new: int, static: bool) -> float:
    options = {"cache_implementation": "static"} if static else {}
    settle()
    start = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False, **options)
    settle()
    return time.perf_counter() - start


def write_rows(arguments, experts: str, count: int, firsts: list[float], steps: list[float]) -> None:
    cache = "static cache, compiled" if arguments.static else "dynamic cache, eager"
    known = f"transformers-{transformers.__version__}"
    for op, tokens, seconds in (("decode", count, steps), ("prefill", count * arguments.prompt, firsts)):
        us = sorted(1e6 * s for s in seconds)
        spread = (statistics.median(us), us[len(us) // 10], us[len(us) * 9 // 10])
        impl, version = (experts, f"{arguments.rows}+{known}") if experts.startswith("sluice") else (known + "-" + experts, known)
        print(f"engine_transformers,{op},gpt-oss-20b,{tokens},{impl},{version}," + ",".join(f"{u:.4f}" for u in spread)
              + f",0,0,{count} prompts of {arguments.prompt} {cache}", flush=True)


def bench(arguments) -> int:
    print("#", machine())
    print("#", own_mxfp4_kernels())
    print("experts,cache,sequences,prompt,new,first_token_ms,decode_tokens_s,load_s,memory_gib")
    for experts in arguments.experts.split(","):
        model, seconds = loaded(arguments.directory, experts)
        for count in map(int, arguments.batches.split(",")):
            draw = torch.Generator(device=DEVICE).manual_seed(count)
            ids = torch.randint(0, 199000, (count, arguments.prompt), device=DEVICE, generator=draw)
            timed(model, ids, arguments.new, arguments.static)  # warm-up: packs, compiles, captures
            runs = [(timed(model, ids, 1, arguments.static), timed(model, ids, arguments.new, arguments.static)) for _ in range(arguments.runs)]
            first = statistics.median(a for a, _ in runs)
            step = statistics.median(b - a for a, b in runs) / (arguments.new - 1)
            memory = torch.cuda.memory_allocated() / 2**30 if DEVICE.type == "cuda" else float("nan")
            print(f"{experts},{'static' if arguments.static else 'dynamic'},{count},{arguments.prompt},{arguments.new},{first * 1e3:.1f},"
                  f"{count / step:.1f},{seconds:.1f},{memory:.1f}", flush=True)
            if arguments.rows:
                write_rows(arguments, experts, count, [a for a, _ in runs], [(b - a) / (arguments.new - 1) for a, b in runs])
        del model
        torch.compiler.reset()
        torch.cuda.empty_cache()
    return 0


def make(arguments) -> int:
    from shipped_model import command

    return subprocess.run([*command(), "make-checkpoint", arguments.directory, "--layers", str(arguments.layers)], check=True).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of torch and of Sluice; 0: torch's default")
    parser.add_argument("--runs", type=int, default=3)
    actions.add_parser("check")
    actions.add_parser("ratio")
    maker = actions.add_parser("make")
    maker.add_argument("directory")
    maker.add_argument("--layers", type=int, default=0, help="number of layers; 0: all of the model's")
    bencher = actions.add_parser("bench")
    bencher.add_argument("directory")
    bencher.add_argument("--experts", default="sluice,sluice-bf16,grouped_mm")
    bencher.add_argument("--batches", default="1,8,32")
    bencher.add_argument("--prompt", type=int, default=128)
    bencher.add_argument("--new", type=int, default=64)
    bencher.add_argument("--static", action="store_true")
    bencher.add_argument("--rows", metavar="COMMIT", help="Sluice's commit; also print rows for bench/measured")
    arguments = parser.parse_args()
    global DEVICE
    DEVICE = torch.device(arguments.device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.action == "make":
        return make(arguments)
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        print("--device: torch finds no CUDA device", file=sys.stderr)
        return 2
    with torch.no_grad():
        return {"check": lambda _: check(), "ratio": ratio, "bench": bench}[arguments.action](arguments)


if __name__ == "__main__":
    sys.exit(main())
