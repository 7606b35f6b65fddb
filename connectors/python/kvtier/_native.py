"""The C library, and what both bindings need of it: statuses to exceptions, sizes, buffers, and calls that end."""

from __future__ import annotations

import math
import os
import pathlib
import re
import threading
from typing import Any, Callable

from . import _abi  # type: ignore[attr-defined, unused-ignore]
from .errors import Closed, Invalid, Status, error_of

ffi: Any = _abi.ffi
lib: Any = ffi.dlopen(str(pathlib.Path(__file__).with_name("_kvtier.so")))

# A wait in the library cannot be interrupted: after so long Python looks for signals, and for a close.
SLICE_NS = 100_000_000

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")


def status_text(status: int) -> str:
    return str(ffi.string(lib.kvt_status_text(status)).decode())


def check(status: int, what: str, rule: str = "") -> None:
    """Raises what a status stands for. `what` was tried; of what is invalid, `rule` says what it has to be."""
    if status != 0:
        told = f"invalid: {rule}" if rule and status == Status.INVAL else status_text(status)
        raise error_of(status, f"{what}: {told}")


def check_open(status: int, what: str, error: Any) -> None:
    """As check(), for the calls that also write a line about what was wrong."""
    if status != 0:
        line = ffi.string(error).decode(errors="replace") or status_text(status)
        raise error_of(status, f"{what}: {line}")


def size_of(name: str, value: int | str) -> int:
    """Bytes from a number or from text as `512MiB`, `4GiB`."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{name} is {value!r}: an int of bytes, or text as '512MiB'")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if not match or match.group(2).upper() not in _UNITS:
            raise Invalid(f"{name} is {value!r}: a number with B, KiB, MiB, GiB or TiB")
        value = int(match.group(1)) * _UNITS[match.group(2).upper()]
    if not 0 <= value < 1 << 64:
        raise Invalid(f"{name} is {value}: 0 to 2^64 - 1 bytes")
    return value


def count_of(name: str, value: int, largest: int = 0xFFFFFFFF) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}: an int")
    if not 0 <= value <= largest:
        raise Invalid(f"{name} is {value}: 0 to {largest}")
    return value


def bytes_of(name: str, value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} is a {type(value).__name__}: bytes or str")
    return bytes(value)


def buffer_of(name: str, value: Any, is_written: bool) -> Any:
    """A view of the memory of an object with the buffer protocol. It keeps the object, and its size, as they are."""
    try:
        return ffi.from_buffer("char[]", value, require_writable=is_written)
    except (TypeError, ValueError, BufferError) as error:
        need = "contiguous and writable" if is_written else "contiguous"
        raise TypeError(f"{name} is a {type(value).__name__}: an object with a {need} buffer ({error})") from None


def nanoseconds(timeout: float | None) -> int | None:
    if timeout is None or timeout == math.inf:
        return None
    if not timeout >= 0:  # NaN too
        raise Invalid(f"timeout is {timeout}: 0 or more seconds")
    return int(timeout * 1e9)


def fields_of(struct: Any) -> dict[str, Any]:
    """A struct of numbers and texts as a dictionary; arrays become lists."""
    return {name: _plain(getattr(struct, name)) for name, _ in ffi.typeof(struct).fields}


def _plain(value: Any) -> Any:
    if not isinstance(value, ffi.CData):
        return value
    kind = ffi.typeof(value)
    if kind.kind == "array" and kind.item.cname != "char":
        return [_plain(item) for item in value]
    if kind.kind in ("array", "pointer"):
        return None if value == ffi.NULL else ffi.string(value).decode(errors="replace")
    return fields_of(value)


class Gate:
    """
    Lets calls in until it is closed, and tells the last one out, so that nothing is closed under a running call. In a
    child after fork() it is shut for good: the threads that would answer are not there.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.Condition()
        self._inside = 0
        self._is_closing = False

    @property
    def is_child(self) -> bool:
        return os.getpid() != self._pid

    @property
    def is_closed(self) -> bool:
        return self.is_child or self._is_closing

    def check(self) -> None:
        if self.is_child:
            raise Closed(f"{self._what} was opened in process {self._pid}, before a fork: open it anew in this one")
        if self._is_closing:
            raise Closed(f"{self._what} is closed")

    def __enter__(self) -> None:
        self.check()
        with self._lock:
            self.check()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._lock.notify_all()

    def close(self, closing: Callable[[], None]) -> None:
        """Runs closing() once, after the last call. Does nothing when it is closed already, or in a child."""
        if self.is_child:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            while self._inside > 0:
                self._lock.wait()
        closing()
