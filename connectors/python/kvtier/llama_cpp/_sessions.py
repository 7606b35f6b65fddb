"""Sessions: many named conversations in a context that holds few."""

from __future__ import annotations

import codecs
import collections
import contextlib
import os
from typing import Any, Iterable, Iterator

import numpy as np

from ..errors import Closed, Full, Invalid, OutOfMemory, Unsupported
from .._native import count_of
from ._attachment import Attachment, Options, common_prefix, library_handle, tokens_of


class Sessions:
    """
    Named conversations over one model. `slots` of them lie in the context; the others leave it in LRU order, to host
    memory and (with `path`) to disk, and come back before their next decode.

        sessions = Sessions(llama, slots=3, path="/scratch/kv")
        for piece in sessions["anna"].chat("Where is the Rhine's source?"):
            print(piece, end="", flush=True)

    The context is one of its own, of `slots` sequences of `n_ctx` tokens (by default as many as the Llama's): the Llama
    gives the model and the settings. `chat_template` is Jinja text, by default the model's own. What is said to the model
    outlives a restart on disk: a conversation that is begun with the same tokens goes on where it was. Calls come from
    one thread.
    """

    def __init__(self, llama: Any, slots: int = 3, *, n_ctx: int | None = None,
                 path: str | os.PathLike[str] | None = None, host: int | str = "512MiB", nvme: int | str = "4GiB",
                 salt: bytes | str = b"", key: bytes | None = None, nvme_bytes_per_day: int | str = 0,
                 model: str = "", block_tokens: int = 0, is_codec_off: bool = False,
                 chat_template: str | None = None) -> None:
        if not 1 <= count_of("slots", slots) <= 256:
            raise Invalid(f"slots is {slots}: 1 to 256")
        options = Options(path, host, nvme, salt, key, nvme_bytes_per_day, model, block_tokens, is_codec_off)
        self.llama = llama
        self.n_ctx = llama.n_ctx() if n_ctx is None else count_of("n_ctx", n_ctx)
        self._template = chat_template or llama.metadata.get("tokenizer.chat_template")
        self._context = _Context(llama, slots, self.n_ctx)
        self._sessions: dict[str, Session] = {}
        self._resident: collections.OrderedDict[str, int] = collections.OrderedDict()  # name: sequence; oldest first
        self._free = list(range(slots))
        try:
            self.attachment = Attachment(options, self._context.pointer, library_handle())
        except BaseException:
            self._context.close()
            raise
        llama._stack.callback(self.close)

    def __getitem__(self, name: str) -> Session:
        """The conversation of that name, which begins here when there was none."""
        self._check()
        if name not in self._sessions:
            self._sessions[name] = Session(self, name)
        return self._sessions[name]

    def __contains__(self, name: str) -> bool:
        return name in self._sessions

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._sessions))

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def resident(self) -> list[str]:
        """Names of those that lie in the context, the one that leaves next first."""
        return list(self._resident)

    def end(self, name: str, forget: bool = False) -> None:
        """Ends a conversation; with `forget` what is kept of it as well, also where others share it."""
        self._check()
        session = self._sessions.pop(name, None)
        if session is None:
            return
        if name in self._resident:
            self._leave(name, session)
        if forget and len(session.tokens) > 0:
            self.attachment.forget(session.tokens)

    def save(self) -> None:
        """Keeps what is new of those in the context, and returns when it is on the disk."""
        self._check()
        for name, sequence in self._resident.items():
            self._keep(sequence, self._sessions[name].tokens)
        self.attachment.flush()

    def stats(self) -> dict[str, Any]:
        """The numbers of struct kvt_llama_stats in kvtier/llama.h."""
        self._check()
        return self.attachment.stats()

    def close(self) -> None:
        """Keeps what is in the context, makes it durable, frees the context. A second call does nothing."""
        if self._context.pointer is None:
            return
        if not self.attachment.is_detached:
            for name, sequence in self._resident.items():
                self._keep(sequence, self._sessions[name].tokens)
            self.attachment.detach()
        self._resident.clear()
        self._context.close()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Inside --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._context.pointer is None:
            raise Closed("these sessions are closed")

    def _place(self, name: str) -> int:
        """A sequence for the conversation; when none is free, the one that was used longest ago leaves."""
        if name in self._resident:
            self._resident.move_to_end(name)
            return self._resident[name]
        if not self._free:
            oldest = next(iter(self._resident))
            self._leave(oldest, self._sessions[oldest])
        self._resident[name] = self._free.pop()
        return self._resident[name]

    def _leave(self, name: str, session: Session) -> None:
        sequence = self._resident.pop(name)
        self._free.append(sequence)
        try:
            if len(session.tokens) > 0:
                self.attachment.idle(sequence, session.tokens)
        except (Invalid, OutOfMemory):
            pass  # Invalid: not what it should hold, which the C library has counted. Computed again
        self._context.clear(sequence)

    def _prompt(self, messages: list[dict[str, str]]) -> str:
        """The text of a conversation by the model's template."""
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        if not self._template:
            raise Unsupported("this model brings no chat template: give Sessions a chat_template, or use generate()")
        eos, bos = self._context.texts()
        formatter = Jinja2ChatFormatter(template=self._template, eos_token=eos, bos_token=bos)
        return str(formatter(messages=messages).prompt).removeprefix(bos)  # the tokeniser adds it

    def _keep(self, sequence: int, tokens: Any) -> None:
        """What cannot be kept is computed again."""
        if len(tokens) > 0:
            try:
                self.attachment.save(sequence, tokens)
            except (Closed, Invalid, OutOfMemory):
                pass  # Closed: a reader that leaves at the end of the interpreter

    def _drop(self, name: str) -> None:
        """What is in the context of it is not what its tokens say, or may not be."""
        sequence = self._resident.pop(name, None)
        if sequence is not None:
            self._free.append(sequence)
            self._context.clear(sequence)


