"""kvtier/llama.h: the C library that keeps the KV of a llama_context's sequences."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from typing import Any

import numpy as np

from .._native import Gate, bytes_of, check, check_open, count_of, ffi, fields_of, lib, size_of
from ..errors import Invalid, Status, error_of

_ERROR_BYTES = 512
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO)
_log = logging.getLogger("kvtier")


class Options:
    """What TieredCache and Sessions have in common: checked once, used when a context is attached."""

    def __init__(self, path: str | os.PathLike[str] | None, host: int | str, nvme: int | str, salt: bytes | str,
                 key: bytes | None, nvme_bytes_per_day: int | str, model: str, block_tokens: int,
                 is_codec_off: bool, is_whole: bool = False) -> None:
        self.path = None if path is None else os.fspath(path)
        self.host, self.nvme = size_of("host", host), size_of("nvme", nvme)
        self.salt = bytes_of("salt", salt)
        self.key = None if key is None else bytes_of("key", key)
        if self.key is not None and len(self.key) != 32:
            raise Invalid(f"key has {len(self.key)} bytes: 32")
        self.nvme_bytes_per_day = size_of("nvme_bytes_per_day", nvme_bytes_per_day)
        self.model = model
        self.block_tokens = count_of("block_tokens", block_tokens)
        self.is_codec_off, self.is_whole = is_codec_off, is_whole


def tokens_of(tokens: Any) -> Any:
    """Token ids as llama.cpp has them, 32-bit signed; an array of them is used where it lies."""
    return np.ascontiguousarray(tokens, dtype=np.int32)


def common_prefix(a: Any, b: Any) -> int:
    """How many leading tokens two arrays of tokens share."""
    n = min(len(a), len(b))
    differ = np.nonzero(a[:n] != b[:n])[0]
    return int(differ[0]) if len(differ) else n


def address_of(pointer: Any) -> int:
    """The address in a ctypes pointer, whatever its type."""
    return int(ctypes.cast(pointer, ctypes.c_void_p).value or 0)


def _make_log() -> Any:
    def write(_user: Any, level: int, line: Any) -> None:
        _log.log(_LEVELS[min(max(level, 0), 2)], "%s", ffi.string(line).decode(errors="replace"))
    return ffi.callback("void (void *, int, const char *)", write)


class Attachment:
    """
    A llama_context, attached. Its calls come from the thread that may decode. `library` is the handle of llama.cpp's
    shared library; detach before the context is freed.
    """

    def __init__(self, options: Options, context: Any, library: int) -> None:
        config = ffi.new("struct kvt_llama_config *", lib.kvt_llama_config_default())
        keep = [ffi.from_buffer(options.salt), ffi.new("char[]", options.model.encode())]
        config.host_bytes = options.host
        if options.path is not None:
            keep.append(ffi.new("char[]", os.fsencode(options.path)))
            config.path, config.nvme_bytes = keep[-1], options.nvme
            config.nvme_bytes_per_day = options.nvme_bytes_per_day
        if options.key is not None:
            keep.append(ffi.new("uint8_t[32]", options.key))
            config.nvme_key = keep[-1]
        if options.salt:
            config.salt, config.salt_bytes = keep[0], len(options.salt)
        config.model = keep[1]
        config.block_tokens = options.block_tokens
        config.is_codec_off, config.is_whole = options.is_codec_off, options.is_whole
        config.library = ffi.cast("void *", library)
        log = _make_log()
        config.log = log
        attached, error = ffi.new("struct kvt_llama **"), ffi.new("char[]", _ERROR_BYTES)
        llama = ffi.cast("struct llama_context *", address_of(context))
        check_open(lib.kvt_llama_attach(config, llama, attached, error, _ERROR_BYTES), "attach", error)
        self._llama = attached[0]
        self._gate = Gate("the attachment to llama.cpp")
        self.detach = weakref.finalize(self, _detach, self._gate, self._llama, log)
        stats = self.stats()
        self.window = int(stats["window_tokens"]) if stats["groups"] > 1 else 0
        self.block_tokens = int(stats["block_tokens"])

    @property
    def is_detached(self) -> bool:
        return self._gate.is_closed

    def match(self, tokens: Any) -> int:
        """How many leading tokens of a prompt restore() would bring; at most all but one."""
        ids = tokens_of(tokens)
        with self._gate:
            return int(lib.kvt_llama_match(self._llama, ffi.from_buffer("int32_t[]", ids), len(ids)))

    def restore(self, sequence: int, tokens: Any) -> int:
        """Empties the sequence and brings back leading tokens of the prompt; says how many it holds then."""
        status, count = self._call(lib.kvt_llama_restore, sequence, tokens)
        check(status, "restore")
        return count

    def save(self, sequence: int, tokens: Any) -> int:
        """Keeps what is new of a sequence that holds exactly these tokens; says how many can be restored from now on."""
        return self._kept(*self._call(lib.kvt_llama_save, sequence, tokens), "save")

    def idle(self, sequence: int, tokens: Any) -> int:
        """Saves it, and frees its cells."""
        return self._kept(*self._call(lib.kvt_llama_idle, sequence, tokens), "idle")

    def is_due(self, sequence: int, count: int, more: int) -> bool:
        """Evaluating `more` tokens would push window tokens out that were not saved."""
        with self._gate:
            return bool(lib.kvt_llama_is_due(self._llama, sequence, count, more))

    def taint(self, sequence: int) -> None:
        """The sequence's KV is not its tokens' own: it is not saved until it was emptied."""
        with self._gate:
            lib.kvt_llama_taint(self._llama, sequence)

    def forget(self, tokens: Any) -> int:
        ids = tokens_of(tokens)
        with self._gate:
            return int(lib.kvt_llama_forget(self._llama, ffi.from_buffer("int32_t[]", ids), len(ids)))

    def forget_all(self) -> None:
        with self._gate:
            check(lib.kvt_llama_forget_all(self._llama), "forget all")

    def flush(self) -> None:
        with self._gate:
            check(lib.kvt_llama_flush(self._llama), "flush")

    def stats(self) -> dict[str, Any]:
        stats = ffi.new("struct kvt_llama_stats *")
        with self._gate:
            lib.kvt_llama_stats(self._llama, stats)
            return fields_of(stats[0])

    def _call(self, function: Any, sequence: int, tokens: Any) -> tuple[int, int]:
        ids, count = tokens_of(tokens), ffi.new("uint64_t *")
        with self._gate:
            status = function(self._llama, sequence, ffi.from_buffer("int32_t[]", ids), len(ids), count)
        return int(status), int(count[0])

    @staticmethod
    def _kept(status: int, count: int, what: str) -> int:
        """FULL keeps a part, or nothing: what is missing is computed again."""
        if status == Status.FULL:
            _log.warning("%s: not all of it was kept: the caps are too small", what)
        elif status != Status.OK:
            check(status, what, "the sequence does not hold these tokens at positions from 0 on, or was tainted")
        return count


def _detach(gate: Gate, llama: Any, _log_callback: Any) -> None:
    gate.close(lambda: lib.kvt_llama_detach(ffi.new("struct kvt_llama **", llama)))


def library_handle() -> int:
    """The handle of the llama.cpp that llama-cpp-python has loaded."""
    import llama_cpp.llama_cpp as loaded

    handle = getattr(getattr(loaded, "_lib", None), "_handle", None)
    if not handle:
        raise error_of(Status.UNSUPPORTED, "llama_cpp has loaded no shared library that can be found")
    return int(handle)
