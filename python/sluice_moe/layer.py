"""MoeLayer: a Mixture-of-Experts layer, from the router to the weighted sum of the experts, as a torch module."""
from __future__ import annotations

import ctypes
import itertools
import weakref
from typing import Mapping, Optional, Sequence

import torch

from . import capi, ops
from .devices import aligned_bytes, open_device, wanted_device
from .errors import InvalidArgument, NoGradient, Unsupported
from .explain import LayerOptions
from .launch import TORCH_DTYPES, Launches
from .weights import CallersWeights, packed_bytes_of

_numbers = itertools.count(1)
_moe_layer, _moe_layer_out = torch.ops.sluice.moe_layer.default, torch.ops.sluice.moe_layer_out.default


class MoeLayer(torch.nn.Module):
    """A Mixture-of-Experts layer: y = sum over the chosen experts of weight * expert(x) (+ shared expert, + residual).

    model       a known layer ("gpt-oss-120b"); None: the layer is given by its fields alone
    tokens_max  the largest number of tokens of one call
    device      cpu or cuda, where the weights are packed and the layer runs; None: torch's default device
    tp, ep      (rank, size) of tensor and expert parallelism. Tensor-parallel ranks split the width inside the experts, expert-parallel
                ranks split the experts. The outputs of all ranks add up to the output of the layer
    kernel      the only kernel allowed, "NAME" or "NAME:CONFIG"; None: the fastest
    kernel_decode, kernel_prefill  the kernel of the routed experts for calls of at most decode_tokens tokens, and for longer calls, as
                explain() prints it ("cuda.expert_gemm.mxfp4_tile_sm90") or its last part; None: the fastest
        decode_tokens  the most tokens of a call that uses kernel_decode; 0: 64
    batch_invariant  the output of a row does not depend on the other rows
    threads     threads that pack weights on the CPU; 0: one per processor
    **fields    override the model's: hidden, intermediate, experts, top_k, expert_w="e2m1"|"bf16"|"e4m3", expert_scales="mx"|"nv"|"blocks"|"rows", gate_order, act,
                input="logits"|"precomputed"|"packed", ...: `sluice_moe.capi.layer_fields()` lists them

    load() sets the weights. They are packed for the kernels of this device in one buffer, `packed` (u8 [weight_bytes]). state_dict() has
    them, with hashes, as extra state. There is no backward pass.
    """

    def __init__(self, model: Optional[str] = None, *, tokens_max: int = 8192, device: torch.device | str | int | None = None,
                 tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1), kernel: Optional[str] = None,
                 batch_invariant: bool = False, threads: int = 0, kernel_decode: Optional[str] = None, kernel_prefill: Optional[str] = None,
                 decode_tokens: int = 0, **fields):
        super().__init__()
        self._made_with = dict(model=model, tokens_max=tokens_max, tp=capi.pair(tp, "tp"), ep=capi.pair(ep, "ep"), kernel=kernel,
                               batch_invariant=batch_invariant, threads=threads, kernel_decode=kernel_decode,
                               kernel_prefill=kernel_prefill, decode_tokens=decode_tokens, **fields)
        self._options = LayerOptions(model, tokens_max=tokens_max, tp=tp, ep=ep, kernel=kernel, batch_invariant=batch_invariant,
                                     threads=threads, kernel_decode=kernel_decode, kernel_prefill=kernel_prefill,
                                     decode_tokens=decode_tokens, fields=fields)
        self.tokens_max = tokens_max
        self._opened = open_device(wanted_device(device))
        weight_bytes, workspace_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        capi.call("sluice_layer_measure", self._opened.handle, self._options.struct, weight_bytes, workspace_bytes)
        self.weight_bytes: int = weight_bytes.value
        self.workspace_bytes: int = workspace_bytes.value
        self.register_buffer("packed", aligned_bytes(self.weight_bytes, self._opened.torch_device), persistent=False)
        self.is_loaded = False
        self._create()
        # Operations find the layer by this number, because a torch graph can hold a number but no object.
        self.handle: int = next(_numbers)
        ops.register_layer(self.handle, self)

    def _create(self) -> None:
        opened = self._opened
        self._options.struct.weights = self.packed.data_ptr()
        self._options.struct.weights_bytes = self.weight_bytes
        handle = ctypes.c_void_p()
        capi.call("sluice_layer_create", opened.handle, self._options.struct, handle)
        self._native: int = handle.value
        self._launches = Launches(opened)
        weakref.finalize(self, opened.retire, capi.lib.sluice_layer_destroy, self._native).atexit = False
        self.text: str = capi.lib.sluice_layer_text(self._native).decode()
        self.fields: dict[str, str] = dict(word.split("=", 1) for word in self.text.split())
        self.hidden = int(self.fields["hidden"])
        self.top_k = int(self.fields["top_k"])
        self.dtype = TORCH_DTYPES[self.fields["x"]]

    @property
    def device(self) -> torch.device:
        return self._opened.torch_device

    # ---- Weights ----

    def load(self, tensors: Mapping[str, torch.Tensor], *, naming: Optional[str] = None, layer: int = -1) -> None:
        """Packs the weights of a checkpoint, in place if the layer has weights already, so captured graphs stay valid.

        tensors  of the whole layer by name, on the CPU or on the layer's device. Only this rank's slice is packed; a tensor of all
                 experts may also hold only the experts of this rank. Tensors of other layers are ignored
        naming   gpt_oss, gpt_oss_original, gpt_oss_bf16, deepseek_v4, deepseek_v3, qwen3_moe, nemotron3, minimax_m2, llama4, minimax_m3,
                 mistral_large_3, glm5_next or plain; None: recognized from the names. plain: router [experts, hidden], router_bias [experts],
                 experts.up [experts, rows, width], experts.up_bias [experts, rows], experts.down... Scales, by expert_scales:
                 mx: experts.up_scale u8 [experts, rows, width / 32]; blocks: experts.up_scale f32 [experts, rows / 128, width / 128], rounded
                 up; nv: experts.up_scale e4m3 [experts, rows, width / 16]; nv and rows: experts.up_row_scale f32 [experts, rows] or [experts]
        layer    the layer's number in the names; -1: the names contain a single layer

        The layer must not run during the call. If the call raises, the layer keeps its old weights.
        """
        self._reopen_after_fork()
        given = CallersWeights(self._opened, tensors, naming, layer)
        capi.call("sluice_layer_load", self._native, given.struct)
        self.is_loaded = True

    def replace_expert(self, expert: int, tensors: Mapping[str, torch.Tensor], *, naming: Optional[str] = None, layer: int = -1) -> None:
        """Overwrites one expert, numbered in the whole layer, and its biases in place. A tensor of all experts may hold only this expert,
        [1, ...]."""
        self._reopen_after_fork()
        given = CallersWeights(self._opened, tensors, naming, layer)
        capi.call("sluice_layer_replace_expert", self._native, capi.integer(expert, "expert"), given.struct)

    def replace_adapter(self, adapter: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrites one LoRA adapter in place, so captured graphs stay valid. Adapters of the experts add nothing until this call.

        tensors  with lora_rank: lora_a [rank, hidden], lora_b [experts, rank] and lora_scale f32 [1]. With expert_lora_rank:
                 experts.up_lora_a [experts, inner, width], experts.up_lora_b [experts, rows of W13 in the order of gate_order, rank],
                 experts.down_lora_a [experts, rank, intermediate], experts.down_lora_b [experts, width, rank] and experts.lora_scale
                 f32 [1]; inner is rank, or with expert_lora_split twice the rank: gate's rows, then up's; width is hidden, or latent.
                 Of the whole layer; the experts may be this rank's alone. The layer must have weights

        The layer must not run during the call. If the call raises, the layer keeps its old adapter.
        """
        self._reopen_after_fork()
        given = CallersWeights(self._opened, tensors, "plain", -1)
        capi.call("sluice_layer_replace_adapter", self._native, capi.integer(adapter, "adapter"), given.struct)

    def packed_bytes(self) -> torch.Tensor:
        """Returns the packed weights as a safetensors file with the layer's fields and hashes: u8 [bytes] on the CPU."""
        return packed_bytes_of(self._native)

    def load_packed(self, packed: torch.Tensor) -> None:
        """The inverse of packed_bytes(): loads u8 [bytes] of a layer with the same fields, slice and device type."""
        if packed.dtype is not torch.uint8 or packed.dim() != 1:
            raise InvalidArgument(f"packed: wanted uint8 [bytes], found {packed.dtype} {list(packed.shape)}")
        self._reopen_after_fork()
        packed = packed.cpu().contiguous()
        CallersWeights.wait(self._opened)
        capi.call("sluice_layer_read_packed", self._native, packed.data_ptr(), packed.numel())
        self.is_loaded = True

    def get_extra_state(self) -> torch.Tensor:
        return self.packed_bytes() if self.is_loaded else torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        if state.numel():
            self.load_packed(state)

    # ---- Running ----

    def forward(self, x: torch.Tensor, *, residual: Optional[torch.Tensor] = None, token_ids: Optional[torch.Tensor] = None,
                adapter: Optional[torch.Tensor] = None, ids: Optional[torch.Tensor] = None, weights: Optional[torch.Tensor] = None,
                packed: Optional[torch.Tensor] = None, tokens_valid: Optional[torch.Tensor] = None,
                out: Optional[torch.Tensor] = None, captured: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Runs the layer on torch's current stream.

        x             [..., hidden]; rows may be strided. The leading dimensions, here and below, are flattened to tokens
        residual      [..., hidden], with the field residual: added to the output
        token_ids     i32 [tokens], with method="hash"
        adapter       i32 [tokens], with lora_rank or expert_lora_rank: the adapter of each token; -1: none
        ids, weights  i32 or i64, and f32 [tokens, top_k], with input="precomputed": the experts and their weights; a negative id is an
                      empty slot
        packed        i32 [tokens, top_k], with input="packed": id << 16 | bits of the weight in bf16
        tokens_valid  i32 [1], with the field padded: the number of valid rows
        out           [..., hidden]: the output tensor; None: a new one. May be residual
        captured      i32 [tokens, top_k], with the field capture: receives the chosen experts

        Returns the output, in the shape of x.
        """
        shape = x.shape
        if x.dim() != 2:
            x, residual, out = (_flat(n, t, self.hidden) for n, t in (("x", x), ("residual", residual), ("out", out)))
            ids, weights, packed, captured = (_flat(n, t, self.top_k) for n, t in (("ids", ids), ("weights", weights), ("packed", packed),
                                                                                   ("captured", captured)))
            token_ids, adapter = (t if t is None else t.reshape(-1) for t in (token_ids, adapter))
        if out is None and captured is None:
            out = _moe_layer(x, self.packed, self.handle, residual=residual, token_ids=token_ids, adapter=adapter, ids=ids,
                             weights=weights, packed_in=packed, tokens_valid=tokens_valid)
            if out.requires_grad and not torch.compiler.is_compiling():
                out.register_hook(_no_gradient)
        else:
            if x.requires_grad and torch.is_grad_enabled():
                _no_gradient()
            if out is None:
                out = torch.empty_like(x)
            _moe_layer_out(x, self.packed, self.handle, residual=residual, token_ids=token_ids, adapter=adapter, ids=ids,
                           weights=weights, packed_in=packed, tokens_valid=tokens_valid, out=out, captured=captured)
        return out if out.shape == shape else out.view(shape)

    def _run(self, names: tuple[str, ...], tensors: list[torch.Tensor]) -> None:
        if self._opened.forked:
            self._reopen_after_fork()
        self._launches.run(names, tensors, capi.lib.sluice_layer_run, self._native, self.workspace_bytes)

    def explain(self, tokens: int | Sequence[int] = 1) -> str:
        """Returns text: the kernels for a number of tokens, or for each of several numbers, and why they were chosen."""
        counts = [tokens] if isinstance(tokens, int) else list(tokens)
        return capi.whole_text("sluice_layer_explain", self._native, capi.counts(counts, "tokens"), len(counts))

    # ---- torch.nn.Module ----

    def _reopen_after_fork(self) -> None:
        """Opens the CPU device again in a forked child, with the same weights. A GPU cannot be opened again after a fork."""
        if not self._opened.forked:
            return
        packed = self.packed_bytes() if self._opened.where == capi.CPU and self.is_loaded else None
        self._opened = open_device(self._opened.torch_device)
        self._create()
        if packed is not None:
            self.load_packed(packed)

    def _apply(self, fn, recurse=True):
        # The layer and captured graphs hold the address of the buffer, and each type of device has its own packed layout.
        moved = fn(self.packed)
        if moved.device != self.packed.device or moved.data_ptr() != self.packed.data_ptr():
            raise Unsupported(f"MoeLayer: cannot move from {self.device}, for which its weights are packed, to {moved.device}: make a "
                              "layer there (device=...) and load() its weights")
        return self

    def share_memory(self):
        raise Unsupported("MoeLayer: share_memory() is not supported, because captured graphs hold the address of the weights: make one "
                          "layer in each process")

    def __reduce__(self):
        return _remade, (str(self.device), self._made_with, self.get_extra_state(), self.training)

    def __deepcopy__(self, memo):
        return _remade(*self.__reduce__()[1])

    def extra_repr(self) -> str:
        return f"{self.text}, tokens_max={self.tokens_max}, device={self.device}, loaded={self.is_loaded}"


def _no_gradient(_gradient=None):
    raise NoGradient("MoeLayer has no backward pass; call it under torch.no_grad(), or with x.detach()")


def _flat(name: str, tensor: Optional[torch.Tensor], width: int) -> Optional[torch.Tensor]:
    if tensor is None:
        return None
    if tensor.dim() == 0 or tensor.shape[-1] != width:
        raise InvalidArgument(f"{name}: wanted a last dimension of {width}, found the shape {list(tensor.shape)}")
    return tensor.view(-1, width) if tensor.is_contiguous() else tensor.reshape(-1, width)


def _remade(device: str, made_with: dict, state: torch.Tensor, training: bool) -> MoeLayer:
    layer = MoeLayer(device=device, **made_with)
    layer.set_extra_state(state)
    return layer.train(training)
