"""The store alone: immutable blobs on a local disk; exact bytes back, or a miss."""

from __future__ import annotations

import os
import weakref
from typing import Any, Iterable, Iterator, NamedTuple, Sequence, Union

from ._batches import Batch, Engine
from ._native import (buffer_of, bytes_of, check, check_open, count_of, ffi, fields_of, lib, nanoseconds, size_of,
                      status_text)
from .errors import Closed, Error, Full, Invalid, Status, error_of

Key = Union[bytes, str, "Digest"]
Buffer = Any  # an object with the buffer protocol: bytes, bytearray, memoryview, array.array, mmap, a numpy array

_ERROR_BYTES = 512
_LISTED_MAX = 256


class Digest(bytes):
    """A key that is a 128-bit digest already: 16 bytes that are used as they are."""

    def __new__(cls, value: bytes) -> Digest:
        if len(value) != 16:
            raise Invalid(f"a Digest has {len(value)} bytes: 16")
        return super().__new__(cls, value)


def digest(value: bytes | str) -> Digest:
    """The 128-bit digest by which the store knows a key: BLAKE2b, the same in every process."""
    data, words = bytes_of("value", value), ffi.new("uint64_t[2]")
    lib.kvt_store_digest(data, len(data), words)
    return Digest(bytes(ffi.buffer(words)))


class Result(NamedTuple):
    """How one op of a batch ended. Of a get: what the record says of itself."""

    status: Status
    length: int
    form: int
    tokens: int
    generation: int

    @property
    def ok(self) -> bool:
        return self.status == Status.OK


class Completion(NamedTuple):
    """A batch that was submitted and is done. `batch` is what submit returned."""

    batch: int
    results: list[Result]


class Record(NamedTuple):
    """What is known of a record without reading it."""

    key: Digest
    length: int
    form: int
    tokens: int
    generation: int


class Pin:
    """A hold on a record: it is not dropped to make room. Ends with release(), or with the `with` block."""

    def __init__(self, engine: Engine, name: Any, record: Record) -> None:
        self.record = record
        self._release = weakref.finalize(self, _release_pin, engine, name)

    def release(self) -> None:
        self._release()

    def __enter__(self) -> Record:
        return self.record

    def __exit__(self, *_: object) -> None:
        self.release()


def _release_pin(engine: Engine, name: Any) -> None:
    try:
        with engine.gate:
            lib.kvt_store_release(engine.store, name)
    except Closed:
        pass  # with the store its holds have ended


