#!/usr/bin/env python3
"""Draws output tokens per second by number of sequences: without drafts, with three drafts, and with the number of drafts chosen by cost.

usage: speculation_plot.py bench/measured/archive/h200/speculation.csv docs/lab/speculation.svg

Reads sustained rows. A panel takes its three lines from one run: the newest that has all of them.
"""

import csv
import math
import re
import sys

# Title, model, method of the rows.
PANELS = (
    ("gpt-oss-20b, EAGLE3 head of 0.8 GB", "gpt-oss-20b", "eagle3"),
    ("Moonlight-16B-A3B, multi-token prediction", "moonlight-16b-a3b", "mtp"),
    ("gpt-oss-20b, drafts at no cost (n-grams)", "gpt-oss-20b", "ngram"),
    ("gpt-oss-120b, drafts at no cost (n-grams)", "gpt-oss-120b", "ngram"),
)
# Name, color, width, dashes.
LINES = (
    ("no drafts", "#6e7681", 2, ""),
    ("3 drafts", "#d55e00", 2, "6 4"),
    ("by cost, at most 7 drafts", "#0054a6", 3, ""),
)
WIDTH, HEIGHT, LEFT, TOP = 440, 220, 70, 130
STEP_X, STEP_Y = 510, 310
INK, MUTED, GRID = "#222831", "#6e7681", "#e4e7eb"


def line_of(row):
    """Which of LINES the row belongs to, and the method that drafted; (None, "") if to none."""
    if row["op"] == "decode":
        return LINES[0][0], None
    method, k, by_cost = re.search(r"(\w+) k (\d+)( by cost)? acceptance", row["note"]).groups()
    if by_cost:
        return LINES[2][0], method
    return (LINES[1][0], method) if k == "3" else (None, "")


def tokens_per_second(row):
    per_step = re.search(r"([\d.]+) tokens a step", row["note"])
    return int(row["tokens"]) * (float(per_step[1]) if per_step else 1) / float(row["median_us"]) * 1e6


def read_panel(rows, model, method):
    """Points of each line, from the newest run with all lines. Later rows are of newer runs."""
    runs = {}
    for row in rows:
        if row["model"] != model or row["op"] not in ("decode", "speculate") or " sustained" not in row["note"]:
            continue
        line, drafted_by = line_of(row)
        if drafted_by in (None, method):
            runs.setdefault(row["run"], {}).setdefault(line, {})[int(row["tokens"])] = tokens_per_second(row)
    complete = [run for run in runs.values() if all(name in run for name, *_ in LINES)]
    if not complete:
        sys.exit(f"no run has rows of {model} with {method}: no drafts, 3 drafts and by cost")
    return complete[-1]


def text(x, y, words, size=11, fill=MUTED, anchor="start", bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{words}</text>'


def path(points, colour, width, dashes=""):
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'


def draw_panel(title, lines, left, top):
    counts = sorted(set().union(*lines.values()))
    values = [v for line in lines.values() for v in line.values()]
    low, high = (10 ** (math.log10(v) + d) for v, d in ((min(values), -0.05), (max(values), 0.12)))

    def x(n):
        return left + WIDTH * math.log(n / counts[0]) / math.log(counts[-1] / counts[0])

    def y(v):
        return top + HEIGHT * (1 - math.log(v / low) / math.log(high / low))

    out = [text(left, top - 14, title, 13, INK, bold=True)]
    for n in counts:
        out += [path([(x(n), top), (x(n), top + HEIGHT)], GRID, 1), text(x(n), top + HEIGHT + 16, n, anchor="middle")]
    for tick in (m * 10**e for e in range(2, 6) for m in (1, 2, 5)):
        if low <= tick <= high:
            out += [path([(left, y(tick)), (left + WIDTH, y(tick))], GRID, 1), text(left - 6, y(tick) + 4, tick, anchor="end")]
    for name, colour, width, dashes in LINES:
        points = sorted(lines[name].items())
        out.append(path([(x(n), y(v)) for n, v in points], colour, width, dashes))
        out += [f'<circle cx="{x(n):.1f}" cy="{y(v):.1f}" r="2.5" fill="{colour}"/>' for n, v in points]
    base, chosen = lines[LINES[0][0]], lines[LINES[2][0]]
    for n in sorted(base.keys() & chosen.keys()):
        anchor = {counts[0]: "start", counts[-1]: "end"}.get(n, "middle")
        above = max(line[n] for line in lines.values() if n in line)
        out.append(text(x(n), y(above) - (16 if n == counts[0] else 10), f"{chosen[n] / base[n]:.2f}x", fill=LINES[2][1], anchor=anchor))
    out.append(text(left + WIDTH, top + HEIGHT + 32, "sequences", anchor="end"))
    return out


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.splitlines()[2])
    with open(sys.argv[1], newline="") as file:
        rows = list(csv.DictReader(file))
    columns, lines = 2, (len(PANELS) + 1) // 2
    width, height = LEFT + STEP_X * columns, TOP + STEP_Y * lines - 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        "<title>Output tokens per second with and without drafts</title>",
        f'<polygon points="0,0 {width},0 {width},{height} 0,{height}" fill="#ffffff"/>',
        text(24, 32, "Output tokens per second with and without drafts", 18, INK, bold=True),
        text(24, 52, "One H200, context 1024, random weights, synthetic acceptance. Above the lines: by cost against no drafts.", 12),
    ]
    left = 24
    for name, colour, line_width, dashes in LINES:
        out += [path([(left, 74), (left + 30, 74)], colour, line_width, dashes), text(left + 36, 78, name, 12, INK)]
        left += 60 + 7.5 * len(name)
    for i, (title, model, method) in enumerate(PANELS):
        out += draw_panel(title, read_panel(rows, model, method), LEFT + STEP_X * (i % columns), TOP + STEP_Y * (i // columns))
    with open(sys.argv[2], "w") as file:
        file.write("\n".join([*out, "</svg>", ""]))


if __name__ == "__main__":
    main()
