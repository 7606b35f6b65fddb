"""
llama-cpp-python on kvtier: prompts that come back in milliseconds, after a restart too.

    TieredCache("/scratch/kv").attach(llama)         in the place of LlamaRAMCache and LlamaDiskCache
    Sessions(llama, slots=3, path="/scratch/kv")     many named conversations on few sequences
"""

from ._cache import TieredCache
from ._sessions import Session, Sessions

__all__ = ["Session", "Sessions", "TieredCache"]
