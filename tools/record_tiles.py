#!/usr/bin/env python3
"""Converts the fastest measured plans of the router's tile kernel into the table from which it chooses.

Reads bench/measured/h200/router_tiles.csv and writes src/backends/cuda/router/router_gemm_tile_measured.h with the fastest plan of each
problem. With --check it writes nothing, and exits with 1 if the file does not match the rows.
"""
import csv
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "bench/measured/h200/router_tiles.csv"
TARGET = ROOT / "src/backends/cuda/router/router_gemm_tile_measured.h"

HEAD = """\
// Written by tools/record_tiles.py from bench/measured/h200/router_tiles.csv: the fastest plan of router_gemm_tile_sm90
// for each problem on an H200. router_tile_configs() in router_gemm_tile.cc extrapolates from these plans.
#pragma once
#include <cstdint>

#include "backends/cuda/router/router_gemm_tile.h"

namespace sluice::cuda {

struct RouterTileMeasured {
  int64_t hidden, experts, tokens;
  RouterTilePlan plan;  // {groups, tokens}, splits, beside, behind
  double us;
};
constexpr RouterExchange kStores = RouterExchange::kStores;
constexpr RouterTileMeasured kRouterTilesMeasured[] = {
"""
TAIL = """\
};

}  // namespace sluice::cuda
"""


def fastest():
    """Returns the fastest row of each problem, in the order of the file."""
    rows = {}
    with SOURCE.open(newline="") as file:
        for row in csv.DictReader(file):
            problem = (row["hidden"], row["experts"], row["tokens"])
            if problem not in rows or float(row["median_us"]) < float(rows[problem]["median_us"]):
                rows[problem] = row
    return rows.values()


def line_of(row):
    if row["exchange"] not in ("copies", "stores"):
        sys.exit(f"{SOURCE.relative_to(ROOT)}: wanted copies or stores, found '{row['exchange']}'")
    exchange = ", kStores" if row["exchange"] == "stores" else ""
    plan = f"{{{{{row['groups']}, {row['tile_tokens']}}}, {row['splits']}, {row['beside']}, {row['behind']}{exchange}}}"
    return f"    {{{row['hidden']}, {row['experts']}, {row['tokens']}, {plan}, {float(row['median_us']):.2f}}},\n"


def main():
    wanted = HEAD + "".join(line_of(row) for row in fastest()) + TAIL
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(wanted)
        return 0
    if TARGET.read_text() == wanted:
        return 0
    print(f"{TARGET.relative_to(ROOT)} does not match {SOURCE.relative_to(ROOT)}: run tools/record_tiles.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
