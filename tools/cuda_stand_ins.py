#!/usr/bin/env python3
"""Makes stub libraries in place of CUDA's, so that PyPI's torch imports on a machine without a GPU. For tests only.

  cuda_stand_ins.py SITE_PACKAGES

PyPI has no CPU build of torch for Linux. Its CUDA build loads 2 GB of CUDA libraries on import, but calls none of them without a GPU.
This program reads which libraries and functions SITE_PACKAGES/torch/lib needs, and writes stubs with these names into
SITE_PACKAGES/nvidia/cu13/lib, where torch looks for them. Every stub returns 999, an error in all CUDA APIs. The CUDA runtime remains
the real one (nvidia-cuda-runtime, 2 MB). The dependencies on NVIDIA's packages and on triton are removed from torch's metadata, so that
pip does not fetch them later. Requires gcc and binutils.
"""
import collections
import ctypes
import pathlib
import re
import subprocess
import sys

# Libraries whose symbols have no version, and the prefix of their symbols.
UNVERSIONED = {
    "libcufile.so.0": "cuFile",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "nccl",
    "libnvshmem_host.so.3": "nvshmem",
    "libcurand.so.10": "curand",
}
# Libraries that need no stub: the system's, torch's own, and the CUDA runtime.
REAL = ("libc.", "libm.", "libdl.", "libpthread.", "librt.", "libstdc++", "libgcc_s", "ld-linux", "libgomp", "libtorch", "libc10",
        "libshm", "libcaffe2", "libcudart", "libaoti")
DRIVER = "libcuda.so.1"  # no stub if the real one is installed, because Sluice also uses it to find GPUs
UNWANTED = re.compile(r"^Requires-Dist: (nvidia-|cuda-|triton\b)", re.IGNORECASE)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needs_of(files):
    """Returns the libraries that these files load, and the functions of each as (name, version)."""
    needed, owners, functions = set(), collections.defaultdict(set), collections.defaultdict(set)
    for file in files:
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-dW", file)))
        library = None
        for line in output("readelf", "-VW", file).splitlines():
            if match := re.search(r"File: (\S+)", line):
                library = match[1]
            if (match := re.search(r"Name: (\S+)", line)) and library:
                owners[match[1]].add(library)
    for file in files:
        for line in output("nm", "-Du", file).splitlines():
            kind, symbol = line.split()[:2]
            if kind != "U":
                continue
            name, _, version = symbol.partition("@")
            version = version.lstrip("@")
            if version:
                libraries = owners.get(version, ())
            else:
                libraries = [library for library, begin in UNVERSIONED.items() if name.startswith(begin)]
            for library in libraries:
                functions[library].add((name, version))
    versions = {library: {version for version, by in owners.items() if library in by} for library in needed}
    return needed, functions, versions


def write_library(path, functions, versions):
    """Compiles a stub library that defines these (name, version) pairs and symbol versions."""
    command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", path, f"-Wl,-soname,{path.name}"]
    versions = sorted({version for _, version in functions if version} | versions)
    if versions:
        script = path.with_name(path.name + ".map")
        script.write_text("".join(
            "%s { global: %s };\n" % (version, " ".join(name + ";" for name, of in sorted(functions) if of == version))
            for version in versions))
        command.append(f"-Wl,--version-script={script}")
    source = "".join(f"int {name}(void) {{ return 999; }}\n" for name, _ in sorted(functions))
    subprocess.run(command, input=source, text=True, check=True)


def has_driver():
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


def take_out_of_metadata(site_packages):
    """Removes NVIDIA's packages and triton from the dependencies in torch's metadata."""
    for metadata in site_packages.glob("torch-*.dist-info/METADATA"):
        lines = metadata.read_text().splitlines(keepends=True)
        metadata.write_text("".join(line for line in lines if not UNWANTED.match(line)))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    site_packages = pathlib.Path(sys.argv[1])
    files = sorted((site_packages / "torch" / "lib").glob("*.so"))
    if not files:
        sys.exit(f"cuda_stand_ins.py: wanted torch in {site_packages}, found none")
    to = site_packages / "nvidia" / "cu13" / "lib"
    to.mkdir(parents=True, exist_ok=True)
    needed, functions, versions = needs_of(files)
    for library in sorted(needed):
        if not library.startswith(REAL) and not (library == DRIVER and has_driver()):
            write_library(to / library, functions[library], versions[library])
            print(f"{library}: {len(functions[library])} stubs")
    take_out_of_metadata(site_packages)


if __name__ == "__main__":
    main()