class Session:
    """One conversation: the tokens that were evaluated for it. Made by Sessions."""

    def __init__(self, sessions: Sessions, name: str) -> None:
        self._sessions = sessions
        self.name = name
        self.tokens = tokens_of([])
        self.messages: list[dict[str, str]] = []  # of chat()
        self.reused = 0  # tokens of the last prompt that were not evaluated

    @property
    def is_resident(self) -> bool:
        return self.name in self._sessions._resident

    def evaluate(self, prompt: Any) -> int:
        """
        Makes the conversation consist of exactly these tokens, which need not begin as it does now; says how many were
        evaluated, at least one. What it shares with what is kept comes back instead. Full: longer than `n_ctx`.
        """
        sessions, prompt = self._sessions, tokens_of(prompt)
        sessions._check()
        if sessions._sessions.get(self.name) is not self:
            raise Closed(f"conversation {self.name!r} has ended")
        if not 1 <= len(prompt) <= sessions.n_ctx:
            raise Full(f"prompt has {len(prompt)} tokens: 1 to n_ctx, {sessions.n_ctx}")
        with self._all_or_nothing():
            return self._evaluate(sessions, prompt)

    def _evaluate(self, sessions: Sessions, prompt: Any) -> int:
        was_resident = self.is_resident
        sequence = sessions._place(self.name)
        have = common_prefix(self.tokens, prompt) if was_resident else 0
        if not was_resident or have < len(self.tokens) or have == len(prompt):
            if was_resident:
                sessions._keep(sequence, self.tokens)
            self.tokens = prompt[:0]
            sessions._context.clear(sequence)
            try:
                have = sessions.attachment.restore(sequence, prompt)
            except (Full, OutOfMemory):
                have = 0
        self.tokens = prompt[:have].copy()
        self.reused = have
        return self._extend(sequence, prompt[have:])

    def generate(self, prompt: str | bytes | Iterable[int], max_tokens: int = 256, *, temperature: float = 0.0,
                 top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, seed: int = 0,
                 stop: Iterable[str] = ()) -> Iterator[str]:
        """
        The continuation of a whole prompt (text is tokenised as Llama does), in pieces of text. It ends at an
        end-of-text token, before a text of `stop`, after `max_tokens`, or when the context is full.
        """
        llama = self._sessions.llama
        if isinstance(prompt, (str, bytes)):
            text = prompt.encode() if isinstance(prompt, str) else prompt
            prompt = llama.tokenize(text, add_bos=True, special=True)
        self.evaluate(prompt)
        context = self._sessions._context
        try:
            with context.sampler(temperature, top_k, top_p, min_p, seed) as sampler:
                yield from self._pieces(sampler, max_tokens, [word.encode() for word in stop])
        finally:
            if self.is_resident:  # also when its reader has left
                self._sessions._keep(self._sessions._resident[self.name], self.tokens)

    def chat(self, text: str, max_tokens: int = 256, *, system: str = "", **options: Any) -> Iterator[str]:
        """Says something in the conversation and yields the answer, by the model's chat template."""
        said = [*self.messages, {"role": "user", "content": text}]
        if system and not self.messages:
            said.insert(0, {"role": "system", "content": system})
        answer = ""
        for piece in self.generate(self._sessions._prompt(said), max_tokens, **options):
            answer += piece
            yield piece
        self.messages = [*said, {"role": "assistant", "content": answer}]

    def logits(self) -> Any:
        """The logits after the last token evaluated, in any conversation: a view that the next decode overwrites."""
        return self._sessions._context.logits()

    # ---- Inside --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """An interrupt between a decode and what is noted of it: the conversation leaves, unsaved, and comes back."""
        try:
            yield
        except BaseException:
            self._sessions._drop(self.name)
            raise

    def _extend(self, sequence: int, tokens: Any) -> int:
        """Evaluates more tokens at the end, in batches; saves before window tokens would be pushed out unsaved."""
        sessions, size = self._sessions, self._sessions._context.n_batch
        for i in range(0, len(tokens), size):
            batch = tokens[i:i + size]
            if sessions.attachment.is_due(sequence, len(self.tokens), len(batch)):
                sessions._keep(sequence, self.tokens)
            sessions._context.decode(sequence, batch, len(self.tokens))
            self.tokens = np.concatenate([self.tokens, batch])
        return len(tokens)

    def _pieces(self, sampler: _Sampler, max_tokens: int, stop: list[bytes]) -> Iterator[str]:
        """Sampling follows a decode of this conversation at once: others may decode while a piece is being read."""
        sessions, decoder = self._sessions, codecs.getincrementaldecoder("utf-8")(errors="replace")
        held = max((len(word) for word in stop), default=1) - 1  # bytes that may be the beginning of a stop text
        pending = b""
        for count in range(max_tokens):
            token = sampler.sample()
            if sessions._context.is_end(token):
                break
            pending += sessions.llama.detokenize([token], prev_tokens=self.tokens[-8:].tolist())
            found = [pending.find(word) for word in stop if word in pending]
            if found:
                pending = pending[:min(found)]
                break
            ready = max(0, len(pending) - held)
            text, pending = decoder.decode(pending[:ready]), pending[ready:]
            if text:
                yield text
            if count + 1 == max_tokens or len(self.tokens) >= sessions.n_ctx:
                break
            if self.is_resident:
                with self._all_or_nothing():
                    self._extend(sessions._place(self.name), tokens_of([token]))
            else:
                self.evaluate(np.append(self.tokens, np.int32(token)))  # another one took its place meanwhile
        text = decoder.decode(pending, final=True)
        if text:
            yield text


