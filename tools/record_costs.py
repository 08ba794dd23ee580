#!/usr/bin/env python3
"""Converts measured rows of single kernels into the cost curves that dispatch uses.

Reads bench/measured/h200/router_candidates.csv and writes src/backends/cuda/measured/router_gemm.inc. With --check it writes nothing, and
exits with 1 if the file does not match the rows.
"""
import csv
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "bench/measured/h200/router_candidates.csv"
TARGET = ROOT / "src/backends/cuda/measured/router_gemm.inc"
KERNELS = ["gemv", "splitk", "wide", "tile"]  # kernels with curves; fma is far slower than all of them
OP = "router_gemm"  # plain launches, because chains rank the kernels in the same order


def curves():
    rows = {}
    with SOURCE.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["op"] != OP or row["impl"].split(".")[2].removesuffix("_sm90") not in KERNELS:
                continue
            if row["note"].startswith("f32 gate"):  # costs for f32 weights come from a model
                continue
            hidden, experts = (int(word) for word in row["model"].split("x"))
            points = rows.setdefault((row["impl"], hidden, experts), {})
            tokens, us = int(row["tokens"]), float(row["median_us"])
            points[tokens] = min(us, points.get(tokens, us))  # the type of logits matters less than the differences between runs
    return rows


def text():
    lines = ["// Written by tools/record_costs.py from bench/measured/h200/router_candidates.csv: microseconds by tokens."]
    for (impl, hidden, experts), points in sorted(curves().items()):
        listed = ", ".join(f"{{{tokens}, {us:.2f}}}" for tokens, us in sorted(points.items()))
        lines.append(f'SLUICE_CURVE("{impl}", {hidden}, {experts}, {listed})')
    return "\n".join(lines) + "\n"


def main():
    wanted = text()
    if "--check" not in sys.argv[1:]:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(wanted)
        return 0
    if TARGET.read_text() == wanted:
        return 0
    print(f"{TARGET.relative_to(ROOT)} does not match {SOURCE.relative_to(ROOT)}: run tools/record_costs.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
