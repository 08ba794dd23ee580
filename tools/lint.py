#!/usr/bin/env python3
"""Checks rules that a compiler cannot: includes, lengths of files and pages, functions and flags that only apps/ may use, paths in docs.

Runs in any directory. Prints one line per finding and exits with 1 if there is any.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh"}
MAX_LINES = 500
MAX_FILES = 40  # code files in one folder
MAX_PAGE_BYTES = 12 << 10  # of a page in docs/
MAX_README_LINES = 120
MAX_FILES_OF = {"src/ops": 70}  # its file names are the list of operations

# Folder -> folders whose headers it may include. The CMake targets enforce the same rules at compile time.
MAY_INCLUDE = {
    "base": {"base"},
    "text": {"text", "base"},
    "grammar": {"grammar", "text", "base"},
    "ops": {"ops", "base"},
    "dispatch": {"dispatch", "ops", "base"},
    "backends/cpu": {"backends/cpu", "dispatch", "ops", "base"},
    "backends/cuda": {"backends/cuda", "dispatch", "ops", "base"},
    "graph": {"graph", "dispatch", "ops", "base"},
    "weights": {"weights", "dispatch", "ops", "base"},
    "nn": {"nn", "graph", "weights", "dispatch", "ops", "base"},
    "models": {"models", "nn", "graph", "weights", "dispatch", "ops", "base"},
    "engine": {"engine", "models", "nn", "graph", "dispatch", "ops", "base"},
    "chat": {"chat", "engine", "models", "text", "ops", "base"},
    "server": {"server", "chat", "engine", "grammar", "models", "graph", "text", "ops", "base"},
    "client": {"client", "text", "base"},
    "capi": {"capi", "backends", "nn", "graph", "weights", "dispatch", "ops", "base", "sluice"},
}
FORBIDDEN_IN_SRC = [
    (re.compile(r"\bgetenv\b"), "reads the environment below apps/"),
    (re.compile(r"(?<!\w)(printf|puts|fputs|abort|exit)\s*\(|std::(cout|cerr|clog)\b"), "prints or ends the process"),
    (THROW := re.compile(r"\bthrow\b"), "throws below apps/"),
]
FORBIDDEN_ANYWHERE = [
    (re.compile(r"\b(TODO|FIXME|XXX)\b"), "unfinished work"),
    (re.compile(r"#\s*include\s+\"\.\.?/"), "includes by a relative path"),
    (re.compile(r"\b(_v2|legacy_)\w*"), "an old version is kept in addition to the new one"),
]
LITERAL = re.compile(r"""'(?:[^'\\]|\\.)'|"(?:[^"\\]|\\.)*"?""")
FLAG = re.compile(r"(?<![\w-])--[a-z]")
BARE_THREAD = re.compile(r"\bstd::(jthread|async|thread(?!::))\b")
PATH_IN_DOCS = re.compile(r"`((?:src|include|apps|tests|bench|docs|tools|examples|models|plugins)/[\w./*-]*|dev|\.ci/run)`")


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in out.stdout.splitlines() if (ROOT / line).is_file()]


def folder_of(path):
    parts = path.relative_to(ROOT / "src").parts
    if parts[0] != "backends":
        return parts[0]
    return "/".join(parts[:2]) if len(parts) > 2 else "backends"


