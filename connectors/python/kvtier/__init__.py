"""
kvtier: LLM KV-cache blocks tiered over device memory, host memory and NVMe; exact bytes back, or a miss.

    with kvtier.Store("/scratch/kv", "4GiB") as store:
        store.put("name", data)
        data = store.get("name")          # None: compute it again

`Store` is the NVMe store alone, `Runtime` the whole of it; `kvtier.llama_cpp` puts both behind llama-cpp-python.
"""

from .errors import (Busy, Closed, Corrupt, DiskError, Error, Full, Invalid, NotFound, OutOfMemory, Status,
                     Unsupported)
from .runtime import NO_SLOT, Group, Lost, Room, Runtime, Sequence, Shape, Step, ready_step
from .store import Completion, Digest, Pin, Record, Result, Store, digest

__all__ = ["Busy", "Closed", "Completion", "Corrupt", "Digest", "DiskError", "Error", "Full", "Group", "Invalid",
           "Lost", "NO_SLOT", "NotFound", "OutOfMemory", "Pin", "Record", "Result", "Room", "Runtime", "Sequence",
           "Shape", "Status", "Step", "Store", "Unsupported", "digest", "ready_step"]
