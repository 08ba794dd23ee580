#!/usr/bin/env python3
"""Mutation testing: plants one error at a time in the code and checks that a test fails.

Mutants are data in the folder of the tests that must detect them, tests/*/mutants.toml. Each is a table:

  [decide_takes_the_dearest]                   the mutant's name
  breaks = "Dispatch prefers the larger cost." what goes wrong, in one sentence
  file = "src/dispatch/decide.h"
  find = "v.cost_us < out.choice().cost_us"    C++ tokens that occur once in the file; spaces, line ends and comments are ignored
  replace = "v.cost_us > out.choice().cost_us"
  tests = "Decide*"                            a gtest filter
  needs = "avx512bw"                           optional: the flag of /proc/cpuinfo that the code needs
  program = "sluice_server_tests"              optional: the test program; above the first table it is the default of the file

This tool copies the tree into build/mutations, and for each mutant applies it, builds, and runs its tests. If a mutant survives, a test
case is missing, and the exit status is 1. Mutants of CUDA kernels (tests/gpu/mutants.toml) have `kernel` instead of `tests`. This tool
only lists and checks them; tools/mutations_cuda.py builds them.

  tools/mutations.py           runs every mutant (some minutes)
  tools/mutations.py NAME...   runs only these
  tools/mutations.py --list    lists names, files and what each mutant breaks
  tools/mutations.py --check   checks that each mutant still applies, without a build
"""
import dataclasses
import functools
import pathlib
import re
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutations" / "src"
BUILD = ROOT / "build" / "mutations" / "out"
CANDIDATES = "src/backends/cuda/candidates.def"
# ">>" counts as two tokens, because it also ends two template argument lists.
TOKEN = re.compile(
    r"""(?P<skip>\s+|\\\n|//(?:\\\n|[^\n])*|/\*.*?\*/)
      | (?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"
      | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*"
      | (?:u8|[uUL])?'(?:\\.|[^'\\\n])+'
      | \.?\d(?:[eEpP][+-]|'?\w|\.)*
      | [^\W\d]\w*
      | <=> | <<=? | \.\.\. | ->\*? | :: | \+\+ | -- | && | \|\| | \#\# | [-+*/%&|^!=<>]=
      | .""",
    re.X | re.S,
)


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str
    file: str
    find: str
    replace: str
    tests: str = ""
    needs: str = ""
    program: str = "sluice_tests"
    kernel: str = ""  # CUDA: the candidate's object in candidates.def
    also: tuple = ()  # CUDA: additional files to compile
    control: bool = False  # CUDA: the unchanged kernel is built as well, and must pass


def fail(text):
    print(f"mutations: {text}", file=sys.stderr)
    sys.exit(2)


def load():
    """Returns all mutants, in the order of the files and their tables."""
    found = {}
    for file in sorted(ROOT.glob("tests/*/mutants.toml")):
        where = file.relative_to(ROOT)
        try:
            tables = tomllib.loads(file.read_text())
            common = {key: value for key, value in tables.items() if not isinstance(value, dict)}
            for name, table in tables.items():
                if name in common:
                    continue
                if name in found:
                    fail(f"{where}: two mutants are called {name}; rename one")
                found[name] = Mutant(name, **common, **table)
        except (tomllib.TOMLDecodeError, TypeError) as error:
            fail(f"{where}: {error}")
    return list(found.values())


@functools.cache
def tokens(text):
    """Returns the C++ tokens of a text, without comments, and the begin and end of each."""
    found = [m for m in TOKEN.finditer(text) if m["skip"] is None]
    return [m[0] for m in found], [m.span() for m in found]


def words(text):
    return tokens(text)[0]


def places(text, find):
    """Returns (begin, end) of each place where the tokens of `find` occur in `text`."""
    (have, spans), want = tokens(text), words(find)
    size = len(want)
    firsts = [i for i in range(len(have) - size + 1) if have[i : i + size] == want] if want else []
    return [(spans[i][0], spans[i + size - 1][1]) for i in firsts]


def mutated(text, m):
    (begin, end), = places(text, m.find)
    return text[:begin] + m.replace + text[end:]


def op_of(kernel):
    """Returns the operation type of a CUDA kernel, or None."""
    entry = re.search(rf"SLUICE_CANDIDATE\((\w+), {kernel}\)", (ROOT / CANDIDATES).read_text())
    return entry and entry[1]