def lint_code(path, text):
    relative = path.relative_to(ROOT)
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield f"{relative}: {len(lines)} lines, wanted at most {MAX_LINES}"
    in_src = relative.parts[0] == "src"
    rules = FORBIDDEN_ANYWHERE + (FORBIDDEN_IN_SRC if in_src else [])
    for number, line in enumerate(lines, 1):
        if path == pathlib.Path(__file__).resolve():
            break
        code = line.split("//")[0] if path.suffix != ".py" else line
        for pattern, why in rules:
            if pattern is THROW and folder_of(path) == "server":
                continue  # the server's libraries throw if memory is exhausted; its threads catch that
            if pattern.search(line if (pattern, why) in FORBIDDEN_ANYWHERE else code):
                yield f"{relative}:{number}: {why}: {line.strip()}"
        if in_src and any(FLAG.search(literal) for literal in LITERAL.findall(line)):
            yield f"{relative}:{number}: names a flag below apps/; options carry the names of settings: {line.strip()}"
        if relative.parts[0] in {"src", "apps", "bench"} and relative.stem != "worker_thread" and BARE_THREAD.search(code):
            yield f"{relative}:{number}: starts a thread that takes signals (base/worker_thread.h): {line.strip()}"
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if in_src and include:
            folder = folder_of(path)
            target = include.group(1)
            allowed = MAY_INCLUDE.get(folder)
            known = target.split("/")[0] in {f.split("/")[0] for f in MAY_INCLUDE} | {"apps", "backends"}
            if allowed is not None and known and not any(target.startswith(a + "/") for a in allowed):
                yield f"{relative}:{number}: {folder} may not include {target}"
        if include and relative.parts[0] == "apps" and len(relative.parts) > 2:
            room, target = relative.parts[1], include.group(1).split("/")
            if target[0] == "apps" and len(target) > 2 and target[1] not in {room, "common"}:
                yield f"{relative}:{number}: a subcommand may not include the code of another one: {include.group(1)}"
    if path.suffix == ".h" and "#pragma once" not in text and "HWY_TARGET_TOGGLE" not in text and "__cplusplus" not in text:
        yield f"{relative}: no #pragma once"


def lint_kernel_choice(path, text):
    """nn/ and models/ must not choose kernels by device, which is dispatch's task."""
    relative = path.relative_to(ROOT)
    if relative.parts[:2] not in {("src", "nn"), ("src", "models"), ("src", "engine")}:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"\bif\s*\(.*(cpu_features|\.sm\b|Backend::k)", line):
            yield f"{relative}:{number}: decides by device outside dispatch/ and backends/: {line.strip()}"


def lint_circles(headers):
    """Finds cycles of includes. headers: header -> headers that it includes."""
    done = set()
    for first in sorted(headers):
        path, left = [first], [iter(headers[first])]
        while left and first not in done:
            target = next(left[-1], None)
            if target is None:
                done.add(path.pop())
                left.pop()
            elif target in path:
                yield " -> ".join(path[path.index(target):] + [target]) + ": headers include each other"
                return
            elif target not in done and target in headers:
                path.append(target)
                left.append(iter(headers[target]))


def lint_docs(path, text):
    relative = path.relative_to(ROOT)
    size = len(text.encode())
    if relative.parts[0] == "docs" and size > MAX_PAGE_BYTES:
        yield f"{relative}: {size} bytes, wanted at most {MAX_PAGE_BYTES}"
    if relative == pathlib.Path("README.md") and len(text.splitlines()) > MAX_README_LINES:
        yield f"{relative}: {len(text.splitlines())} lines, wanted at most {MAX_README_LINES}"
    for number, line in enumerate(text.splitlines(), 1):
        for match in PATH_IN_DOCS.finditer(line):
            name = match.group(1)
            if not list(ROOT.glob(name)) if "*" in name else not (ROOT / name).exists():
                yield f"{relative}:{number}: names {name}, which does not exist"
        for target in re.findall(r"\]\(([^)#\s]+)", line):
            if "://" not in target and not (path.parent / target).exists():
                yield f"{relative}:{number}: links to {target}, which does not exist"


def lint_folders(paths):
    counts = collections.Counter(str(path.relative_to(ROOT).parent) for path in paths if path.suffix in CODE)
    for folder, count in sorted(counts.items()):
        limit = MAX_FILES_OF.get(folder, MAX_FILES)
        if count > limit:
            yield f"{folder}: {count} code files, wanted at most {limit}"


def main():
    findings, headers = list(lint_folders(tracked())), {}
    for path in tracked():
        if path.suffix in CODE or path.name == "dev":
            text = path.read_text()
            findings += lint_code(path, text)
            relative = path.relative_to(ROOT)
            if path.suffix in {".h", ".cuh"} and relative.parts[0] in {"src", "apps"}:
                name = str(relative.relative_to("src") if relative.parts[0] == "src" else relative)
                headers[name] = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M)
            findings += lint_kernel_choice(path, text)
        elif path.suffix == ".md":
            findings += lint_docs(path, path.read_text())
    findings += lint_circles(headers)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
