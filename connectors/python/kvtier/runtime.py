"""The runtime: sequences of tokens whose KV blocks live on the device, in host memory and on NVMe."""

from __future__ import annotations

import array
import enum
import os
import time
import weakref
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence as Many

from ._native import SLICE_NS, Gate, bytes_of, check, check_open, count_of, ffi, fields_of, lib, nanoseconds, size_of
from .errors import Full, Invalid

NO_SLOT = 0xFFFFFFFF
_NO_LIMIT = 0xFFFFFFFFFFFFFFFF
_ERROR_BYTES = 512
_TIERS = ("device", "host", "nvme")
_KINDS = ("full", "window", "state")
_DEVICES = ("auto", "cuda", "emulated")
_PREFETCHES = ("lookahead", "demand", "off", "session")

# What makes these calls INVAL, for the message.
_RULES = {
    "append": "finished or idle; or its last block is shared or cut, and the step began without reserved tokens",
    "commit": "more tokens than are reserved, not in a step, or the sequence is finished or idle",
    "fork": "finished, or in a step",
    "truncate": "longer than the sequence, finished, or in a step",
    "window": "finished, or in a step",
    "idle": "finished, or in a step",
    "resume": "finished",
    "finish": "finished already, or in a step",
    "step": "a sequence is finished, idle, or in a step already",
    "step end": "no such step",
    "table": "not in a step, or finished",
    "keys": "not in a step, or finished",
}

Tokens = Any  # a sequence of ints, or an object with a buffer of 32-bit unsigned ints (array("I"), a numpy array)


class Room(enum.IntEnum):
    """What an append or a resume found."""

    OK = 0
    PENDING = 1  # room is being made: wait, and ask again
    FULL = 2  # active sequences claim everything: set one idle or finish one
    TOO_LONG = 3  # more than the device alone holds


class Group(NamedTuple):
    """Layers that need the same part of the past: "full", "window" (the last `window` tokens) or "state"."""

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    dtype: str = "bf16"
    kind: str = "full"
    planes: int = 2
    window: int = 0
    sinks: int = 0
    state_bytes: int = 0


class Shape(NamedTuple):
    """What the KV of a model looks like."""

    block_tokens: int
    groups: Many[Group]

    def block_bytes(self, group: int = 0) -> int:
        """Bytes of one block of a group."""
        shape = _shape_of(self)
        return int(lib.kvt_group_block_bytes(ffi.addressof(shape.groups, group), self.block_tokens))


class Lost(NamedTuple):
    """Tokens of a sequence from `lost_from` on are gone: truncate to it and compute them again."""

    sequence: Sequence
    lost_from: int


def _choice(name: str, value: str, values: Many[str]) -> int:
    if value not in values:
        raise Invalid(f"{name} is {value!r}: one of {', '.join(values)}")
    return values.index(value)


def _shape_of(shape: Shape) -> Any:
    made = ffi.new("struct kvt_model_shape *")
    made.block_tokens = count_of("block_tokens", shape.block_tokens)
    if not 1 <= len(shape.groups) <= lib.KVT_GROUPS_MAX:
        raise Invalid(f"groups has {len(shape.groups)}: 1 to {lib.KVT_GROUPS_MAX}")
    made.group_count = len(shape.groups)
    for target, group in zip(made.groups, shape.groups):
        target.kind = _choice("kind", group.kind, _KINDS)
        dtype = ffi.new("enum kvt_dtype *")
        if not lib.kvt_dtype_parse(group.dtype.encode(), dtype):
            raise Invalid(f"dtype is {group.dtype!r}: one of bf16, fp16, fp8, fp32, int8")
        target.dtype = dtype[0]
        target.layers, target.planes = count_of("layers", group.layers), count_of("planes", group.planes)
        target.kv_heads = count_of("kv_heads", group.kv_heads)
        target.head_dim = count_of("head_dim", group.head_dim)
        target.window_tokens = count_of("window", group.window)
        target.sink_tokens = count_of("sinks", group.sinks)
        target.state_bytes = size_of("state_bytes", group.state_bytes)
    error = ffi.new("char[]", _ERROR_BYTES)
    check_open(lib.kvt_shape_check(made, error, _ERROR_BYTES), "shape", error)
    return made


