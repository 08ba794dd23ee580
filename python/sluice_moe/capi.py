"""The C ABI of Sluice (include/sluice/sluice.h) through ctypes: structs, functions, statuses. Needs no torch.

Loads the library in the package, or the file named by the environment variable SLUICE_LIBRARY.
"""
from __future__ import annotations

import ctypes
import operator
import os
import pathlib
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from typing import Callable, Mapping, Sequence

from .errors import CORRUPT, DEVICE, INVALID_ARGUMENT, IO, OK, OUT_OF_MEMORY, UNSUPPORTED  # noqa: F401  the statuses belong to the C ABI
from .errors import InvalidArgument, LibraryError, error_of

CPU, CUDA = range(2)
F32, BF16, E2M1, E8M0, I32, I64, I16, U8, E4M3 = range(9)
DTYPE_TEXT = ("f32", "bf16", "e2m1", "e8m0", "i32", "i64", "i16", "u8", "e4m3")
ROLE_TEXT = ("in", "out", "in_out")
RANK_MAX = 4
ARGS_MAX = 32
MESSAGE_BYTES = 1 << 16


# ---- Structs ----


class Text(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("capacity", c_size_t), ("needed", c_size_t)]


class Message(Text):
    """A sluice_text that owns its memory."""

    def __init__(self, capacity: int = MESSAGE_BYTES):
        self.buffer = ctypes.create_string_buffer(capacity)
        super().__init__(ctypes.addressof(self.buffer), capacity, 0)

    def read(self) -> str:
        return self.buffer.value.decode("utf-8", "replace")


LOG = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class DeviceOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("backend", c_int32), ("threads", c_int32), ("index", c_int32), ("plain_launches", c_int32),
                ("log", LOG), ("log_context", c_void_p)]


class Stream(ctypes.Structure):
    _fields_ = [("backend", c_int32), ("native", c_void_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("where", c_int32), ("rank", c_int32), ("shape", c_int64 * RANK_MAX),
                ("stride", c_int64 * RANK_MAX)]


class Arg(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("tensor", Tensor)]


class Launch(ctypes.Structure):
    _fields_ = [("args", POINTER(Arg)), ("arg_count", c_size_t), ("workspace", c_void_p), ("workspace_bytes", c_size_t),
                ("stream", Stream)]


class Policy(ctypes.Structure):
    _fields_ = [("force", c_char_p), ("batch_invariant", c_int32)]


class Step(ctypes.Structure):
    _fields_ = [("first", c_int64), ("last", c_int64), ("kernel", c_char_p), ("workspace_bytes", c_size_t)]


class LayerOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("fields", c_char_p), ("tokens_max", c_int64), ("tp_rank", c_int64),
                ("tp_size", c_int64), ("ep_rank", c_int64), ("ep_size", c_int64), ("policy", POINTER(Policy)), ("threads", c_int32),
                ("weights", c_void_p), ("weights_bytes", c_size_t), ("backend_decode", c_char_p), ("backend_prefill", c_char_p),
                ("decode_tokens", c_int64)]


class Weight(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("type", c_char_p), ("where", c_int32), ("rank", c_int32), ("shape", POINTER(c_int64)),
                ("data", c_void_p), ("bytes", c_size_t)]


class Weights(ctypes.Structure):
    _fields_ = [("tensors", POINTER(Weight)), ("count", c_size_t), ("naming", c_char_p), ("layer", c_int64)]


class Question(ctypes.Structure):
    _fields_ = [("op", c_char_p), ("problem", c_char_p), ("device_name", c_char_p), ("device", c_void_p), ("policy", POINTER(Policy))]


class LayerQuestion(ctypes.Structure):
    _fields_ = [("options", POINTER(LayerOptions)), ("device_name", c_char_p), ("device", c_void_p)]


class Field(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("doc", c_char_p), ("value", c_char_p), ("words", POINTER(c_char_p)), ("word_count", c_size_t)]


class Slot(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("role", c_int32), ("used", c_int32), ("rows_may_be_strided", c_int32), ("dtype", c_int32),
                ("rank", c_int32), ("shape", c_int64 * RANK_MAX)]


SINK = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)
FIELD_VISITOR = CFUNCTYPE(None, c_void_p, POINTER(Field))
SLOT_VISITOR = CFUNCTYPE(None, c_void_p, POINTER(Slot))


# ---- The library ----

