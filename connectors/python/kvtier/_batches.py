"""
Batches of store ops between Python's threads and the C store.

From the submit that accepts it until poll hands it back, the store owns an op and its buffer: so a batch lives in
`_running` until its last op is back, whatever becomes of the thread that asked for it. Any thread that waits drives the
others' batches too; one at a time sleeps in the library, the others on its news.
"""

from __future__ import annotations

import collections
import os
import select
import threading
import time
from typing import Any

from ._native import SLICE_NS, Gate, ffi, lib
from .errors import Status

_POLL_MAX = 64


class Batch:
    """Ops that were asked for together. `keep` holds the views of their buffers."""

    def __init__(self, identity: int, count: int, is_waited_for: bool) -> None:
        self.identity = identity
        self.count = count
        self.is_waited_for = is_waited_for
        self.ops: Any = ffi.new("struct kvt_store_op[]", count)
        self.keep: list[Any] = []
        self.user: Any = None  # never touched
        self.submitted = 0
        self.done = 0
        self._pointers: Any = ffi.new("struct kvt_store_op *[]", [self.ops + i for i in range(count)])

    @property
    def is_done(self) -> bool:
        return self.done == self.count

    def submit(self, store: Any) -> int:
        """Gives the store what it takes; says how many that were."""
        accepted = int(lib.kvt_store_submit(store, self._pointers + self.submitted, self.count - self.submitted))
        self.submitted += accepted
        return accepted

    def refuse(self) -> None:
        """The op that the store does not take, though nothing is in its way, ends as FULL."""
        self.ops[self.submitted].status = Status.FULL
        self.submitted += 1
        self.done += 1


class Engine:
    """An open store, and its batches. close() may come from any thread, and from the end of the interpreter."""

    def __init__(self, store: Any, what: str) -> None:
        self.store = store
        self.gate = Gate(what)
        self._lock = threading.Condition(threading.Lock())
        self._identity = 0
        self._running: dict[int, Batch] = {}
        self._queued: collections.deque[Batch] = collections.deque()  # not all submitted; the first is next
        self._finished: collections.deque[Batch] = collections.deque()  # that nobody waits for, for poll()
        self._in_flight = 0  # ops that the store owns
        self._is_watched = False  # a thread sleeps in the library
        self._done_ops: Any = ffi.new("struct kvt_store_op *[]", _POLL_MAX)
        # What select() sees: the store's own completions, and batches that another thread has finished already.
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._poller.register(lib.kvt_store_eventfd(store), select.EPOLLIN)
        self._poller.register(self._event, select.EPOLLIN)

    @property
    def descriptor(self) -> int:
        return self._poller.fileno()

    def new_batch(self, count: int, is_waited_for: bool) -> Batch:
        with self._lock:
            self._identity += 1
            return Batch(self._identity, count, is_waited_for)

    def start(self, batch: Batch) -> None:
        """Submits a batch that is filled in. Never blocks: what does not fit follows as others come back."""
        user = ffi.cast("void *", batch.identity)
        for op in batch.ops:
            op.user = user
        with self._lock:
            self._running[batch.identity] = batch
            self._queued.append(batch)
            if len(self._queued) == 1:
                self._submit()
            if batch.is_done:
                self._end(batch)

    def poll(self) -> list[Batch]:
        """Batches that came to their end since the last call and that nobody waits for."""
        with self._lock:
            self._pump()
            finished = list(self._finished)
            self._finished.clear()
            if finished:
                os.eventfd_read(self._event)
        return finished

    def wait_for(self, batch: Batch) -> None:
        self._wait(lambda: batch.is_done, None)

    def wait(self, timeout_ns: int | None) -> bool:
        """Blocks until poll() has something, or the time has passed: False."""
        return self._wait(lambda: bool(self._finished), timeout_ns)

    def close(self) -> None:
        self.gate.close(self._close)

    # ---- With the lock held --------------------------------------------------------------------------------------

    def _pump(self) -> None:
        while True:
            count = int(lib.kvt_store_poll(self.store, self._done_ops, _POLL_MAX))
            for i in range(count):
                batch = self._running[int(ffi.cast("uintptr_t", self._done_ops[i].user))]
                batch.done += 1
                self._in_flight -= 1
                if batch.is_done:
                    self._end(batch)
            if count > 0 and self._queued:
                self._submit()
            if count < _POLL_MAX:
                return

    def _submit(self) -> None:
        while self._queued:
            batch = self._queued[0]
            self._in_flight += batch.submit(self.store)
            while batch.submitted < batch.count and self._in_flight == 0:
                batch.refuse()
                self._in_flight += batch.submit(self.store)
            if batch.submitted < batch.count:
                return
            self._queued.popleft()
            if batch.is_done:
                self._end(batch)

    def _end(self, batch: Batch) -> None:
        if self._running.pop(batch.identity, None) is None:
            return
        batch.keep.clear()
        if not batch.is_waited_for:
            self._finished.append(batch)
            if len(self._finished) == 1:
                os.eventfd_write(self._event, 1)
        self._lock.notify_all()

    # ---- Waiting -------------------------------------------------------------------------------------------------

    def _wait(self, is_there: Any, timeout_ns: int | None) -> bool:
        until = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        while True:
            with self._lock:
                self._pump()
                if is_there():
                    return True
                left = SLICE_NS if until is None else min(SLICE_NS, until - time.monotonic_ns())
                if left <= 0:
                    return False
                is_watcher = not self._is_watched
                if is_watcher:
                    self._is_watched = True
                else:
                    self._lock.wait(left / 1e9)
            if is_watcher:
                self._watch(left)
            self.gate.check()

    def _watch(self, timeout_ns: int) -> None:
        try:
            lib.kvt_store_wait(self.store, timeout_ns)
        finally:
            with self._lock:
                self._is_watched = False
                self._lock.notify_all()

    def _close(self) -> None:
        store = ffi.new("struct kvt_store **", self.store)
        lib.kvt_store_close(store)
        # Only now are the ops that had not come back, and their buffers, the caller's again.
        self.store = ffi.NULL
        self._running.clear()
        self._queued.clear()
        self._poller.close()
        os.close(self._event)
