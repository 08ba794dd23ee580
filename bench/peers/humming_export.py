"""Compiles the kernels that humming_layer.py launches, on a machine without a GPU.

usage: python3 humming_export.py FOLDER [--package DIR] [--models LIST] [--tokens LIST]

Requires torch, the dependencies of humming-kernels, and CUDA's headers with NVRTC (or nvcc, with HUMMING_COMPILER=nvcc). Humming
chooses kernels by the properties of its GPU; this program substitutes those of an H200.
"""

import argparse
import itertools
import json
import os
import sys

import torch

from layer_bench import BY_DEFAULT, MODELS, TOKENS

H200 = {
    "index": 0, "name": "NVIDIA H200", "is_ppu": False, "sm_count": 132, "sm_major": 9, "sm_minor": 0, "sm_version": 90,
    "max_threads_per_block": 1024, "max_threads_per_sm": 2048, "max_registers_per_sm": 65536, "l2_cache_size": 60 << 20,
    "l2_cache_size_mb": 60.0, "l1_cache_size": 256 << 10, "l1_cache_size_kb": 256.0, "default_smem_size": 48 << 10,
    "max_smem_size": 227 << 10, "max_smem_size_kb": 227.0, "memory_clock_khz": 3201000, "memory_bus_width": 6144,
    "sm_clock_khz": 1980000, "memory_bandwidth_gbps": 4917.0, "tensorcore_tops": {},
}


class NoSwitch:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def answer_as_h200():
    import humming.device as device
    import humming.ops as ops

    torch.cuda.current_device = lambda: 0
    torch.cuda.device = NoSwitch
    info = type("Info", (), H200)()
    one = object.__new__(device.DeviceInfo)
    one._index, one._value = 0, info
    device.DeviceInfo._instances[0] = one
    device.current_device._value = info
    # Kernels are not loaded, so they have no id.
    ops.register_kernel = lambda path: (0, "humming")
    ops.register_process_input_kernel = lambda path: (0, "process_input_kernel")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--package")
    parser.add_argument("--models", type=lambda text: text.split(","), default=BY_DEFAULT)
    parser.add_argument("--tokens", type=lambda text: [int(w) for w in text.split(",")], default=TOKENS)
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, options.package)
    os.environ["HUMMING_DISABLE_PARALLEL_BUILD"] = "1"
    os.makedirs(options.folder, exist_ok=True)
    answer_as_h200()
    from humming import dtypes
    from humming.config import ProcessInputProblemConfig
    from humming.kernel.humming import HummingKernel
    from humming.kernel.process_input import ProcessInputKernel
    from humming.kernel.repack_weight import RepackWeightKernel
    from humming.tune.process_input import get_process_input_tuning_intervals

    from humming_layer import FORMS, Layer, keep_cubins

    keep_cubins(options.folder)
    RepackWeightKernel(
        weight_bits=4, activation_bits=16, is_weight_packed=True, should_preprocess_for_int2fp=False,
        should_preprocess_with_zp=False, use_fused_e8m0_scale=False, group_size_zp=0, use_packed_k_layout=False,
        use_native_dequant=False,
    )

    def prepare_input(hidden, **more):
        config = ProcessInputProblemConfig(input_dtype=dtypes.bfloat16, hidden_size=hidden, quant_mode="none", **more)
        ProcessInputKernel.prepare_kernels(config, get_process_input_tuning_intervals(config, False), 0)

    for name, form in itertools.product(options.models, FORMS):
        layer = Layer(MODELS[name], form)
        prepare_input(layer.model.inner, **layer.activation)
        if form == "grouped":
            prepare_input(layer.model.hidden, layout="scatter", scatter_width=layer.model.top_k)
        for tokens in options.tokens:
            for gemm in ("up", "down"):
                tuning, block = layer.tuning(gemm, tokens)
                HummingKernel.prepare_kernels(layer.configs[gemm].to_str(), layer.compute, tuning, 0)
                print(f"{form} {name} {gemm} M={tokens}: blocks of {block} rows", flush=True)
    with open(os.path.join(options.folder, "tuning.json"), "w") as file:
        json.dump(Layer.tables, file)
    print(f"{options.folder}: {len(os.listdir(options.folder)) - 1} kernels")


if __name__ == "__main__":
    main()