class Store:
    """
    A store directory, open. `path` is a directory, or several on different disks; `capacity` the most disk space that
    it takes, as du sees it. Records of one (namespace, salt) do not meet those of another.

    Every call may come from any thread and gives the GIL back while it waits. Buffers are read and written in place.
    After a fork the child has to open its own; close() there does nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], capacity: int | str, *,
                 namespace: bytes | str = b"", salt: bytes | str = b"", key: bytes | None = None,
                 queue_depth: int = 256, queue_bytes: int | str = 0, staging_bytes: int | str = 0,
                 reserve_bytes: int | str = 0, bytes_per_day: int | str = 0, held_bytes_max: int | str = 0,
                 record_bytes_max: int | str = 0, link_bytes_per_s: int | str = 0, queue_ms: int = 0,
                 is_existing: bool = False) -> None:
        config = ffi.new("struct kvt_store_config *", lib.kvt_store_config_default())
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if not 1 <= len(paths) <= lib.KVT_STORE_PATHS_MAX:
            raise Invalid(f"path has {len(paths)} directories: 1 to {lib.KVT_STORE_PATHS_MAX}")
        names = [ffi.new("char[]", os.fsencode(one)) for one in paths]
        array = ffi.new("const char *[]", names)
        config.paths, config.path_count = array, len(names)
        config.capacity_bytes = size_of("capacity", capacity)
        for name, value in (("queue_bytes", queue_bytes), ("staging_bytes", staging_bytes),
                            ("reserve_bytes", reserve_bytes), ("bytes_per_day", bytes_per_day),
                            ("held_bytes_max", held_bytes_max), ("link_bytes_per_s", link_bytes_per_s)):
            setattr(config, name, size_of(name, value))
        config.record_bytes_max = count_of("record_bytes_max", size_of("record_bytes_max", record_bytes_max))
        config.queue_depth = count_of("queue_depth", queue_depth)
        config.queue_ms = count_of("queue_ms", queue_ms)
        config.is_existing = is_existing
        secret = ffi.NULL
        if key is not None:
            key = bytes_of("key", key)
            if len(key) != 32:
                raise Invalid(f"key has {len(key)} bytes: 32")
            secret = ffi.new("uint8_t[32]", key)
        config.key = secret
        self._space = _space_of(namespace, salt)
        opened, error = ffi.new("struct kvt_store **"), ffi.new("char[]", _ERROR_BYTES)
        what = f"store {', '.join(os.fsdecode(one) for one in paths)}"
        check_open(lib.kvt_store_open(config, ffi.NULL, opened, error, _ERROR_BYTES), what, error)
        self._engine = Engine(opened[0], what)
        self._close = weakref.finalize(self, self._engine.close)
        self.length_max = int(lib.kvt_store_length_max(opened[0]))

    # ---- One record ----------------------------------------------------------------------------------------------

    def put(self, key: Key, data: Buffer, **options: Any) -> None:
        """Stores a record; it can be got when this returns. The options are put_batch's. Full: see there."""
        result, = self.put_batch([(key, data)], **options)
        if result.status == Status.FULL and len(memoryview(data).cast("B")) > self.length_max:
            raise Full(f"data has {memoryview(data).nbytes} bytes: at most {self.length_max} in this store")
        check(result.status, f"put {key!r}")

    def get(self, key: Key, generation: int | None = None) -> bytearray | None:
        """The record's bytes, or None: not there, or it failed its check and is forgotten."""
        while (found := self.find(key)) is not None:
            data = bytearray(found.length)
            result, = self.get_batch([(key, data)], generation=generation)
            if result.ok:
                del data[result.length:]
                return data
            if result.status != Status.FULL:  # full: a longer one was put meanwhile
                _check_get(result.status, key)
                return None
        return None

    def get_into(self, key: Key, buffer: Buffer, generation: int | None = None) -> int | None:
        """Reads the record into a buffer, and says how long it is; None as for get. Full: it does not fit."""
        result, = self.get_batch([(key, buffer)], generation=generation)
        if result.status == Status.FULL:
            raise Full(f"get {key!r}: the record has {result.length} bytes, the buffer {memoryview(buffer).nbytes}")
        _check_get(result.status, key)
        return result.length if result.ok else None

    def __contains__(self, key: Key) -> bool:
        return self.exists([key])[0]

    def find(self, key: Key) -> Record | None:
        """What the index knows of a record, from memory."""
        name, found = self._name(key), ffi.new("struct kvt_store_found *")
        with self._engine.gate:
            is_there = lib.kvt_store_find(self._engine.store, name, found)
        return _record(name[0], found) if is_there else None

    def pin(self, key: Key) -> Pin | None:
        """Finds and holds a record. None: no such record, or more than `held_bytes_max` would be held."""
        name, found = self._name(key), ffi.new("struct kvt_store_found *")
        with self._engine.gate:
            is_held = lib.kvt_store_hold(self._engine.store, name, found)
        return Pin(self._engine, name, _record(name[0], found)) if is_held else None

    def lost(self) -> list[Digest]:
        """Pinned records that had to be dropped all the same (the disk failed, a reset), each told once."""
        names = ffi.new("struct kvt_store_name[]", _LISTED_MAX)
        with self._engine.gate:
            count = lib.kvt_store_poll_lost(self._engine.store, names, _LISTED_MAX)
        return [_digest_of(names[i]) for i in range(count)]

    # ---- Many records --------------------------------------------------------------------------------------------

    def put_batch(self, items: Iterable[tuple[Key, Buffer]], **options: Any) -> list[Result]:
        """
        Stores (key, buffer) pairs and waits for them; one result for each. FULL: no room, too long, paused after a full
        disk, or the day's bytes used up. The options are submit_put's.
        """
        return self._run(self._put(items, is_waited_for=True, **options))

    def get_batch(self, items: Iterable[tuple[Key, Buffer]], generation: int | None = None, *,
                  is_urgent: bool = False, is_in_place: bool = False) -> list[Result]:
        """
        Reads records into (key, buffer) pairs, and waits; one result for each. NOTFOUND | CORRUPT or IO: it failed and
        is forgotten | FULL: longer than its buffer, see `length`. What is in the buffer then is undefined.
        """
        return self._run(self._get(items, True, generation, is_urgent, is_in_place))

    def exists(self, keys: Iterable[Key]) -> list[bool]:
        """What the index says of each key, from memory."""
        names, count = self._names(keys)
        found = ffi.new("bool[]", count)
        with self._engine.gate:
            lib.kvt_store_exists(self._engine.store, names, count, found)
        return [bool(one) for one in found]

    def delete(self, keys: Iterable[Key]) -> int:
        """Forgets the records; says how many there were. Until its segment is recycled a restart may bring one back."""
        names, count = self._names(keys)
        with self._engine.gate:
            return int(lib.kvt_store_delete(self._engine.store, names, count))

    def records(self) -> Iterator[Record]:
        """Lists the records of this namespace and salt, in no order; what is put meanwhile may be missing."""
        cursor, listed = ffi.new("uint64_t *"), ffi.new("struct kvt_store_listed[]", _LISTED_MAX)
        while True:
            with self._engine.gate:
                count = lib.kvt_store_list(self._engine.store, cursor, listed, _LISTED_MAX)
            if count == 0:
                return
            for i in range(count):
                if list(listed[i].name.space) == self._space:
                    yield _record(listed[i].name, listed[i])

    # ---- Batches that nobody waits for ---------------------------------------------------------------------------

    def submit_put(self, items: Iterable[tuple[Key, Buffer]], *, form: int = 0, tokens: int = 0, generation: int = 0,
                   is_private: bool = False, is_needed: bool = False, is_in_place: bool = False) -> int:
        """
        As put_batch, but returns at once with a number that poll() gives back. Until then the buffers are the store's.
        `form` (0 to 3) and `tokens` (to 65535) are labels of the caller's; a get may ask for its `generation` alone.
        is_private: gone with this process. is_needed: goes even when the day's bytes are used up. is_in_place: the
        buffer is worth moving without a copy: huge pages, aligned to stats()["alignment"].
        """
        return self._start(self._put(items, False, form, tokens, generation, is_private, is_needed, is_in_place))

    def submit_get(self, items: Iterable[tuple[Key, Buffer]], generation: int | None = None, *,
                   is_urgent: bool = False, is_in_place: bool = False) -> int:
        """As get_batch, but returns at once with a number that poll() gives back."""
        return self._start(self._get(items, False, generation, is_urgent, is_in_place))

    def poll(self) -> list[Completion]:
        """The submitted batches that are done; each comes back exactly once. Never blocks."""
        with self._engine.gate:
            return [Completion(batch.identity, _results(batch)) for batch in self._engine.poll()]

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until poll() has something, or `timeout` seconds passed: False."""
        with self._engine.gate:
            return self._engine.wait(nanoseconds(timeout))

    def fileno(self) -> int:
        """For select(): readable while poll() has something. It may be readable for nothing. Owned by the store."""
        with self._engine.gate:
            return self._engine.descriptor

    # ---- All of it -----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Returns when all that was put is on the device."""
        with self._engine.gate:
            check(lib.kvt_store_sync(self._engine.store), "sync")

    def reset(self) -> None:
        """Forgets every record of every namespace, durably."""
        with self._engine.gate:
            check(lib.kvt_store_reset(self._engine.store), "reset")

    def compact(self) -> None:
        """Moves together what lies scattered, and gives empty segment files back to the file system."""
        with self._engine.gate:
            check(lib.kvt_store_compact(self._engine.store), "compact")

    def stats(self) -> dict[str, Any]:
        """The numbers of struct kvt_store_stats in kvtier/store.h, by name."""
        stats = ffi.new("struct kvt_store_stats *")
        with self._engine.gate:
            lib.kvt_store_stats(self._engine.store, stats)
            return fields_of(stats[0])

    def close(self) -> None:
        """Makes durable, ends what runs, closes. A second call does nothing."""
        self._close()

    @property
    def closed(self) -> bool:
        return self._engine.gate.is_closed

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Inside --------------------------------------------------------------------------------------------------

    def _name(self, key: Key) -> Any:
        name = ffi.new("struct kvt_store_name *")
        self._write_name(name, key)
        return name

    def _write_name(self, name: Any, key: Key) -> None:
        name.space = self._space
        if isinstance(key, Digest):
            ffi.memmove(name.key, key, 16)
        else:
            data = bytes_of("key", key)
            lib.kvt_store_digest(data, len(data), name.key)

    def _names(self, keys: Iterable[Key]) -> tuple[Any, int]:
        if isinstance(keys, (bytes, str)):
            raise TypeError(f"keys is one {type(keys).__name__}: a list of keys")
        listed = list(keys)
        names = ffi.new("struct kvt_store_name[]", len(listed))
        for i, key in enumerate(listed):
            self._write_name(ffi.addressof(names, i), key)
        return names, len(listed)

    def _put(self, items: Iterable[tuple[Key, Buffer]], is_waited_for: bool, form: int = 0, tokens: int = 0,
             generation: int = 0, is_private: bool = False, is_needed: bool = False,
             is_in_place: bool = False) -> Batch:
        count_of("form", form, lib.KVT_STORE_FORM_MAX)
        count_of("tokens", tokens, 65535)
        flags = ((lib.KVT_STORE_PRIVATE if is_private else 0) | (lib.KVT_STORE_NEEDED if is_needed else 0)
                 | (lib.KVT_STORE_IN_PLACE if is_in_place else 0))
        batch = self._fill(items, lib.KVT_STORE_PUT, flags, generation, is_waited_for)
        for i, op in enumerate(batch.ops):
            if op.length == 0:
                raise Invalid(f"buffer {i} has 0 bytes: a record has at least 1")
            op.form, op.tokens = form, tokens
        return batch

    def _get(self, items: Iterable[tuple[Key, Buffer]], is_waited_for: bool, generation: int | None,
             is_urgent: bool, is_in_place: bool) -> Batch:
        flags = ((lib.KVT_STORE_GENERATION_ANY if generation is None else 0)
                 | (lib.KVT_STORE_URGENT if is_urgent else 0) | (lib.KVT_STORE_IN_PLACE if is_in_place else 0))
        return self._fill(items, lib.KVT_STORE_GET, flags, generation or 0, is_waited_for)

    def _fill(self, items: Iterable[tuple[Key, Buffer]], kind: int, flags: int, generation: int,
              is_waited_for: bool) -> Batch:
        listed = list(items)
        count_of("generation", generation, 0xFFFFFFFFFFFFFFFF)
        batch = self._engine.new_batch(len(listed), is_waited_for)
        for i, (key, data) in enumerate(listed):
            op, view = batch.ops[i], buffer_of(f"buffer {i}", data, kind == lib.KVT_STORE_GET)
            op.kind, op.flags, op.generation = kind, flags, generation
            self._write_name(ffi.addressof(op, "name"), key)
            op.buffer, op.length = view, count_of(f"length of buffer {i}", len(view))
            batch.keep.append(view)
        return batch

    def _start(self, batch: Batch) -> int:
        with self._engine.gate:
            self._engine.start(batch)
        return batch.identity

    def _run(self, batch: Batch) -> list[Result]:
        with self._engine.gate:
            self._engine.start(batch)
            self._engine.wait_for(batch)
        return _results(batch)


def _space_of(namespace: bytes | str, salt: bytes | str) -> list[int]:
    """Digests both, each behind its length: two pairs that differ never read the same."""
    parts = [bytes_of("namespace", namespace), bytes_of("salt", salt)]
    data = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    words = ffi.new("uint64_t[2]")
    lib.kvt_store_digest(data, len(data), words)
    return list(words)


def _digest_of(name: Any) -> Digest:
    return Digest(bytes(ffi.buffer(ffi.addressof(name, "key"))))


def _record(name: Any, found: Any) -> Record:
    return Record(_digest_of(name), found.length, found.form, found.tokens, found.generation)


def _results(batch: Batch) -> list[Result]:
    return [Result(Status(op.status), op.ret_length, op.ret_form, op.ret_tokens, op.ret_generation)
            for op in batch.ops]


def _check_get(status: Status, key: Key) -> None:
    """A record that is not there, or no longer, is a miss and no error."""
    if status not in (Status.OK, Status.NOTFOUND, Status.CORRUPT, Status.IO):
        raise error_of(status, f"get {key!r}: {status_text(status)}")
