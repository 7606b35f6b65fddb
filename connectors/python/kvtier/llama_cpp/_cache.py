"""TieredCache: in the place of LlamaRAMCache and LlamaDiskCache."""

from __future__ import annotations

import os
from typing import Any, Iterable

import numpy as np

from ..errors import Closed, Full, Invalid, OutOfMemory
from ._attachment import Attachment, Options, common_prefix, library_handle, tokens_of
from ._states import States


class AttachedState:
    """What an attached llama's save_state gives: the tokens alone. Their KV is in the cache."""

    def __init__(self, llama: Any) -> None:
        self.input_ids = llama.input_ids[:llama.n_tokens].copy()
        self.n_tokens = int(llama.n_tokens)
        self.seed = llama._seed
        self.llama_state_size = 0


class TieredCache:
    """
    A cache of prompts for llama_cpp.Llama: in host memory, and on disk with `path`.

        llama.set_cache(kvtier.llama_cpp.TieredCache("/scratch/kv"))       whole states, as the other caches have
        kvtier.llama_cpp.TieredCache("/scratch/kv").attach(llama)          states of the sequence, without logits

    attach() is the fast one: a turn costs its new tokens, shared beginnings are kept once, packed, and a prompt that
    branches off comes back from the last block before it. Without it every entry is a whole state, and serves prompts
    that begin with all of it. Entries of another `salt` are never found. Sizes are bytes or text as '4GiB'.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, host: int | str = "512MiB",
                 nvme: int | str = "4GiB", salt: bytes | str = b"", *, key: bytes | None = None,
                 nvme_bytes_per_day: int | str = 0, model: str = "", block_tokens: int = 0,
                 is_codec_off: bool = False, is_whole: bool = False) -> None:
        self._options = Options(path, host, nvme, salt, key, nvme_bytes_per_day, model, block_tokens, is_codec_off,
                                is_whole)
        self._states: States | None = None
        self._attached: _Attached | None = None
        self._is_closed = False

    # ---- What Llama calls ----------------------------------------------------------------------------------------

    @property
    def cache_size(self) -> int:
        """Bytes of what is kept, in host memory and on the disk."""
        numbers = self.stats()
        return int(numbers["host_bytes"]) + int(numbers["nvme_allocated_bytes"])

    @property
    def capacity_bytes(self) -> int:
        return self._options.host + (self._options.nvme if self._options.path is not None else 0)

    def __getitem__(self, key: Iterable[int]) -> Any:
        """Attached, this also puts the engine's sequence where the prompt goes on. KeyError: nothing of it is kept."""
        self._check()
        if self._attached:
            return self._attached.take(tokens_of(key))
        return self._whole().get(tokens_of(key))

    def __contains__(self, key: Iterable[int]) -> bool:
        self._check()
        tokens = tokens_of(key)
        return self._attached.attachment.match(tokens) > 0 if self._attached else self._whole().has(tokens)

    def __setitem__(self, key: Iterable[int], value: Any) -> None:
        self._check()
        if isinstance(value, AttachedState):
            return  # save_state has kept it already
        if self._attached:
            raise Invalid("this cache is attached: a whole state has no place in it")
        self._whole().put(value)

    # ---- What people call ----------------------------------------------------------------------------------------

    def attach(self, llama: Any) -> TieredCache:
        """
        Puts this cache into a Llama, which is empty afterwards, and into its save_state and load_state. It is detached by
        detach(), close(), or when the Llama is closed.
        """
        self._check()
        if self._attached:
            raise Invalid("this cache is attached already: one cache for each Llama")
        if self._states:
            raise Invalid("this cache holds whole states already: attach it before its first use")
        self._attached = _Attached(self._options, llama)
        llama.set_cache(self)
        llama._stack.callback(self.detach)
        return self

    def detach(self) -> None:
        """Gives the Llama its own methods back, and makes durable what is kept. Nothing happens when not attached."""
        attached, self._attached = self._attached, None
        if attached:
            attached.detach(self)

    def save(self) -> None:
        """Keeps what the attached Llama holds at this moment, as after each completion."""
        self._check()
        if not self._attached:
            raise Invalid("save: this cache is not attached")
        self._attached.save()

    def flush(self) -> None:
        """Returns when all that is kept is on the disk."""
        self._check()
        if self._attached:
            self._attached.attachment.flush()
        elif self._states:
            self._states.flush()

    def clear(self) -> None:
        """Forgets everything, on the disk too."""
        self._check()
        if self._attached:
            self._attached.attachment.forget_all()
        else:
            self._whole().clear()

    def stats(self) -> dict[str, Any]:
        """
        Attached: the numbers of struct kvt_llama_stats in kvtier/llama.h, and `evaluated_tokens`, by the engine since
        then. Otherwise those of the whole states.
        """
        self._check()
        if self._attached:
            return {**self._attached.attachment.stats(), "evaluated_tokens": self._attached.evaluated}
        return self._whole().stats()

    def close(self) -> None:
        """Detaches, makes durable, closes. A second call does nothing."""
        self.detach()
        states, self._states = self._states, None
        self._is_closed = True
        if states:
            states.close()

    def __enter__(self) -> TieredCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._is_closed:
            raise Closed("this cache is closed")

    def _whole(self) -> States:
        if self._states is None:
            self._states = States(self._options)
        return self._states