_TEXT = POINTER(Text)
# Name: (result, arguments). Handles are void pointers.
_FUNCTIONS = {
    "sluice_version": (c_char_p, []),
    "sluice_status_text": (c_char_p, [c_int32]),
    "sluice_open": (c_int32, [POINTER(DeviceOptions), POINTER(c_void_p), _TEXT]),
    "sluice_close": (None, [c_void_p]),
    "sluice_device_text": (c_char_p, [c_void_p]),
    "sluice_device_stream": (Stream, [c_void_p]),
    "sluice_stream_wrap": (c_int32, [c_void_p, c_void_p, POINTER(Stream), _TEXT]),
    "sluice_stream_retarget": (c_int32, [c_void_p, Stream, c_void_p, _TEXT]),
    "sluice_stream_unwrap": (None, [c_void_p, Stream]),
    "sluice_wait": (c_int32, [c_void_p, Stream, _TEXT]),
    "sluice_table_create": (c_int32, [c_void_p, c_char_p, c_char_p, c_int64, POINTER(Policy), POINTER(c_void_p), _TEXT]),
    "sluice_table_destroy": (None, [c_void_p]),
    "sluice_table_workspace_bytes": (c_size_t, [c_void_p]),
    "sluice_table_step_count": (c_size_t, [c_void_p]),
    "sluice_table_step": (c_int32, [c_void_p, c_size_t, POINTER(Step), _TEXT]),
    "sluice_layer_create": (c_int32, [c_void_p, POINTER(LayerOptions), POINTER(c_void_p), _TEXT]),
    "sluice_layer_measure": (c_int32, [c_void_p, POINTER(LayerOptions), POINTER(c_size_t), POINTER(c_size_t), _TEXT]),
    "sluice_layer_destroy": (None, [c_void_p]),
    "sluice_layer_text": (c_char_p, [c_void_p]),
    "sluice_layer_workspace_bytes": (c_size_t, [c_void_p]),
    "sluice_layer_weight_bytes": (c_size_t, [c_void_p]),
    "sluice_layer_load": (c_int32, [c_void_p, POINTER(Weights), _TEXT]),
    "sluice_layer_replace_expert": (c_int32, [c_void_p, c_int64, POINTER(Weights), _TEXT]),
    "sluice_layer_replace_adapter": (c_int32, [c_void_p, c_int64, POINTER(Weights), _TEXT]),
    "sluice_layer_packed_bytes": (c_int32, [c_void_p, POINTER(c_size_t), _TEXT]),
    "sluice_layer_write_packed": (c_int32, [c_void_p, SINK, c_void_p, _TEXT]),
    "sluice_layer_read_packed": (c_int32, [c_void_p, c_void_p, c_size_t, _TEXT]),
    "sluice_layer_explain": (c_int32, [c_void_p, POINTER(c_int64), c_size_t, _TEXT, _TEXT]),
    "sluice_layer_describe": (c_int32, [POINTER(LayerQuestion), POINTER(c_int64), c_size_t, _TEXT, _TEXT]),
    "sluice_explain": (c_int32, [POINTER(Question), _TEXT, _TEXT]),
    "sluice_op_count": (c_size_t, []),
    "sluice_op_name": (c_char_p, [c_size_t]),
    "sluice_op_fields": (c_int32, [c_char_p, FIELD_VISITOR, c_void_p, _TEXT]),
    "sluice_op_tensors": (c_int32, [c_char_p, c_char_p, SLOT_VISITOR, c_void_p, _TEXT]),
    "sluice_layer_fields": (c_int32, [c_char_p, FIELD_VISITOR, c_void_p, _TEXT]),
    "sluice_layer_tensors": (c_int32, [c_void_p, c_int64, SLOT_VISITOR, c_void_p, _TEXT]),
    # Launches take addresses as plain integers, which ctypes does not convert.
    "sluice_table_run": (c_int32, [c_void_p, c_int64, c_void_p, c_void_p]),
    "sluice_layer_run": (c_int32, [c_void_p, c_void_p, c_void_p]),
}


def library_path() -> pathlib.Path:
    """The path of the shared library that this package opens."""
    named = os.environ.get("SLUICE_LIBRARY")
    return pathlib.Path(named) if named else pathlib.Path(__file__).parent / "_lib" / "libsluice.so"


def _repair() -> str:
    """Returns advice for the user of a missing or incompatible library."""
    return "unset SLUICE_LIBRARY, or name another file" if os.environ.get("SLUICE_LIBRARY") else "install sluice_moe again"


def _open_library() -> ctypes.CDLL:
    path = library_path()
    try:
        opened = ctypes.CDLL(str(path))
    except OSError as why:
        raise LibraryError(f"sluice_moe: the library {path} cannot be loaded: {why}; {_repair()}") from why
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(opened, name)
        except AttributeError:
            raise LibraryError(f"sluice_moe: {path} has no function {name}: wanted the library of this version of sluice_moe; "
                               f"{_repair()}") from None
        function.restype, function.argtypes = result, arguments
    return opened


