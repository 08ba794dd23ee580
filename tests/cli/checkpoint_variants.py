"""Variants of the shipped checkpoint: files as other tools save them, and other types, configs and shards. Uses only the standard
library."""
import array
import json
import math
import os
import shutil
import struct

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHIPPED = os.path.join(ROOT, "models", "sluice-16e-tiny")
JSONS = ("config.json", "tokenizer.json", "generation_config.json")
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def read_tensors(path=os.path.join(SHIPPED, "model.safetensors")):
    """name: (type, shape, bytes)"""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def write_tensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def words(data):
    out = array.array("H")
    out.frombytes(data)
    return out


def as_f32(tensor):
    """Converts f32 to bf16 by keeping the upper half of each number."""
    halves = array.array("H", bytes(2 * len(tensor[2])))
    halves[1::2] = words(tensor[2])
    return "F32", tensor[1], halves.tobytes()


def as_f16(tensor):
    kind, shape, data = as_f32(tensor)
    count = len(data) // 4
    return "F16", shape, struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", data))


def convert(tensors, to, which=lambda name: True):
    return {name: to(t) if t[0] == "BF16" and which(name) else t for name, t in tensors.items()}


def bf16_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def dequantized(tensors):
    """MXFP4 experts as bf16, transposed, as transformers and PEFT save them; every value is exact."""
    pairs = {}
    out = {}
    for name, (kind, shape, data) in tensors.items():
        if name.endswith("_scales"):
            continue
        if not name.endswith("_blocks"):
            out[name] = kind, shape, data
            continue
        scales = tensors[name.replace("_blocks", "_scales")][2]
        experts, rows, blocks, half = shape
        width = blocks * 2 * half
        made = array.array("H", bytes(2 * experts * rows * width))
        for row in range(experts * rows):
            expert, r = divmod(row, rows)
            line = array.array("H")
            for block in range(blocks):
                scale = scales[row * blocks + block]
                if scale not in pairs:
                    low = [bf16_bits(math.ldexp(v, scale - 127)) for v in E2M1]
                    pairs[scale] = [struct.pack("<HH", low[byte & 15], low[byte >> 4]) for byte in range(256)]
                at = (row * blocks + block) * half
                line.frombytes(b"".join([pairs[scale][byte] for byte in data[at:at + half]]))
            made[expert * width * rows + r:(expert + 1) * width * rows:rows] = line
        out[name[:-len("_blocks")]] = "BF16", [experts, width, rows], made.tobytes()
    return out


def save(directory, tensors=None, shards=1, **changes):
    """A directory with `tensors` (None: links to the shipped files) and the shipped JSON files; changes[stem] changes the file of that
    stem."""
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    for file in JSONS:
        with open(os.path.join(SHIPPED, file), encoding="utf-8") as f:
            content = json.load(f)
        change = changes.get(file.split(".")[0])
        if change is not None:
            content = change(content) or content
        with open(os.path.join(directory, file), "w", encoding="utf-8") as f:
            json.dump(content, f)
    if tensors is None:
        os.symlink(os.path.join(SHIPPED, "model.safetensors"), os.path.join(directory, "model.safetensors"))
    elif shards == 1:
        write_tensors(os.path.join(directory, "model.safetensors"), tensors)
    else:
        names = list(tensors)
        weight_map = {name: f"model-{i * shards // len(names) + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
        for shard in sorted(set(weight_map.values())):
            write_tensors(os.path.join(directory, shard), {n: tensors[n] for n in names if weight_map[n] == shard})
        with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            json.dump({"metadata": {"total_size": 1}, "weight_map": weight_map}, f)
    return directory
