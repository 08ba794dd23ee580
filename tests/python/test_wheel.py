"""The installed wheel: its contents, its system requirements, and its command."""
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import sluice_moe
from sluice_moe import capi, doctor

MAX_BYTES = 12 << 20


@pytest.fixture(scope="module")
def installed():
    """The distribution that contains the imported package."""
    try:
        found = importlib.metadata.distribution("sluice_moe")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("sluice_moe is imported from a folder, not from a wheel")
    assert pathlib.Path(found.locate_file("sluice_moe")).resolve() == pathlib.Path(sluice_moe.__file__).resolve().parent
    return found


def test_tags_and_needs(installed):
    wheel = installed.read_text("WHEEL")
    assert re.findall(r"^Tag: (.*)$", wheel, re.MULTILINE) == ["py3-none-manylinux_2_34_x86_64"]
    assert not installed.requires and installed.metadata["Requires-Python"] == ">=3.10"
    assert installed.version == sluice_moe.__version__ == sluice_moe.version()


def test_entry_points(installed):
    found = {(e.group, e.name): e.value for e in installed.entry_points}
    assert found == {("vllm.general_plugins", "sluice"): "sluice_moe.vllm:register",
                     ("sglang.srt.plugins", "sluice"): "sluice_moe.sglang:register"}


def test_files(installed):
    files = {str(f) for f in installed.files if ".dist-info/" not in str(f) and "__pycache__" not in str(f)}
    assert {"sluice_moe/py.typed", "sluice_moe/_lib/libsluice.so", "sluice_moe/__main__.py"} <= files
    strange = {f for f in files if not re.fullmatch(r"sluice_moe/[\w/]+\.py|sluice_moe/py\.typed|sluice_moe/_lib/libsluice\.so"
                                      r"|sluice_moe\.libs/lib(hwy|pcre2)[\w.-]+", f)}
    assert not strange


def test_the_library_is_the_package_s_own_and_wants_an_old_system(installed):
    path = capi.library_path()
    assert path.parent.name == "_lib" and path.is_file()
    readelf = shutil.which("readelf")
    assert readelf, "wanted readelf, found none"
    needed = re.findall(r"NEEDED.*\[(.*?)\]", subprocess.run([readelf, "-dW", path], capture_output=True, text=True, check=True).stdout)
    assert not [n for n in needed if n.startswith(("libstdc++", "libcuda", "libtorch", "libpython"))], needed
    versions = subprocess.run([readelf, "-VW", path], capture_output=True, text=True, check=True).stdout
    newest = max(tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", versions))
    assert newest <= (2, 34) and "GLIBCXX" not in versions
    exported = subprocess.run([shutil.which("nm"), "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1].split("_")[0] for line in exported.splitlines()} == {"sluice"}


def test_size(installed):
    wheels = list(pathlib.Path(__file__).parents[2].glob("dist/sluice_moe-*.whl"))
    assert len(wheels) == 1, "wanted one wheel in dist/: ./dev wheel makes it"
    assert wheels[0].stat().st_size < MAX_BYTES


def test_a_bare_environment_installs_uses_and_uninstalls_it(installed, root, tmp_path):
    def run(*words):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=300, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", *root.glob("dist/sluice_moe-*.whl"))
    program = "import sluice_moe; print(sluice_moe.version(), sluice_moe.why_not('gpt-oss-120b', tokens_max=8))"
    assert run(python, "-c", program).split() == [sluice_moe.version(), "None"]
    assert "missing       torch 2.10 or newer" in run(python, "-m", "sluice_moe", "doctor")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "sluice_moe")
    assert not list((tmp_path / "bare").rglob("*sluice*"))


def command(*words):
    return subprocess.run([sys.executable, "-m", "sluice_moe", *words], capture_output=True, text=True, timeout=120, cwd="/")


def test_command(installed):
    assert command("--version").stdout == f"sluice {sluice_moe.version()}\n"
    said = command("explain", "router_gemm", "--experts", "128", "--hidden", "2880", "--device", "h200")
    assert said.returncode == 0 and "cuda.router_gemm" in said.stdout
    wrong = command("no-such-command")
    assert wrong.returncode == 2 and "no-such-command" in wrong.stderr and not wrong.stdout
    assert "python -m sluice_moe explain" in command("explain", "--help").stdout


def test_command_runs_the_model_that_ships_with_the_repository(installed, root):
    said = command("run", str(root / "models/sluice-16e-tiny"), "-p", "What is 417 + 268?")
    assert said.returncode == 0 and "685" in said.stdout, said.stdout + said.stderr


def test_doctor(installed):
    said = command("doctor")
    assert said.returncode == 0, said.stderr
    names = [line[:14].strip() for line in said.stdout.splitlines()]
    assert len(names) <= 24 and {"sluice_moe", "python", "packages", "cpu", "torch"} <= set(names)
    assert "gpt-oss-120b, 1 token" in said.stdout and max(map(len, said.stdout.splitlines())) < 300
    assert command("doctor", "now").returncode == 2


def test_doctor_without_a_gpu_says_so():
    lines, missing = doctor.report()
    has_gpu = any(name == "cuda" for name, _ in lines)
    assert has_gpu != any(text.startswith("an NVIDIA Hopper GPU: cuda: wanted") for text in missing)


def test_type_hints(installed):
    source = pathlib.Path(sluice_moe.__file__).parent
    assert (source / "py.typed").read_bytes() == b""