class _Context:
    """A llama_context of our own, through llama.cpp's public functions."""

    def __init__(self, llama: Any, slots: int, n_ctx: int) -> None:
        import llama_cpp

        self._library, self._llama = llama_cpp, llama
        params = type(llama.context_params).from_buffer_copy(llama.context_params)
        params.n_seq_max, params.n_ctx, params.kv_unified = slots, slots * n_ctx, False
        self.n_batch = int(llama.n_batch)
        self._vocab = llama_cpp.llama_model_get_vocab(llama._model.model)
        self.n_vocab = int(llama.n_vocab())
        self.pointer = llama_cpp.llama_init_from_model(llama._model.model, params)
        if not self.pointer:
            raise Unsupported(f"llama.cpp makes no context of {slots} sequences of {n_ctx} tokens")
        self.memory = llama_cpp.llama_get_memory(self.pointer)
        self._batch = llama_cpp.llama_batch_init(self.n_batch, 0, 1)

    def close(self) -> None:
        if self.pointer is not None:
            self._library.llama_batch_free(self._batch)
            self._library.llama_free(self.pointer)
            self.pointer = None

    def clear(self, sequence: int) -> None:
        self._library.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def decode(self, sequence: int, tokens: Any, first: int) -> None:
        """Evaluates tokens at positions from `first` on; logits of the last one."""
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        for field, values in (("token", tokens), ("pos", np.arange(first, first + count)), ("n_seq_id", 1),
                              ("logits", 0)):
            np.ctypeslib.as_array(getattr(batch, field), shape=(count,))[:] = values
        for i in range(count):
            batch.seq_id[i][0] = sequence
        batch.logits[count - 1] = 1
        status = self._library.llama_decode(self.pointer, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status} for {count} tokens at position {first}")

    def logits(self) -> Any:
        pointer = self._library.llama_get_logits_ith(self.pointer, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))

    def is_end(self, token: int) -> bool:
        return bool(self._library.llama_vocab_is_eog(self._vocab, token))

    def texts(self) -> tuple[str, str]:
        """Those of the tokens for the end and the beginning of a text."""
        library, vocab = self._library, self._vocab
        eos, bos = (library.llama_vocab_get_text(vocab, token).decode() if token >= 0 else ""
                    for token in (library.llama_vocab_eos(vocab), library.llama_vocab_bos(vocab)))
        return eos, bos

    def sampler(self, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> _Sampler:
        return _Sampler(self._library, self, temperature, top_k, top_p, min_p, seed)


class _Sampler:
    """A chain of llama.cpp's samplers for one answer."""

    def __init__(self, library: Any, context: _Context, temperature: float, top_k: int, top_p: float, min_p: float,
                 seed: int) -> None:
        self._library, self._context = library, context
        self._chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
        if temperature <= 0:
            parts = [library.llama_sampler_init_greedy()]
        else:
            parts = [library.llama_sampler_init_top_k(top_k), library.llama_sampler_init_top_p(top_p, 1),
                     library.llama_sampler_init_min_p(min_p, 1), library.llama_sampler_init_temp(temperature),
                     library.llama_sampler_init_dist(seed)]
        for part in parts:
            library.llama_sampler_chain_add(self._chain, part)

    def sample(self) -> int:
        return int(self._library.llama_sampler_sample(self._chain, self._context.pointer, -1))

    def __enter__(self) -> _Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.llama_sampler_free(self._chain)


__all__ = ["Session", "Sessions"]
