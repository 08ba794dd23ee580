#!/usr/bin/env python3
"""Compiles vLLM's ll_bf16 router GEMMs (CuTe DSL) to cubins for sm_90a and writes them as one C++ header.

usage: vllm_ll_bf16_export.py VLLM_SOURCE HEADER

Runs without a GPU. The kernel of each shape is taken from vLLM's tables for SM90. Requires the package nvidia-cutlass-dsl[cu13] in
the version that vLLM pins.
"""
import ast
import importlib.util
import os
import pathlib
import re
import sys
import tempfile

os.environ["CUTE_DSL_ARCH"] = "sm_90a"
import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cuda.bindings.driver import CUstream  # noqa: E402
from cutlass.cute.runtime import make_fake_tensor  # noqa: E402

SHAPES = [(4096, 256), (7168, 256), (7168, 384), (2688, 128), (4096, 512), (5120, 384), (2880, 32), (2880, 128)]
TABLES = ("_DEFAULT_", "_SM90_")


def load(folder, name):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables_of(path):
    """Returns the module-level constants that dispatch() reads, without importing the file, which needs torch."""
    wanted = []
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id.startswith(TABLES):
            wanted.append(ast.Assign([target], node.value))
    found = {}
    exec(compile(ast.fix_missing_locations(ast.Module(wanted, [])), str(path), "exec"), found)
    return found


def dispatch(t, m, k, n):
    """Returns what LLBf16Gemm.dispatch() chooses on SM90: ('dotprod', M, K, threads) or ('splitk', split_k, stages, 0)."""
    if m <= t["_DEFAULT_DOTPROD_MAX_M"] or k < 2048:
        return ("dotprod", m, k, t["_SM90_TUNED_DOTPROD_BS"].get((k, n), {}).get(m, t["_DEFAULT_DOTPROD_BS"]))
    return ("splitk", *t["_SM90_TUNED_SPLITK_CONFIGS"].get((k, n), {}).get(m, t["_DEFAULT_SPLITK_CONFIG"]), 0)


def tensor(dtype, rows, columns, divisibility):
    stride = (cute.sym_int64(divisibility=divisibility), 1)
    return make_fake_tensor(dtype, (rows, columns), stride, assumed_align=max(divisibility * dtype.width // 8, 1))


def cubin_of(modules, key, out):
    """Compiles one kernel; returns (cubin, kernel name)."""
    dotprod, splitk = modules
    bf16 = cutlass.BFloat16
    with tempfile.TemporaryDirectory() as folder:
        keep = f"--keep-cubin --dump-dir={folder}"
        if key[0] == "splitk":
            m, k, n = cute.sym_int(), cute.sym_int(), cute.sym_int()
            gemm = splitk.LLBf16SplitK(out_dtype=out, tile_n=16, tile_k=256, num_stages=key[2], num_dma_warps=4,
                                       split_k=key[1], use_pdl=True)
            cute.compile(gemm, tensor(bf16, m, k, 8), tensor(bf16, n, k, 8), tensor(out, m, n, 1), CUstream(0), options=keep)
        else:
            _, m, k, threads = key
            n = cute.sym_int()
            gemm = dotprod.LLBf16Dotprod(k=k, bs=threads, use_pdl=True, prefetch_pdl_weights=m == 1)
            cute.compile(gemm, tensor(bf16, m, k, 8), tensor(bf16, n, k, 8), tensor(out, m, n, 1), m, k, 1, CUstream(0),
                         options=keep + " --ptxas-options -maxrregcount=64")
        (file,) = pathlib.Path(folder).glob("*.cubin")
        data = file.read_bytes()
    return data, re.search(rb"\.text\.(\w+)", data).group(1).decode()


def main(source, header):
    folder = pathlib.Path(source) / "vllm/model_executor/kernels/linear/cute_dsl"
    tables = tables_of(folder / "ll_bf16.py")
    modules = load(folder, "_ll_bf16_dotprod"), load(folder, "_ll_bf16_splitk")
    index, arrays, cubins, uses = {}, [], [], []
    for k, n in SHAPES:
        for m in range(1, 17):
            key = dispatch(tables, m, k, n)
            for is_f32, out in enumerate((cutlass.BFloat16, cutlass.Float32)):
                if (key, is_f32) not in index:
                    i = index[key, is_f32] = len(index)
                    data, name = cubin_of(modules, key, out)
                    rows = [",".join(map(str, data[at : at + 64])) for at in range(0, len(data), 64)]
                    arrays.append(f"alignas(64) const unsigned char kCubin{i}[] = {{\n" + ",\n".join(rows) + "};\n")
                    cubins.append(f'    {{kCubin{i}, "{name}", {int(key[0] == "splitk")}, {key[1]}, {key[2]}, {key[3]}}},\n')
                uses.append(f"    {{{m}, {k}, {n}, {is_f32}, {index[key, is_f32]}}},\n")
    pathlib.Path(header).write_text("".join(
        ["// Written by vllm_ll_bf16_export.py.\n", *arrays,
         "// The cubin, its kernel, whether it splits K; then M, K, threads or split_k, stages, 0.\n"
         "const Cubin kCubins[] = {\n", *cubins, "};\n",
         "// M, K, N, whether the logits are f32, index in kCubins.\nconst Use kUses[] = {\n", *uses, "};\n"]))
    print(f"{len(cubins)} cubins for {len(uses)} problems")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