def _tokens_of(tokens: Tokens) -> tuple[Any, int]:
    """Token ids as C has them; a buffer of 32-bit unsigned ints is used where it lies."""
    try:
        view = memoryview(tokens)
    except TypeError:
        try:
            view = memoryview(array.array("I", tokens))
        except (TypeError, OverflowError) as error:
            raise TypeError(f"tokens: ids from 0 to 2^32 - 1 ({error})") from None
    if view.itemsize != 4 or view.format not in ("I", "<I", "=I", "@I", "L", "<L", "=L") or view.ndim != 1:
        raise TypeError(f"tokens has a buffer of format {view.format!r}: ids as 32-bit unsigned ints")
    if not view.c_contiguous:
        raise TypeError("tokens has a buffer with gaps: contiguous ids")
    if len(view) == 0:
        return ffi.NULL, 0
    return ffi.from_buffer("uint32_t[]", view), len(view)


class Runtime:
    """
    Device, host and NVMe memory for the KV of many sequences. Sizes are bytes or text as '4GiB'; what is 0 or None has
    the default that kvtier/kvtier.h says. Without a GPU the device is emulated in ordinary memory.

    Every call may come from any thread. After a fork the child has to open its own; close() there does nothing.
    """

    def __init__(self, shape: Shape, *, device: int | str, host: int | str = 0,
                 nvme: tuple[str | os.PathLike[str], int | str] | None = None, model: str = "",
                 rank: int = 0, world: int = 1, secret: bytes = b"", device_kind: str = "auto",
                 nvme_bytes_per_day: int | str = 0, nvme_key: bytes | None = None, is_codec_off: bool = False,
                 policy: str | None = None, host_policy: str | None = None, admission: str | None = None,
                 prefetch: str = "lookahead", sequences_max: int = 0, prefill_tokens_per_s: int = 0) -> None:
        config = ffi.new("struct kvt_config *", lib.kvt_config_default())
        made = _shape_of(shape)
        config.shape = made[0]
        keep = [ffi.from_buffer(secret)]
        for name, text in (("model", model), ("device_policy", policy), ("host_policy", host_policy),
                           ("admission", admission), ("nvme_path", os.fspath(nvme[0]) if nvme else None)):
            if text is not None:
                keep.append(ffi.new("char[]", os.fsencode(text)))
                setattr(config, name, keep[-1])
        config.rank, config.world = count_of("rank", rank), count_of("world", world)
        config.secret, config.secret_bytes = keep[0] if secret else ffi.NULL, len(secret)
        config.device = _choice("device_kind", device_kind, _DEVICES)
        config.device_bytes, config.host_bytes = size_of("device", device), size_of("host", host)
        config.nvme_bytes = size_of("nvme", nvme[1]) if nvme else 0
        config.nvme_bytes_per_day = size_of("nvme_bytes_per_day", nvme_bytes_per_day)
        if nvme_key is not None:
            if len(nvme_key) != 32:
                raise Invalid(f"nvme_key has {len(nvme_key)} bytes: 32")
            keep.append(ffi.new("uint8_t[32]", bytes(nvme_key)))
            config.nvme_key = keep[-1]
        config.is_codec_off = is_codec_off
        config.prefetch = _choice("prefetch", prefetch, _PREFETCHES)
        config.sequences_max = count_of("sequences_max", sequences_max)
        config.prefill_tokens_per_s = count_of("prefill_tokens_per_s", prefill_tokens_per_s, _NO_LIMIT)
        opened, error = ffi.new("struct kvt_runtime **"), ffi.new("char[]", _ERROR_BYTES)
        check_open(lib.kvt_open(config, opened, error, _ERROR_BYTES), "runtime", error)
        self.shape = shape
        self._handle = _Handle(opened[0])
        self._close = weakref.finalize(self, self._handle.close, False)
        self.device_name = str(ffi.string(lib.kvt_device_name(opened[0])).decode())

    def create(self, tokens: Tokens, *, salt: bytes | str = b"", reuse_max: int | None = None,
               is_idle: bool = False) -> Sequence:
        """A sequence that starts with the longest prefix found in any tier; `reused` of it says how many tokens."""
        params = ffi.new("struct kvt_seq_params *")
        keep, params.token_count = _tokens_of(tokens)
        params.tokens = keep
        params.reuse_max = _NO_LIMIT if reuse_max is None else count_of("reuse_max", reuse_max, _NO_LIMIT)
        secret = bytes_of("salt", salt)
        view = ffi.from_buffer(secret)
        params.salt, params.salt_bytes = view if secret else ffi.NULL, len(secret)
        params.is_idle = is_idle
        identity, reused = ffi.new("kvt_seq *"), ffi.new("uint64_t *")
        with self._handle.gate:
            check(lib.kvt_seq_create(self._handle.runtime, params, identity, reused), "create")
        return Sequence(self, identity[0], reused[0])

    def step(self, sequences: Iterable[Sequence], stream: int = 0) -> Step:
        """
        Begins a step of those that are ready: `with runtime.step([a, b]) as step: ... step.ready ...`. Never blocks.
        `stream`: the number of an emulated stream, or a cudaStream_t.
        """
        return Step(self, list(sequences), stream)

    def expect(self, steps: Mapping[Sequence, int]) -> None:
        """Look-ahead: each sequence is expected to decode in so many steps. Each call replaces the one before."""
        identities = ffi.new("kvt_seq[]", [one.identity for one in steps])
        counts = ffi.new("uint32_t[]", [count_of("steps", count) for count in steps.values()])
        with self._handle.gate:
            lib.kvt_expect(self._handle.runtime, identities, counts, len(steps))

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until something became ready, or room was made; False: `timeout` seconds have passed."""
        timeout_ns = nanoseconds(timeout)
        until = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        with self._handle.gate:
            while True:
                left = SLICE_NS if until is None else max(0, min(SLICE_NS, until - time.monotonic_ns()))
                if lib.kvt_wait(self._handle.runtime, left):
                    return True
                if until is not None and time.monotonic_ns() >= until:
                    return False
                self._handle.gate.check()

    def fileno(self) -> int:
        """For select(): readable when wait() would not block. Owned by the runtime."""
        with self._handle.gate:
            return int(lib.kvt_eventfd(self._handle.runtime))

    def slot(self, group: int, slot: int) -> memoryview:
        """
        The memory of a slot of an emulated device, to read and write. The runtime cannot be closed while a view of it
        is alive, as an mmap cannot.
        """
        if self.device_name != "emulated":
            raise Invalid(f"slot: the memory of a {self.device_name} device is not the CPU's")
        with self._handle.gate:
            if not 0 <= group < len(self.shape.groups):
                raise Invalid(f"group is {group}: 0 to {len(self.shape.groups) - 1}")
            count = lib.kvt_device_slots(self._handle.runtime, group)
            if not 0 <= slot < count:
                raise Invalid(f"slot is {slot}: 0 to {count - 1}")
            address = lib.kvt_device_slot(self._handle.runtime, group, slot)
            return self._handle.view(address, self.shape.block_bytes(group))

    def synchronize(self, stream: int = 0) -> None:
        """Blocks until everything on an emulated stream has run."""
        with self._handle.gate:
            lib.kvt_emulated_synchronize(self._handle.runtime, self._stream(stream))

    def reset(self) -> int:
        """Forgets every cached block in every tier, durably; says how many blocks live sequences still hold."""
        kept = ffi.new("uint64_t *")
        with self._handle.gate:
            check(lib.kvt_reset(self._handle.runtime, kept), "reset")
        return int(kept[0])

    def stats(self) -> dict[str, Any]:
        """The numbers of struct kvt_stats in kvtier/kvtier.h, by name; `tiers` by the tier's name."""
        stats = ffi.new("struct kvt_stats *")
        with self._handle.gate:
            lib.kvt_stats(self._handle.runtime, stats)
        numbers = fields_of(stats[0])
        numbers["tiers"] = dict(zip(_TIERS, numbers["tiers"]))
        return numbers

    def metrics(self) -> str:
        """The same and more for a monitoring system, in the OpenMetrics text format."""
        room = 1 << 16
        while True:
            text = ffi.new("char[]", room)
            with self._handle.gate:
                length = int(lib.kvt_metrics_text(self._handle.runtime, text, room))
            if length < room:
                return str(ffi.string(text).decode())
            room = length + 1

    def close(self) -> None:
        """Ends all sequences, makes durable what was stashed, closes. BufferError: a slot is still viewed."""
        self._handle.close(True)

    @property
    def closed(self) -> bool:
        return self._handle.gate.is_closed

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, stream: int) -> Any:
        if self.device_name != "emulated":
            return ffi.cast("void *", stream)
        return lib.kvt_emulated_stream(self._handle.runtime, count_of("stream", stream, 7))