class _NoLibrary:
    """Replaces a library that cannot be loaded, and raises an error at its first use. The package can still be imported, so that a plug-in can
    reject the flag that selects Sluice; engines only log plug-ins that fail to import."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str):
        raise LibraryError(self.why)


def _library_or_reason() -> ctypes.CDLL | _NoLibrary:
    try:
        return _open_library()
    except LibraryError as why:
        return _NoLibrary(str(why))


lib = _library_or_reason()


def library_problem() -> str | None:
    """Returns why the library cannot be loaded, or None."""
    return lib.why if isinstance(lib, _NoLibrary) else None


def call(name: str, *arguments) -> None:
    """Calls a function whose last argument is the message. A status other than SLUICE_OK becomes an exception with the message."""
    message = Message()
    status = getattr(lib, name)(*arguments, message)
    if status != OK:
        raise error_of(status, message.read())


def version() -> str:
    """The version of the library."""
    return lib.sluice_version().decode()


# ---- Words and fields ----


def words(fields: Mapping[str, object]) -> bytes:
    """Formats fields for the C ABI: {"hidden": 2880, "bias": True} becomes b"hidden=2880 bias=1"."""
    out = []
    for name, value in fields.items():
        if isinstance(value, bool):
            value = int(value)
        elif not isinstance(value, (int, float, str)):
            value = _TORCH_WORDS.get(str(value), str(value).removeprefix("torch."))
        text = repr(value) if isinstance(value, float) else str(value)
        if not text or any(c.isspace() for c in text):
            raise InvalidArgument(f"{name}: wanted a number or a word without spaces, found {text!r}")
        out.append(f"{name}={text}")
    return encoded(" ".join(out), "fields")


_TORCH_WORDS = {"torch.float32": "f32", "torch.bfloat16": "bf16"}


def encoded(value: str | None, name: str = "name") -> bytes | None:
    """Encodes a string for the C ABI, where it ends at the first NUL."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}: wanted a string, found {type(value).__name__}")
    try:
        out = value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name}: wanted Unicode text, found {value!r}") from None
    if b"\0" in out:
        raise InvalidArgument(f"{name}: wanted text without NUL, found {value!r}")
    return out


def integer(value: object, name: str, bits: int = 64) -> int:
    """Checks an integer for the C ABI; ctypes would take it modulo 2 ** bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name}: wanted an integer, found {value!r}") from None
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise InvalidArgument(f"{name}: wanted an integer of {bits} bits, found {number}")
    return number


def pair(value: object, name: str) -> tuple[int, int]:
    """Checks (rank, size)."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InvalidArgument(f"{name}: wanted (rank, size), found {value!r}")
    return integer(value[0], f"{name}[0]"), integer(value[1], f"{name}[1]")


def counts(values: Sequence[int], name: str):
    """An array of integers for the C ABI."""
    return (c_int64 * len(values))(*(integer(value, name) for value in values))


def op_names() -> list[str]:
    """The names of the operations."""
    return [lib.sluice_op_name(i).decode() for i in range(lib.sluice_op_count())]


def _visited(name: str, visitor, read: Callable, *arguments) -> list[dict]:
    found: list[dict] = []
    call(name, *arguments, visitor(lambda _, item: found.append(read(item.contents))), None)
    return found


def _read_field(field: Field) -> dict:
    return {"name": field.name.decode(), "doc": field.doc.decode(), "value": field.value.decode(),
            "words": [field.words[i].decode() for i in range(field.word_count)] if field.words else None}


def _read_slot(slot: Slot) -> dict:
    return {"name": slot.name.decode(), "role": ROLE_TEXT[slot.role], "used": bool(slot.used),
            "rows_may_be_strided": bool(slot.rows_may_be_strided), "dtype": DTYPE_TEXT[slot.dtype],
            "shape": tuple(slot.shape[: slot.rank])}


def op_fields(op: str) -> list[dict]:
    """The fields of an operation: name, doc, value (the default), words (the values allowed; None for a number)."""
    return _visited("sluice_op_fields", FIELD_VISITOR, _read_field, op.encode())


def op_tensors(op: str, problem: bytes = b"") -> list[dict]:
    """The tensors of an operation for this problem: name, role, used, rows_may_be_strided, dtype, shape."""
    return _visited("sluice_op_tensors", SLOT_VISITOR, _read_slot, op.encode(), problem)


def layer_fields(model: str | None = None) -> list[dict]:
    """The fields of a layer, with the values of a known model."""
    return _visited("sluice_layer_fields", FIELD_VISITOR, _read_field, encoded(model))


def written(name: str, *arguments) -> tuple[int, str, str]:
    """Calls a function whose last two arguments are a text and a message; calls it again if the text needs more memory. Returns (status, text, message)."""
    text = Message()
    while True:
        message = Message()
        status = getattr(lib, name)(*arguments, text, message)
        if text.needed <= text.capacity:
            return status, text.read(), message.read()
        text = Message(text.needed)


def whole_text(name: str, *arguments) -> str:
    """Like written(), but returns only the text. A status other than SLUICE_OK becomes an exception with the message."""
    status, text, message = written(name, *arguments)
    if status != OK:
        raise error_of(status, message)
    return text