class _Attached:
    """A Llama whose sequence 0 is kept, and the methods of it that know."""

    METHODS = ("eval", "save_state", "load_state")

    def __init__(self, options: Options, llama: Any) -> None:
        import llama_cpp

        if llama._ctx.memory is None:
            raise Invalid("attach: this Llama has no KV cache (an embedding model)")
        self.llama = llama
        self._library = llama_cpp
        llama.reset()
        llama._ctx.kv_cache_clear()
        self.attachment = Attachment(options, llama._ctx.ctx, library_handle())
        self._eval, self._load_state, self._cut = llama.eval, llama.load_state, llama._ctx.kv_cache_seq_rm
        self._kept = tokens_of([])  # what was saved last, or restored
        self.evaluated = 0
        llama.eval, llama.save_state, llama.load_state = self.eval, self.save_state, self.load_state
        llama._ctx.kv_cache_seq_rm = self.cut

    def detach(self, cache: TieredCache) -> None:
        llama = self.llama
        for name in self.METHODS:
            llama.__dict__.pop(name, None)
        llama._ctx.__dict__.pop("kv_cache_seq_rm", None)
        if llama.cache is cache:
            llama.set_cache(None)
        self.attachment.detach()

    # ---- In the place of Llama's methods -------------------------------------------------------------------------

    def eval(self, tokens: Any) -> None:
        """As Llama.eval, in the same batches; before window tokens would be pushed out unsaved, it saves."""
        size = self.llama.n_batch
        if not self.cut(0, int(self.llama.n_tokens), -1):
            # An evaluation that was interrupted has left cells, and pushed out window tokens from before them.
            live = self.tokens().copy()
            tokens = [*live[self.restore(live):].tolist(), *tokens]
        for i in range(0, len(tokens), size):
            batch = tokens[i:i + size]
            if self.attachment.is_due(0, int(self.llama.n_tokens), len(batch)):
                self.save()
            self._eval(batch)
            self.evaluated += len(batch)

    def cut(self, sequence: int, first: int, end: int) -> bool:
        """
        As LlamaContext.kv_cache_seq_rm, but False, and nothing done, when a window layer would be left without what the
        next token attends to: Llama evaluates the prompt from its start then.
        """
        if end < 0 and not self.can_cut(first):
            return False
        return bool(self._cut(sequence, first, end))

    def save_state(self) -> AttachedState:
        self.save()
        return AttachedState(self.llama)

    def load_state(self, state: Any) -> None:
        if not isinstance(state, AttachedState):
            self._load_state(state)
            self.attachment.taint(0)
            self._kept = tokens_of([])
            return
        self.save()
        have = self.restore(tokens_of(state.input_ids))
        self.llama.eval(state.input_ids[have:].tolist())
        self.llama._seed = state.seed

    # ---- The sequence --------------------------------------------------------------------------------------------

    def tokens(self) -> Any:
        return tokens_of(self.llama.input_ids[:self.llama.n_tokens])

    def can_cut(self, length: int) -> bool:
        """Whether the sequence, cut to that length, still has all that its next token attends to."""
        window, memory = self.attachment.window, self.llama._ctx.memory
        if window == 0 or length == 0 or length > self._library.llama_memory_seq_pos_max(memory, 0):
            return True
        return bool(self._library.llama_memory_seq_pos_min(memory, 0) <= max(0, length - window + 1))

    def save(self) -> None:
        """Keeps what the sequence holds, unless that was kept already. What cannot be kept is computed again."""
        tokens = self.tokens()
        if len(tokens) == 0 or np.array_equal(tokens, self._kept):
            return
        if not self.cut(0, len(tokens), -1):
            return
        try:
            self.attachment.save(0, tokens)
        except (Invalid, OutOfMemory):
            return  # Invalid: its positions were shifted, or it came from elsewhere
        self._kept = tokens.copy()

    def restore(self, prompt: Any) -> int:
        """Puts what is kept of the prompt into the sequence; the rest is Llama's to evaluate."""
        llama = self.llama
        llama.n_tokens = 0
        try:
            have = self.attachment.restore(0, prompt)
        except (Full, OutOfMemory):
            llama._ctx.kv_cache_clear()
            have = 0
        llama.input_ids[:have] = prompt[:have]
        llama.n_tokens = have
        llama._requires_eval = True
        self._kept = prompt[:have].copy()
        return have

    def take(self, prompt: Any) -> AttachedState:
        """Restores the prompt where that brings more of it than the sequence has. Llama finds it in place."""
        live = self.tokens()
        shared = common_prefix(live, prompt)
        usable = min(shared, len(prompt) - 1)
        if not (usable == len(live) or self.can_cut(usable)):
            usable = 0
        if self.attachment.match(prompt) > usable:
            self.save()
            usable = self.restore(prompt)
        if usable == 0:
            raise KeyError("nothing of this prompt is kept")
        return AttachedState(self.llama)