class _Handle:
    """The open runtime; outlives the object in Python until its last call and view have ended."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.gate = Gate("the runtime")
        self._views: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id: it has no hash

    def view(self, address: Any, size: int) -> memoryview:
        buffer = ffi.buffer(address, size)
        self._views[id(buffer)] = buffer
        return memoryview(buffer)

    def close(self, is_asked: bool) -> None:
        # What collects an object, or ends the interpreter, cannot be refused: the memory stays as long as it is viewed.
        if not self.gate.is_closed and len(self._views) > 0:
            if is_asked:
                raise BufferError(f"close: {len(self._views)} views of slots are alive")
            return
        self.gate.close(lambda: lib.kvt_close(ffi.new("struct kvt_runtime **", self.runtime)))


class Sequence:
    """A request: tokens in order and the blocks of their KV. A finished one is refused as Invalid."""

    def __init__(self, runtime: Runtime, identity: int, reused: int) -> None:
        self.runtime = runtime
        self.identity = identity
        self.reused = reused

    def __len__(self) -> int:
        """Committed tokens."""
        with self._gate:
            return int(lib.kvt_seq_tokens(self._native, self.identity))

    def append(self, count: int) -> Room:
        """Reserves slots for more tokens, all or none."""
        room = ffi.new("enum kvt_room *")
        with self._gate:
            status = lib.kvt_seq_append(self._native, self.identity, count_of("count", count, _NO_LIMIT), room)
            check(status, "append", _RULES["append"])
        return Room(room[0])

    def commit(self, tokens: Tokens, *, is_snapshot: bool = False, stream: int = 0) -> None:
        """The KV of these tokens is written at this point of the stream; full blocks are sealed."""
        ids, count = _tokens_of(tokens)
        flags = lib.KVT_COMMIT_SNAPSHOT if is_snapshot else 0
        with self._gate:
            at = self.runtime._stream(stream)
            check(lib.kvt_seq_commit(self._native, self.identity, ids, count, flags, at), "commit", _RULES["commit"])

    def fork(self) -> Sequence:
        """A second sequence with the same committed tokens, which it shares."""
        identity = ffi.new("kvt_seq *")
        with self._gate:
            check(lib.kvt_seq_fork(self._native, self.identity, identity), "fork", _RULES["fork"])
        return Sequence(self.runtime, identity[0], 0)

    def truncate(self, count: int, tail: Tokens = ()) -> int:
        """Cuts to `count` tokens; `tail`: ids of the last count % block_tokens kept. Says what can still be served."""
        ids, given = _tokens_of(tail)
        wanted = count_of("count", count, _NO_LIMIT) % self.runtime.shape.block_tokens
        if given != wanted:
            raise Invalid(f"tail has {given} ids: the last {wanted} of the {count} tokens that are kept")
        kept = ffi.new("uint64_t *")
        with self._gate:
            check(lib.kvt_seq_truncate(self._native, self.identity, count, ids, kept), "truncate", _RULES["truncate"])
        return int(kept[0])

    def window(self, sinks: int, window: int) -> None:
        """Drops all but the first `sinks` and the last `window` tokens."""
        with self._gate:
            check(lib.kvt_seq_window(self._native, self.identity, count_of("sinks", sinks, _NO_LIMIT),
                                     count_of("window", window, _NO_LIMIT)), "window", _RULES["window"])

    def idle(self) -> None:
        """Between turns: its blocks stay held, and may leave the device."""
        with self._gate:
            check(lib.kvt_seq_idle(self._native, self.identity), "idle", _RULES["idle"])

    def resume(self) -> Room:
        """Claims the device again, and fetches what is missing."""
        room = ffi.new("enum kvt_room *")
        with self._gate:
            check(lib.kvt_seq_resume(self._native, self.identity, room), "resume", _RULES["resume"])
        return Room(room[0])

    def finish(self, keep: bool = True) -> None:
        """Ends it; with `keep` its sealed blocks stay cached."""
        with self._gate:
            check(lib.kvt_seq_finish(self._native, self.identity, keep), "finish", _RULES["finish"])

    def table(self, group: int = 0) -> tuple[int, list[int]]:
        """First block and slots in one group, in token order; in a step only. NO_SLOT where a block was dropped."""
        return self._listed(lib.kvt_seq_table, "uint32_t[]", group, "table", int)

    def keys(self, group: int = 0) -> tuple[int, list[int]]:
        """First block and keys of the blocks, 128 bits each; 0 where a block is not sealed."""
        return self._listed(lib.kvt_seq_keys, "struct kvt_block_key[]", group, "keys",
                            lambda key: int(key.hi << 64 | key.lo))

    @property
    def stall(self) -> str:
        """What it waits for at this moment."""
        with self._gate:
            cause = lib.kvt_seq_stall(self._native, self.identity)
            return str(ffi.string(lib.kvt_stall_name(cause)).decode())

    @property
    def _gate(self) -> Gate:
        return self.runtime._handle.gate

    @property
    def _native(self) -> Any:
        return self.runtime._handle.runtime

    def _listed(self, call: Any, kind: str, group: int, what: str,
                value: Callable[[Any], int]) -> tuple[int, list[int]]:
        if not 0 <= group < len(self.runtime.shape.groups):
            raise Invalid(f"group is {group}: 0 to {len(self.runtime.shape.groups) - 1}")
        first, count, room = ffi.new("uint64_t *"), ffi.new("uint64_t *"), 64
        with self._gate:
            while True:
                listed = ffi.new(kind, room)
                check(call(self._native, self.identity, group, listed, room, first, count), what, _RULES[what])
                if count[0] <= room:
                    return int(first[0]), [value(listed[i]) for i in range(count[0])]
                room = int(count[0])


class Step:
    """A step that has begun. The blocks of its sequences are pinned until it ends."""

    def __init__(self, runtime: Runtime, sequences: list[Sequence], stream: int) -> None:
        entries = ffi.new("struct kvt_step_entry[]", len(sequences))
        for entry, sequence in zip(entries, sequences):
            if sequence.runtime is not runtime:
                raise Invalid("step: a sequence of another runtime")
            entry.seq = sequence.identity
        identity = ffi.new("kvt_step *")
        handle = runtime._handle
        with handle.gate:
            status = lib.kvt_step_begin(handle.runtime, entries, len(sequences), runtime._stream(stream), identity)
            check(status, "step", _RULES["step"])
        self._runtime = runtime
        self._identity = int(identity[0])
        told = [(sequence, int(entry.ready), int(entry.lost_from)) for sequence, entry in zip(sequences, entries)]
        self.ready = [sequence for sequence, ready, _ in told if ready == lib.KVT_READY]
        self.not_ready = [sequence for sequence, ready, _ in told if ready == lib.KVT_NOT_READY]
        self.lost = [Lost(sequence, lost_from) for sequence, ready, lost_from in told if ready == lib.KVT_LOST]

    def end(self) -> None:
        """Everything of the step is submitted to its stream."""
        identity, self._identity = self._identity, 0
        if identity != 0:
            with self._runtime._handle.gate:
                check(lib.kvt_step_end(self._runtime._handle.runtime, identity), "step end", _RULES["step end"])

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._runtime.closed:
            self.end()


def ready_step(runtime: Runtime, sequence: Sequence, count: int, timeout: float = 60.0) -> Step:
    """A step of one sequence with `count` more tokens, when it has room and blocks. Full: there is none."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        room = sequence.append(count) if count > 0 else Room.OK
        if room in (Room.FULL, Room.TOO_LONG):
            raise Full(f"step: {'active sequences claim the device' if room == Room.FULL else 'more than the device'}")
        if room == Room.OK:
            break
        runtime.wait(0.1)
    while time.monotonic() < until:
        step = runtime.step([sequence])
        if not step.not_ready:
            return step
        runtime.wait(0.1)
    raise Full(f"step: not ready after {timeout} s, waiting for {sequence.stall}")
