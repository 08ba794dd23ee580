"""The exceptions of the package. `except sluice_moe.Error` catches all of them.

    Error                        a RuntimeError
      InvalidArgument            also a ValueError: a shape, a type, a name or a value that the call does not accept
      Unsupported                a valid request that no kernel can run
        UnsupportedModel         also a ValueError: a checkpoint or a model
          UnsupportedLayer       one layer of a model, with every reason
        IncompatibleEngine       also an ImportError and a ValueError: a version of an engine, or another plug-in
        NoGradient               also a NotImplementedError: a backward pass
      LibraryError               also an ImportError: libsluice.so is missing or of another version
      OutOfMemory, IoFailure, CorruptData, DeviceFault
"""
from __future__ import annotations

# The statuses of the C ABI (sluice_status).
OK, INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, IO, CORRUPT, DEVICE = range(7)


class Error(RuntimeError):
    """Base class of all errors of this package. `status` is the number of the C ABI (sluice_status); -1: the package raised it."""

    status = -1

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        if status is not None:
            self.status = status


class InvalidArgument(Error, ValueError):
    """An argument breaks the contract of the call: a shape, a type, a stride, a bound or a name."""

    status = INVALID_ARGUMENT


class Unsupported(Error):
    """The request is valid, but no kernel can run it. The message has every reason."""

    status = UNSUPPORTED


class UnsupportedModel(Unsupported, ValueError):
    """Sluice cannot run this checkpoint or model inside an engine."""


class UnsupportedLayer(UnsupportedModel):
    """Sluice cannot run this layer of a model. The message names the layer and has every reason."""


class IncompatibleEngine(Unsupported, ImportError, ValueError):
    """Sluice cannot work with the installed torch, transformers, vLLM or SGLang: its version is not supported, its source was changed, or another
    plug-in uses the name or the hook that Sluice needs."""


class NoGradient(Unsupported, NotImplementedError):
    """The call needs a gradient, but Sluice has no backward pass: call it under torch.no_grad()."""


class LibraryError(Error, ImportError):
    """libsluice.so cannot be loaded, or belongs to another version of this package."""


class OutOfMemory(Error):
    """The host or the device has too little memory."""

    status = OUT_OF_MEMORY


class IoFailure(Error):
    """A file or a callback failed."""

    status = IO


class CorruptData(Error):
    """Packed weights or a checkpoint are inconsistent: a size, a hash or a header is wrong, or a tensor is missing."""

    status = CORRUPT


class DeviceFault(Error):
    """A device reported a fault."""

    status = DEVICE


# Names of version 0.1, for callers that still catch them.
SluiceError, IoError_ = Error, IoFailure

_OF_STATUS = {cls.status: cls for cls in (InvalidArgument, Unsupported, OutOfMemory, IoFailure, CorruptData, DeviceFault)}


def error_of(status: int, message: str) -> Error:
    """Returns the exception for a status of the C ABI."""
    return _OF_STATUS.get(status, Error)(message or f"status {status}", status)
