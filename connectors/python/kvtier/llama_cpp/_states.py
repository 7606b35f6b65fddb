"""
Whole states, as Llama.save_state makes them: what TieredCache keeps when it is not attached.

An entry serves prompts that begin with all of its tokens, and with a part of them when the state is seen to hold every
token in every layer: a cut would leave window layers without what the next token attends to otherwise, and llama.cpp
does not tell. Entries lie in host memory, in LRU order, and on the disk in parts; their heads, which hold the tokens, are
read at open, so that a restart finds them. Logits are left out unless the engine fills them.
"""

from __future__ import annotations

import collections
import json
import secrets
from typing import Any, NamedTuple

import numpy as np

from ..store import Digest, Store, digest
from ._attachment import Options, common_prefix, tokens_of

_PART_BYTES = 4 << 20
_HEAD, _PART = 1, 2
_SAVES_A_SWEEP = 256


class _Entry(NamedTuple):
    tokens: Any
    is_cuttable: bool
    payload: list[Any] | None  # None: on the disk alone
    parts: int  # on the disk


class States:
    """The store's records are in a namespace of their own, so that an attached cache may use the same directory."""

    def __init__(self, options: Options) -> None:
        self._capacity = options.host
        self._entries: collections.OrderedDict[Digest, _Entry] = collections.OrderedDict()  # used last at the end
        self._host_bytes = 0
        self._counts = dict.fromkeys(("saves", "matches", "host_hits", "nvme_hits", "too_large"), 0)
        self._store: Store | None = None
        if options.path is not None:
            self._store = Store(options.path, options.nvme, namespace="llama.cpp states/" + options.model,
                                salt=options.salt, key=options.key, bytes_per_day=options.nvme_bytes_per_day,
                                record_bytes_max=_PART_BYTES)
            for record in list(self._store.records()):
                if record.form == _HEAD and (written := self._store.get(record.key)) is not None:
                    head, tokens = _read_head(written)
                    self._entries[record.key] = _Entry(tokens, head["is_cuttable"], None, _parts_of(head["sizes"]))

    def put(self, state: Any) -> None:
        """Keeps a LlamaState. One that is larger than a cap is left out there, and evicts nothing."""
        count = int(state.n_tokens)
        if count == 0:
            return
        tokens = tokens_of(state.input_ids[:count]).copy()
        name = digest(tokens.tobytes())
        scores = np.asarray(state.scores)
        is_scored = scores.size > 0 and bool(scores[-1].any())
        head = {"tokens": count, "input_ids": len(state.input_ids), "size": int(state.llama_state_size),
                "seed": int(state.seed), "scores": list(scores.shape) if is_scored else None}
        payload = [json.dumps(head).encode(), tokens, bytes(state.llama_state)]
        if is_scored:
            payload.append(np.ascontiguousarray(scores, dtype=np.single))
        sizes = [memoryview(part).nbytes for part in payload]
        entry = _Entry(tokens, _holds_every_token(payload[2], count), payload, _parts_of(sizes))
        self._counts["saves"] += 1
        if self._counts["saves"] % _SAVES_A_SWEEP == 0:
            self._sweep()
        is_stored = self._put_store(name, entry)
        if not self._put_host(name, entry):
            self._counts["too_large"] += 1
            if is_stored:
                self._entries[name] = entry._replace(payload=None)

    def has(self, prompt: Any) -> bool:
        return self._find(prompt) is not None

    def get(self, prompt: Any) -> Any:
        """The LlamaState of the entry that has most of the prompt. KeyError: there is none."""
        self._counts["matches"] += 1
        while (name := self._find(prompt)) is not None:
            payload = self._take(name)
            if payload is not None:
                return _state_of(payload)
            self._drop_host(name)  # evicted or damaged meanwhile: the next save puts it there again
            self._entries.pop(name, None)
        raise KeyError("nothing of this prompt is kept")

    def clear(self) -> None:
        self._entries.clear()
        self._host_bytes = 0
        if self._store:
            self._store.reset()

    def flush(self) -> None:
        if self._store:
            self._store.sync()

    def stats(self) -> dict[str, Any]:
        store = self._store.stats() if self._store else collections.defaultdict(int)
        return {"entries": len(self._entries), "host_bytes": self._host_bytes,
                "host_capacity": self._capacity, "nvme_allocated_bytes": store["allocated_bytes"],
                "written_bytes": store["written_bytes"],
                "damaged_blocks": store["corrupt"] + store["recovered_bad"],  # found by a read, and at open
                **self._counts}

    def close(self) -> None:
        if self._store:
            self._store.close()

    # ---- Inside --------------------------------------------------------------------------------------------------

    def _find(self, prompt: Any) -> Digest | None:
        while True:
            best, found = 0, None
            for name, entry in self._entries.items():
                shared = common_prefix(entry.tokens, prompt)
                if shared > best and (entry.is_cuttable or shared == len(entry.tokens)):
                    best, found = shared, name
            if found is None or self._entries[found].payload is not None \
                    or self._is_stored(found, self._entries[found]):
                return found
            del self._entries[found]  # the store evicted it meanwhile

    def _is_stored(self, name: Digest, entry: _Entry) -> bool:
        """The head and all parts, as far as the store knows."""
        names = [name, *(_part_name(name, i) for i in range(entry.parts))]
        return self._store is not None and all(self._store.exists(names))

    def _sweep(self) -> None:
        """Entries that have left both tiers go, with their tokens."""
        for name, entry in list(self._entries.items()):
            if entry.payload is None and not self._is_stored(name, entry):
                del self._entries[name]

    def _put_host(self, name: Digest, entry: _Entry) -> bool:
        size = _size_of(entry)
        if size > self._capacity:
            return False
        self._drop_host(name)
        for other in list(self._entries):
            if self._host_bytes + size <= self._capacity:
                break
            self._drop_host(other)
        self._entries[name] = entry
        self._entries.move_to_end(name)
        self._host_bytes += size
        return True

    def _drop_host(self, name: Digest) -> None:
        entry = self._entries.get(name)
        if entry is None or entry.payload is None:
            return
        self._host_bytes -= _size_of(entry)
        if self._is_stored(name, entry):
            self._entries[name] = entry._replace(payload=None)
        else:
            del self._entries[name]

    def _put_store(self, name: Digest, entry: _Entry) -> bool:
        if self._store is None or entry.payload is None:
            return False
        body = [memoryview(part).cast("B") for part in entry.payload]
        parts = [part[i:i + _PART_BYTES] for part in body for i in range(0, len(part), _PART_BYTES)]
        if self._is_stored(name, entry):
            return True
        if sum(len(part) for part in parts) > self._store.stats()["capacity_bytes"] // 2:
            return False
        # A head names its parts by a number of this save: one that ends in the middle leaves no mix of two states behind.
        generation = secrets.randbits(63)
        self._store.delete([name])
        results = self._store.put_batch(((_part_name(name, i), part) for i, part in enumerate(parts)), form=_PART,
                                        generation=generation)
        if not all(result.ok for result in results):
            return False
        head = json.dumps({"sizes": [len(part) for part in body], "is_cuttable": entry.is_cuttable,
                           "generation": generation}).encode()
        # The head last: what it names is there.
        return self._store.put_batch([(name, head + b"\n" + entry.tokens.tobytes())], form=_HEAD)[0].ok

    def _take(self, name: Digest) -> list[Any] | None:
        entry = self._entries[name]
        if entry.payload is not None:
            self._entries.move_to_end(name)
            self._counts["host_hits"] += 1
            return entry.payload
        if self._store is None or (written := self._store.get(name)) is None:
            return None
        head, _ = _read_head(written)
        body = [bytearray(size) for size in head["sizes"]]
        views = [memoryview(one)[i:i + _PART_BYTES] for one in body for i in range(0, len(one), _PART_BYTES)]
        results = self._store.get_batch(((_part_name(name, i), view) for i, view in enumerate(views)),
                                        generation=head.get("generation", 0))
        if not all(result.ok and result.length == len(view) for result, view in zip(results, views)):
            self._store.delete([name])
            return None
        self._put_host(name, entry._replace(payload=list(body)))
        self._counts["nvme_hits"] += 1
        return list(body)


