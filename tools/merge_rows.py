#!/usr/bin/env python3
"""Replaces rows of RECORD by new rows with the same op, model, tokens, impl and note, and adds the rest.

usage: merge_rows.py RECORD.csv NEW.csv...

Text after "; " in a note is not compared. Added rows follow the last row of the same op, model and tokens. Rows that measure the GPU
itself (op read, dense_8192) are kept from RECORD. Also works for *_power.csv.
"""

import csv
import sys

KEYS = ("op", "model", "tokens", "impl", "note")
OF_THE_CARD = ("read", "dense_8192")


def lines_of(path):
    """Returns the header, and for each row its key and its unchanged line."""
    with open(path) as file:
        lines = file.read().splitlines()
    header, *rows = csv.reader(lines)
    at = [header.index(name) for name in KEYS]
    return lines[0], [(tuple(row[i].split("; ")[0] for i in at), line) for row, line in zip(rows, lines[1:], strict=True)]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.splitlines()[2])
    record = sys.argv[1]
    header, rows = lines_of(record)
    lines, order = dict(rows), list(dict(rows))
    replaced = added = 0
    for path in sys.argv[2:]:
        its_header, new = lines_of(path)
        if its_header != header:
            sys.exit(f"{path}: wanted the columns {header}, found {its_header}")
        for key, line in new:
            if key[0] in OF_THE_CARD:
                continue
            if key in lines:
                replaced += 1
            else:
                added += 1
                same = [i for i, other in enumerate(order) if other[:3] == key[:3]]
                order.insert(same[-1] + 1 if same else len(order), key)
            lines[key] = line
    with open(record, "w") as file:
        file.write("\n".join([header] + [lines[key] for key in order]) + "\n")
    print(f"{record}: {replaced} replaced, {added} added")


if __name__ == "__main__":
    main()
