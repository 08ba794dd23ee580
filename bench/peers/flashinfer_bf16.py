"""FlashInfer's cutlass_fused_moe with bf16 weights, for bf16_layer.py. Loads flashinfer_bf16_moe.so, which bench/peers/build makes."""

import ctypes
import os

import torch

from layer_bench import ids_of_all


class Layer(ctypes.Structure):
    """struct Layer of flashinfer_bf16_moe.cu."""

    _fields_ = [(n, ctypes.c_int64) for n in ("tokens", "experts", "routed", "top_k", "hidden", "inner", "gated")] + [
        (n, ctypes.c_void_p) for n in ("x", "up", "down", "ids", "weights", "y", "meta", "scratch")
    ]


LAYER, GROUP, GEMMS = range(3)


class FlashinferPeer:
    impl = "flashinfer-cutlass"

    def __init__(self, path):
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.flashinfer_version.restype = self.lib.flashinfer_text.restype = ctypes.c_char_p
        self.lib.flashinfer_meta_bytes.restype = self.lib.flashinfer_scratch_bytes.restype = ctypes.c_int64
        self.version = self.lib.flashinfer_version().decode()

    def text(self):
        return self.lib.flashinfer_text().decode()

    def prepare(self, model, tokens, w, x, ids, weights):
        self.model, self.scratch = model, None
        for one in w if model.gated else ():
            if not hasattr(one, "ups_first"):  # FlashInfer needs all ups first, then all gates
                one.ups_first = torch.cat(one.up.chunk(2, 1)[::-1], 1)
        self.ones = torch.ones_like(weights[0])
        given = self.given(x[0], self.global_ids(ids[0]), weights[0], w[0], torch.empty_like(x[0]))
        self.meta_bytes = self.lib.flashinfer_meta_bytes(ctypes.byref(given))
        self.scratch = torch.zeros(self.lib.flashinfer_scratch_bytes(ctypes.byref(given)), dtype=torch.uint8, device="cuda")
        given.scratch = self.scratch.data_ptr()
        torch.cuda.synchronize()
        if self.lib.flashinfer_choose(ctypes.byref(given)):
            raise RuntimeError(self.text())
        self.config = self.text()

    def given(self, x, ids, weights, w, y, meta=None):
        m = self.model
        pointer = lambda t: None if t is None else t.data_ptr()
        up = None if w is None else w.ups_first if m.gated else w.up
        return Layer(x.shape[0], m.experts, m.routed, m.top_k, m.hidden, m.inner, m.gated, pointer(x), pointer(up),
                     None if w is None else pointer(w.down), pointer(ids), pointer(weights), pointer(y), pointer(meta),
                     pointer(self.scratch))

    def enqueue(self, part, given):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.lib.flashinfer_enqueue(ctypes.byref(given), ctypes.c_int64(part), stream):
            raise RuntimeError(self.text())

    def global_ids(self, ids):
        return ids_of_all(self.model, ids)

    def ready(self, x, ids):
        """Returns the input of `gemms`: the rows of x sorted by expert."""
        ids, meta = self.global_ids(ids), torch.empty(self.meta_bytes, dtype=torch.uint8, device="cuda")
        self.enqueue(GROUP, self.given(x, ids, self.ones, None, None, meta))
        return x, ids, meta

    def gemms(self, ready, w, weights):
        x, ids, meta = ready
        y = torch.empty_like(x)
        self.enqueue(GEMMS, self.given(x, ids, weights, w, y, meta))
        return y

    def layer(self, x, ids, weights, w):
        y = torch.empty_like(x)
        self.enqueue(LAYER, self.given(x, ids, weights, w, y))
        return y
