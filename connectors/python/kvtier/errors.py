"""What a failed call raises: a class for each status of the C library, each also the Python error one expects."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """How one op of a batch ended. The values are the C library's."""

    OK = 0
    NOMEM = -1
    INVAL = -2
    FULL = -3
    IO = -4
    CORRUPT = -5
    UNSUPPORTED = -6
    SHUTDOWN = -7
    BUSY = -8
    NOTFOUND = -9


class Error(Exception):
    """Base of all that kvtier raises. `status` says which of the C library's statuses it is."""

    status = Status.OK


class OutOfMemory(Error, MemoryError):
    status = Status.NOMEM


class Invalid(Error, ValueError):
    """A value that cannot be: the message names it and the rule."""

    status = Status.INVAL


class Full(Error):
    """No room: too long, the queue full, the disk full or too slow, or the day's bytes used up."""

    status = Status.FULL


class DiskError(Error, OSError):
    status = Status.IO


class Corrupt(Error):
    """Bytes that fail their check. They were forgotten, and not handed out."""

    status = Status.CORRUPT


class Unsupported(Error, NotImplementedError):
    status = Status.UNSUPPORTED


class Closed(Error, ValueError):
    """It was closed, or this process is a child of the one that opened it."""

    status = Status.SHUTDOWN


class Busy(Error, BlockingIOError):
    """Another process, or another handle in this one, has it open; or a wait ran out of time."""

    status = Status.BUSY


class NotFound(Error, KeyError):
    status = Status.NOTFOUND

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would put it in quotes


_CLASSES: dict[int, type[Error]] = {
    cls.status: cls
    for cls in (OutOfMemory, Invalid, Full, DiskError, Corrupt, Unsupported, Closed, Busy, NotFound)
}


def error_of(status: int, what: str) -> Error:
    """The exception for a status. `what` says what was tried, and why it failed where that is known."""
    return _CLASSES[int(status)](what)
