#!/usr/bin/env python3
"""Prints the results of tools/gpu_profile as a Markdown table. usage: profile_table.py FILE.csv...

One row per kernel: microseconds, DRAM's TB/s, the fractions of clocks in which DRAM was busy, a scheduler issued, and the ALU and tensor
pipes worked, the SM clock, and the three largest stall reasons, in stalled warps per issued instruction. A kernel that Nsight Compute could
not replay has no numbers.
"""

import csv
import re
import sys

STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
SCALES = {"ns": 1e-3, "us": 1, "ms": 1e3, "byte/s": 1e-12, "Kbyte/s": 1e-9, "Mbyte/s": 1e-6, "Gbyte/s": 1e-3, "Tbyte/s": 1,
          "hz": 1e-9, "Khz": 1e-6, "Mhz": 1e-3, "Ghz": 1}


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def rows_of(path):
    with open(path) as file:
        rows = list(csv.reader(line for line in file if not line.startswith("==")))
    while rows and "Kernel Name" not in rows[0]:  # skips the program's own output
        rows = rows[1:]
    if not rows:
        return
    names, units = rows[0], dict(zip(rows[0], rows[1]))
    for row in rows[2:]:
        values = dict(zip(names, row))
        yield values["Kernel Name"], {name: number(text) * SCALES.get(units[name], 1) for name, text in values.items()}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.splitlines()[0])
    print("| layer | kernel | us | TB/s | DRAM | issue | ALU | tensor | GHz | stalls |\n|---|---|---|---|---|---|---|---|---|---|")
    for path in sys.argv[1:]:
        for name, of in rows_of(path):
            kernel = re.sub(r"\(.*|void |sluice::cuda::|<unnamed>::", "", name)
            percent = lambda metric, kind: f"{of.get(f'{metric}.avg.pct_of_peak_sustained_{kind}', float('nan')):.0f}%"
            stalls = sorted(((value, STALL.fullmatch(key)[1]) for key, value in of.items() if STALL.fullmatch(key)), reverse=True)
            worst = ", ".join(f"{kind} {value:.1f}" for value, kind in stalls if "selected" not in kind and value > 0.05)
            print(
                f"| {path.rsplit('/', 1)[-1].removesuffix('.csv')} | `{kernel[:60]}` | {of['gpu__time_duration.sum']:.1f} "
                f"| {of.get('dram__bytes.sum.per_second', float('nan')):.2f} | {percent('dram__cycles_active', 'elapsed')} "
                f"| {percent('smsp__issue_active', 'active')} | {percent('sm__pipe_alu_cycles_active', 'active')} "
                f"| {percent('sm__pipe_tensor_cycles_active', 'active')} | {of['gpc__cycles_elapsed.avg.per_second']:.2f} "
                f"| {', '.join(worst.split(', ')[:3])} |"
            )


if __name__ == "__main__":
    main()