def stale(mutants):
    """Yields a line for each mutant that no longer applies."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cc"))
    tests += "".join(path.read_text() for path in (ROOT / "tests").glob("*/*.h"))
    for m in mutants:
        path = ROOT / m.file
        count = len(places(path.read_text(), m.find)) if path.is_file() else None
        if count is None:
            yield f"{m.name}: {m.file} does not exist; it should contain: {m.find}"
        elif count != 1:
            yield f"{m.name}: {m.file} wanted one place, found {count}, with: {m.find}"
        if words(m.find) == words(m.replace):
            yield f"{m.name}: {m.file}: the replacement changes nothing: {m.replace}"
        if bool(m.kernel) == bool(m.tests):
            yield f"{m.name}: wanted either `tests` or `kernel`, found both or neither"
        if m.kernel and not op_of(m.kernel):
            yield f"{m.name}: {CANDIDATES} has no {m.kernel}"
        for word in re.findall(r"\w+", m.tests):
            if word not in tests:
                yield f"{m.name}: no test is called {word}: {m.tests}"


def test_matcher():
    code = """int f(/* a < b */ A<B<int>> x) {  // a < b, isn't it
      return x.a
          <b ? 0x1'0 : 1e-3f;
    }
    "a < b" R"(a < b)" a <= b '"' a<B """
    (begin, end), = places(code, "x.a < b /* here */")
    assert code[begin:end].split() == ["x.a", "<b"]
    assert len(places(code, "a < b")) == 1 and len(places(code, "B<int>")) == 1 and len(places(code, '"a < b"')) == 1
    assert not places(code, "a < c") and not places(code, "< in") and not places(code, "1e") and not places(code, " ")
    assert words("a>>=b->*c") == ["a", ">", ">=", "b", "->*", "c"]
    assert words("0x1'0+1e-3f+.5") == ["0x1'0", "+", "1e-3f", "+", ".5"]
    assert words(r''''\'' "\"" u8R"x()")x" z''') == [r"'\''", r'"\""', 'u8R"x()")x"', "z"]
    assert mutated("y = a<b;", Mutant("", "", "", "a < b", "a > b")) == "y = a > b;"


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", **options)


def copy_tree():
    """Writes only files that differ, because builds compare modification times."""
    names = run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True).stdout.splitlines()
    wanted = {name for name in names if (ROOT / name).is_file()}
    for old in [p for p in COPY.rglob("*") if p.is_file() and str(p.relative_to(COPY)) not in wanted]:
        old.unlink()
    for name in wanted:
        content = (ROOT / name).read_bytes()
        copy = COPY / name
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)


def build(programs):
    return run(["cmake", "--build", BUILD, "--target", *sorted(programs)])


def tests_of(m):
    return run([BUILD / "tests" / m.program, f"--gtest_filter={m.tests}"])


def try_all(chosen):
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    for m in [m for m in chosen if m.needs and m.needs not in flags]:
        print(f"{m.name:32} skipped: this processor lacks {m.needs}")
        chosen.remove(m)
    if not chosen:
        return 0
    print("building the unchanged tree", flush=True)
    copy_tree()
    run(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DSLUICE_BENCH=OFF", "-DSLUICE_UNITY=OFF"], check=True)
    programs = {m.program for m in chosen}
    first = build(programs)
    if first.returncode:
        fail(f"the unchanged tree does not compile:\n{first.stdout[-3000:]}")
    for m in {(m.program, m.tests): m for m in chosen}.values():
        healthy = tests_of(m)
        if healthy.returncode or "[  PASSED  ] 0 tests" in healthy.stdout:
            fail(f"{m.tests} matches no test of {m.program}, or a test that fails in the unchanged tree")
    survived = 0
    for m in chosen:
        file, started = COPY / m.file, time.time()
        original = file.read_text()
        file.write_text(mutated(original, m))
        built = build({m.program})
        if built.returncode:
            fail(f"{m.name} does not compile:\n{built.stdout[-2000:]}")
        result = tests_of(m)
        failed = sum(line.startswith("[  FAILED  ]") and line.endswith("ms)") for line in result.stdout.splitlines())
        survived += result.returncode == 0
        by = f"{failed} test{'s' if failed != 1 else ''}" if failed else "a crash"
        word = f"caught by {by}" if result.returncode else "SURVIVED"
        print(f"{m.name:32} {word:22} {m.breaks} ({time.time() - started:.0f} s)", flush=True)
        file.write_text(original)
    build(programs)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants caught")
    return 1 if survived else 0


def main(arguments):
    mutants = load()
    if arguments == ["--list"]:
        for m in mutants:
            print(f"{m.name:40} {m.file}{' (on a GPU)' if m.kernel else ''}: {m.breaks}")
        return 0
    test_matcher()
    broken = list(stale(mutants))
    on_cpu = {m.name: m for m in mutants if not m.kernel}
    if broken or arguments == ["--check"]:
        print("\n".join(broken) or f"{len(mutants)} mutants apply, {len(mutants) - len(on_cpu)} of them to CUDA kernels")
        return 1 if broken else 0
    if unknown := set(arguments) - set(on_cpu):
        fail(f"unknown mutants: {', '.join(sorted(unknown))}; --list shows all, and ./dev gpu --mutations builds those of CUDA kernels")
    return try_all([on_cpu[name] for name in arguments or on_cpu])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
