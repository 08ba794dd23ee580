#!/usr/bin/env python3
"""Writes src/text/tokenizer/nfc_table.inc: the properties of code points that Unicode's normalization form C needs.

Requires the Python package tokenizers (the file in the tree was written with 0.23.3), because its Unicode tables are those of the
tokenizers that Sluice reads. The properties come from its results for single code points, not from Python's Unicode tables.
"""
import pathlib

from tokenizers import normalizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "text" / "nfc_table.inc"
NFC, NFD = normalizers.NFC(), normalizers.NFD()
POINTS = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
HANGUL = range(0xac00, 0xac00 + 11172)  # composed by arithmetic, without tables


def decompositions():
    """Returns {code point: its full decomposition}."""
    out = {}
    for c in POINTS:
        if c not in HANGUL and (found := NFD.normalize_str(chr(c))) != chr(c):
            out[c] = [ord(x) for x in found]
    return out


def classes(without=()):
    """Returns ranges [first, last, class] of code points that are not starters. Two of them are swapped if the first has the greater class."""
    import unicodedata
    runs = []
    for c in POINTS:
        k = unicodedata.combining(chr(c))
        if not k or c in without:
            continue
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == k:
            runs[-1][1] = c
        else:
            runs.append([c, c, k])
    return runs


def compositions(full):
    """Returns {(first, second): composed}, the pairs that form C composes."""
    out = {}
    for c in full:
        if NFC.normalize_str(chr(c)) != chr(c):
            continue  # excluded from composition: decomposes to one code point, or is never composed
        whole = full[c]
        # The first of the pair is the composition of all code points except the last.
        first = NFC.normalize_str("".join(map(chr, whole[:-1])))
        assert len(first) == 1, hex(c)
        assert NFC.normalize_str(first + chr(whole[-1])) == chr(c), hex(c)
        out[(ord(first), whole[-1])] = c
    return out


def check_classes(runs):
    """Checks that the library orders code points as Python does."""
    of = {}
    for first, last, k in runs:
        for c in range(first, last + 1):
            of[c] = k
    # Also checks one code point of each class that the library knows, between marks of the largest and smallest class in common use.
    above, below = "\u0301", "\u0334"

    def is_known(c):
        return (swaps(above, chr(c)) == (of[c] < of[ord(above)])) and (swaps(chr(c), below) == (of[c] > of[ord(below)]))

    def swaps(first, second):
        return first != second and NFD.normalize_str("a" + first + second) == "a" + second + first

    probes = {k: c for c, k in sorted(of.items(), reverse=True) if NFD.normalize_str(chr(c)) == chr(c) and is_known(c)}
    wrong = []
    for c in of:
        if NFD.normalize_str(chr(c)) != chr(c):
            continue
        for k, probe in probes.items():
            if c != probe and swaps(chr(c), chr(probe)) != (of[c] > k):
                wrong.append(c)
                break
    starters = [c for c in POINTS if c not in of and c not in HANGUL and NFD.normalize_str(chr(c)) == chr(c)]
    low, high = probes[min(probes)], probes[max(probes)]
    for c in starters:
        if NFD.normalize_str("a" + chr(high) + chr(c)) != "a" + chr(high) + chr(c) or NFD.normalize_str(
                "a" + chr(c) + chr(low)) != "a" + chr(c) + chr(low):
            wrong.append(c)
    return wrong


def rows(items, to_text):
    line, lines = "", []
    for item in items:
        text = to_text(item)
        if len(line) + len(text) > 150:
            lines.append(line)
            line = ""
        line += text
    return "\n".join(lines + [line])


def main():
    full = decompositions()
    runs = classes()
    wrong = check_classes(runs)
    print("classes that differ:", [hex(c) for c in wrong])
    runs = classes(set(wrong))
    pairs = compositions(full)
    # A decomposition is stored as the code point, then the code points of its decomposition.
    flat = [x for c in sorted(full) for x in [c, len(full[c]), *full[c]]]
    composed = [x for (a, b), c in sorted(pairs.items()) for x in (a, b, c)]
    text = "// Written by tools/nfc_table.py.\n// clang-format off\n"
    for name, values in (("kDecompositions", flat), ("kCompositions", composed),
                         ("kClasses", [x for r in runs for x in r])):
        text += f"constexpr char32_t {name}[] = {{\n" + rows(values, lambda v: f"{v:#x},") + "\n};\n"
    OUT.write_text(text + "// clang-format on\n")
    print(len(full), "decompositions", len(pairs), "compositions", len(runs), "runs", len(text), "bytes")


if __name__ == "__main__":
    main()
