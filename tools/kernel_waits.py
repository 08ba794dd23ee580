#!/usr/bin/env python3
"""Shows which scoreboard barriers a kernel's SASS instructions wait for.

usage: kernel_waits.py FILE [KERNEL] | --loads FILE... | --check

FILE is an object of a .cu file, or a cubin. For kernels whose names match the pattern KERNEL, prints every instruction with the barriers
that it waits for (W), the barriers that its result and its operands release (w, r), and the clocks until the next instruction may issue. An
instruction that reads a loaded register waits for the load's barrier. --loads lists loads that wait for an earlier load into the same
register. Each such wait is an unnecessary memory latency, even if predicates allow only one of the two loads to run. Compilers do not warn.

Requires nvdisasm, and cuobjdump for objects, in the PATH or in /usr/local/cuda/bin (PyPI: nvidia-cuda-nvdisasm, nvidia-cuda-cuobjdump).
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x[0-9a-f]{16} \*/")
REST = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")
LOAD = re.compile(r"(?:@!?U?P\d+ )?LDG\S*\s+(R\d+)")
NONE = 7  # no barrier


class Instruction:
    def __init__(self, address, text, high):
        control = high >> 41  # bits 105 and up of 128
        self.address, self.text = address, text
        self.stall, self.sets, self.reads = control & 15, control >> 5 & 7, control >> 8 & 7
        self.waits = [i for i in range(6) if control >> 11 >> i & 1]

    def __str__(self):
        name = lambda barrier: "-" if barrier == NONE else str(barrier)
        waits = "".join(map(str, self.waits)) or "-"
        return f"{self.address}  W:{waits:<6} w:{name(self.sets)} r:{name(self.reads)} {self.stall:>2}  {self.text}"


def kernels(listing):
    """Parses the output of nvdisasm -hex. Returns (kernel name, content) pairs; content lists instructions, and labels as text."""
    found, open_line = [], None
    for line in listing.splitlines():
        if name := re.match(r"\.text\.(\S+):", line):
            found.append((name[1], []))
        elif not found:
            continue
        elif label := re.match(r"(\.L\w+):", line):
            found[-1][1].append(label[1])
        elif begun := LINE.match(line):
            open_line = begun
        elif open_line and (rest := REST.match(line)):
            found[-1][1].append(Instruction(open_line[1], open_line[2], int(rest[1], 16)))
            open_line = None
    return found


def loads_that_wait(code):
    """Returns pairs (earlier, later) of loads into one register, of which the later waits for the earlier."""
    found, on_the_way = [], {}
    for one in code:
        if isinstance(one, str):  # a label: the previous instructions are unknown
            on_the_way = {}
            continue
        load = LOAD.match(one.text)
        if load and (earlier := on_the_way.get(load[1])) and earlier.sets in one.waits:
            found.append((earlier, one))
        _, _, operands = one.text.partition(",")
        written = re.match(r"(?:@!?U?P\d+ )?\S+\s+(R\d+)", one.text)
        for register in re.findall(r"R\d+", operands) + ([written[1]] if written else []):
            on_the_way.pop(register, None)
        if load and one.sets != NONE:
            on_the_way[load[1]] = one
    return found


def tool(name):
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if not found:
        sys.exit(f"kernel_waits: wanted {name} in the PATH or in /usr/local/cuda/bin, found none")
    return found


def listing_of(path):
    path = pathlib.Path(path).resolve()
    if not path.is_file():
        sys.exit(f"kernel_waits: {path}: wanted an object or a cubin, found no file")
    with tempfile.TemporaryDirectory() as folder:
        files = [path]
        if path.suffix == ".o":
            subprocess.run([tool("cuobjdump"), "-xelf", "all", path], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            files = sorted(pathlib.Path(folder).glob("*.cubin"))
        run = lambda file: subprocess.run([tool("nvdisasm"), "-c", "-hex", file], check=True, capture_output=True, text=True)
        return "\n".join(run(file).stdout for file in files)


SAMPLE = """.text.two_types:
        /*0000*/                   @P0 LDG.E.U16 R4, desc[UR4][R2.64] ;     /* 0x0000000402040981 */
                                                                            /* 0x000e28000c1e1500 */
        /*0010*/                   @P1 LDG.E R4, desc[UR4][R2.64] ;         /* 0x0000000402041981 */
                                                                            /* 0x001e28000c1e1900 */
        /*0020*/                   FADD R5, R4, R5 ;                        /* 0x0000000504057221 */
                                                                            /* 0x001fca0000000000 */
.text.apart:
        /*0000*/                   @P0 LDG.E.U16 R4, desc[UR4][R2.64] ;     /* 0x0000000402040981 */
                                                                            /* 0x000e28000c1e1500 */
        /*0010*/                   @P1 LDG.E R6, desc[UR4][R2.64] ;         /* 0x0000000402061981 */
                                                                            /* 0x000e68000c1e1900 */
        /*0020*/                   IADD3 R5, R4, R6, RZ ;                   /* 0x0000000604057210 */
                                                                            /* 0x003fca0007ffe0ff */
.text.one_of_two:
        /*0000*/                   @P0 LDG.E.U16 R4, desc[UR4][R2.64] ;     /* 0x0000000402040981 */
                                                                            /* 0x000e28000c1e1500 */
        /*0010*/                   @!P0 LDG.E R4, desc[UR4][R2.64] ;        /* 0x0000000402048981 */
                                                                            /* 0x000e28000c1e1900 */
"""


def check():
    two, apart, one_of_two = kernels(SAMPLE)
    assert (two[0], len(two[1]), apart[0], len(apart[1])) == ("two_types", 3, "apart", 3)
    assert [i.waits for i in two[1]] == [[], [0], [0]] and [i.sets for i in two[1]] == [0, 0, NONE]
    assert [(a.address, b.address) for a, b in loads_that_wait(two[1])] == [("0000", "0010")]
    assert apart[1][2].waits == [0, 1] and loads_that_wait(apart[1]) == []
    assert loads_that_wait(one_of_two[1]) == []  # no wait, because the compiler knows that the predicates exclude each other
    assert loads_that_wait(two[1][:1] + [".L_1"] + two[1][1:]) == []


def main(arguments):
    if arguments == ["--check"]:
        return check()
    if not arguments or len(arguments) > 2 and arguments[0] != "--loads":
        sys.exit(__doc__)
    if arguments[0] == "--loads":
        found = [(name, pair) for file in arguments[1:] for name, code in kernels(listing_of(file)) for pair in loads_that_wait(code)]
        for name, (earlier, later) in found:
            print(f"{name} {later.address}: {later.text} waits for {earlier.address}: {earlier.text}")
        print(f"{len(found)} loads wait for a load into the same register")
        return None
    for name, code in kernels(listing_of(arguments[0])):
        if re.search(arguments[1] if len(arguments) > 1 else "", name):
            print(f"{name}:", *code, sep="\n")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