def _size_of(entry: _Entry) -> int:
    return sum(memoryview(part).nbytes for part in entry.payload or ())


def _read_head(written: bytearray) -> tuple[dict[str, Any], Any]:
    line, _, tokens = bytes(written).partition(b"\n")
    return json.loads(line), np.frombuffer(tokens, dtype=np.int32)


def _holds_every_token(state: bytes, count: int) -> bool:
    """
    Whether each layer group's list of cells says all positions from 0 on: position, number of sequences, sequence. A
    group that leaves some out has the last one all the same, so that the two patterns are found equally often only when
    all are whole. An unknown layout has none of them, and counts as not whole.
    """
    cells = np.zeros((count, 3), dtype=np.int32)
    cells[:, 0], cells[:, 1] = np.arange(count), 1
    whole = state.count(cells.tobytes())
    return whole > 0 and whole == state.count(cells[-1].tobytes())


def _parts_of(sizes: list[int]) -> int:
    return sum((size + _PART_BYTES - 1) // _PART_BYTES for size in sizes)


def _part_name(name: Digest, index: int) -> bytes:
    return name + index.to_bytes(4, "little")


def _state_of(payload: list[Any]) -> Any:
    from llama_cpp.llama import LlamaState

    head = json.loads(bytes(payload[0]))
    ids = np.full(head["input_ids"], -1, dtype=np.intc)
    ids[:head["tokens"]] = np.frombuffer(payload[1], dtype=np.int32)
    if head["scores"] is None:
        scores = np.zeros((1, 1), dtype=np.single)  # fills its place with zeros, as it was
    else:
        scores = np.frombuffer(payload[3], dtype=np.single).reshape(head["scores"])
    return LlamaState(scores=scores, input_ids=ids, n_tokens=head["tokens"], llama_state=bytes(payload[2]),
                      llama_state_size=head["size"], seed=head["seed"])
