"""kvtier.llama_cpp.TieredCache in Llama.set_cache: whole states, with a stand-in for the engine's module."""
import contextlib
import os
import pathlib
import random
import struct
import sys
import tempfile
import types
import unittest

try:
    import numpy as np

    from kvtier.llama_cpp import TieredCache, _states
except ImportError as error:
    raise unittest.SkipTest(f"{error}") from None

import kvtier

SEED = int(os.environ.get("KVTIER_SEED", "1"))
N_CTX, N_VOCAB = 64, 8


class LlamaState:
    """The fields of llama_cpp.llama.LlamaState."""

    def __init__(self, input_ids, scores, n_tokens, llama_state, llama_state_size, seed):
        self.input_ids, self.scores, self.n_tokens = input_ids, scores, n_tokens
        self.llama_state, self.llama_state_size, self.seed = llama_state, llama_state_size, seed


def cells(first, end):
    return b"".join(struct.pack("<iii", i, 1, 0) for i in range(first, end))


class StatesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name, "store"))
        self.random = random.Random(SEED)
        known = {name: sys.modules.get(name) for name in ("llama_cpp", "llama_cpp.llama")}
        self.addCleanup(lambda: [sys.modules.pop(n) if m is None else sys.modules.update({n: m})
                                 for n, m in known.items()])
        sys.modules["llama_cpp"] = types.ModuleType("llama_cpp")
        sys.modules["llama_cpp.llama"] = module = types.ModuleType("llama_cpp.llama")
        module.LlamaState = LlamaState

    def cache(self, **options):
        cache = TieredCache(self.path, **{"nvme": "64MiB", **options})
        self.addCleanup(cache.close)
        return cache

    def state(self, tokens, size=100_000, window=None, scores=0.0):
        """A state of these tokens: all cells of one layer group, and of a second one the last `window`."""
        n = len(tokens)
        ids = np.full(N_CTX, 7, dtype=np.intc)
        ids[:n] = tokens
        first = 0 if window is None else max(0, n - window)
        data = cells(0, n) + self.random.randbytes(size) + cells(first, n) + self.random.randbytes(size)
        return LlamaState(ids, np.full((n, N_VOCAB), scores, dtype=np.single), n, data, len(data), 42)

    def check_same(self, got, want):
        self.assertEqual(got.llama_state, want.llama_state)
        self.assertEqual((got.n_tokens, got.llama_state_size, got.seed), (want.n_tokens, len(want.llama_state), 42))
        self.assertEqual(got.input_ids[:got.n_tokens].tolist(), want.input_ids[:want.n_tokens].tolist())
        self.assertEqual((len(got.input_ids), got.input_ids.dtype), (N_CTX, np.dtype(np.intc)))


class Entries(StatesTest):
    def test_a_state_comes_back_byte_for_byte_from_memory_and_after_a_restart(self):
        states = [self.state(range(n, n + 20), size=3 << 20) for n in range(0, 80, 20)]
        with self.cache(host="16MiB") as cache:
            for state in states:
                cache[state.input_ids[:20].tolist()] = state
            for state in states:
                self.check_same(cache[state.input_ids[:20].tolist()], state)
                self.check_same(cache[state.input_ids[:20].tolist()], state)
            self.assertGreater(cache.stats()["nvme_hits"], 0)
            self.assertGreater(cache.stats()["host_hits"], 0)
            self.assertLessEqual(cache.stats()["host_bytes"], 16 << 20)
        with self.cache() as cache:
            for state in states:
                self.assertIn(state.input_ids[:20].tolist(), cache)
                self.check_same(cache[state.input_ids[:20].tolist()], state)
                self.check_same(cache[state.input_ids[:20].tolist()], state)  # still there after it was read

    def test_scores_come_back_when_the_engine_fills_them(self):
        scored, plain = self.state([1, 2, 3], scores=0.5), self.state([4, 5, 6])
        for _ in range(2):
            with self.cache() as cache:
                cache[[1, 2, 3]], cache[[4, 5, 6]] = scored, plain
                self.assertTrue(np.array_equal(cache[[1, 2, 3]].scores, scored.scores))
                target = np.ones((3, N_VOCAB), dtype=np.single)
                target[:3, :] = cache[[4, 5, 6]].scores.copy()
                self.assertFalse(target.any())

    def test_the_entry_that_has_most_of_the_prompt_is_found(self):
        with self.cache() as cache:
            for tokens in ([1, 2], [1, 2, 3, 4], [1, 9]):
                cache[tokens] = self.state(tokens)
            self.assertEqual(cache[[1, 2, 3, 4, 5]].n_tokens, 4)
            self.assertEqual(cache[[1, 2, 3, 7]].n_tokens, 4)
            self.assertEqual(cache[[1, 9, 1]].input_ids[:2].tolist(), [1, 9])
            with self.assertRaises(KeyError):
                cache[[5]]
            self.assertNotIn([5], cache)

    def test_b61_a_state_without_its_window_serves_only_prompts_that_begin_with_all_of_it(self):
        tokens = list(range(1, 21))
        for _ in range(2):
            with self.cache() as cache:
                cache[tokens] = self.state(tokens, window=8)
                self.assertEqual(cache[tokens + [30]].n_tokens, 20)
                self.assertNotIn(tokens[:19], cache)
                with self.assertRaises(KeyError):
                    cache[tokens[:15] + [30, 31]]

    def test_an_unknown_layout_counts_as_one_without_its_window(self):
        state = self.state([1, 2, 3])
        state.llama_state = self.random.randbytes(1000)
        with self.cache() as cache:
            cache[[1, 2, 3]] = state
            self.assertIn([1, 2, 3, 4], cache)
            self.assertNotIn([1, 2, 4], cache)

    def test_b64_a_state_larger_than_a_cap_is_left_out_and_evicts_nothing(self):
        small, large = self.state([1, 2]), self.state([3, 4], size=20 << 20)
        cache = TieredCache(host="1MiB")
        self.addCleanup(cache.close)
        cache[[1, 2]], cache[[3, 4]] = small, large
        self.check_same(cache[[1, 2]], small)
        self.assertNotIn([3, 4], cache)
        self.assertEqual(cache.stats()["too_large"], 1)
        with self.cache(host="1MiB") as cache:
            cache[[1, 2]], cache[[3, 4]] = small, large
            self.check_same(cache[[1, 2]], small)
            self.assertNotIn([3, 4], cache)

    def test_b62_a_state_that_lost_a_part_at_open_is_saved_again_without_a_look(self):
        tokens = list(range(12))
        state = self.state(tokens, size=3 << 20)
        self.save_in_full(tokens, state)
        self.damage()
        for _ in range(20):  # a busy disk may leave it out
            with self.cache() as cache:
                cache[tokens] = state
            with self.cache() as cache, contextlib.suppress(KeyError):
                return self.check_same(cache[tokens], state)
        self.fail("the state was not saved in 20 tries")

    def test_b67_a_save_that_ends_in_the_middle_leaves_no_mix_of_two_states(self):
        tokens = list(range(20))
        first, second = (self.state(tokens, size=6 << 20) for _ in range(2))  # as large, other bytes
        with self.cache(host="1MiB", nvme="256MiB", nvme_bytes_per_day="20MiB") as cache:
            cache[tokens] = first
            self.check_same(cache[tokens], first)
            states = cache._states
            name, = states._entries
            # A part is gone, so that the next save writes all of them; the day's bytes end in the middle of it.
            self.assertEqual(states._store.delete([_states._part_name(name, 2)]), 1)
            cache[tokens] = second
            self.assertGreater(states._store.stats()["refused"], 0)
            with self.assertRaises(KeyError):
                cache[tokens]

    def test_what_has_left_both_tiers_is_not_listed(self):
        with self.cache(host="1MiB", nvme="64MiB") as cache:
            prompts = [list(range(n * 20, n * 20 + 20)) for n in range(600)]
            for tokens in prompts:
                cache[tokens] = self.state(tokens, size=200_000)
            self.assertLess(cache.stats()["entries"], 600)
            listed = [tokens for tokens in prompts if tokens in cache]
            for tokens in listed:  # what is said to be there is
                cache[tokens]
            self.assertEqual(cache.stats()["entries"], len(listed))
            self.assertGreater(len(listed), 20)

    def test_the_oldest_state_leaves_memory_first(self):
        cache = TieredCache(host="1MiB")
        self.addCleanup(cache.close)
        for n in range(4):
            cache[[n, n]] = self.state([n, n])
        cache[[0, 0]]
        for n in range(4, 8):
            cache[[n, n]] = self.state([n, n])
        self.assertIn([0, 0], cache)
        self.assertNotIn([1, 1], cache)
        self.assertLessEqual(cache.stats()["host_bytes"], 1 << 20)

    def save_in_full(self, tokens, state):
        """As an engine does: looks, and saves what it missed. What a busy disk did not take is saved again."""
        for _ in range(20):
            with self.cache() as cache:
                try:
                    return self.check_same(cache[tokens], state)
                except KeyError:
                    cache[tokens] = state
        self.fail("the state was not saved in 20 tries")

    def damage(self):
        """Flips a bit in every MiB of the data files but the first two."""
        for path in pathlib.Path(self.path).iterdir():
            if path.stat().st_size > 1 << 20:
                with open(path, "r+b") as file:
                    for place in range(2 << 20, path.stat().st_size, 1 << 20):
                        file.seek(place)
                        byte = file.read(1)[0]
                        file.seek(place)
                        file.write(bytes([byte ^ 1]))

    def test_b62_a_damaged_state_is_a_miss_and_the_next_save_replaces_it(self):
        # 3 MiB lie in the segment that is still open: its damage is found when the store is opened, and not by a read.
        for size in (3 << 20, 5 << 20):
            tokens = list(range(size >> 18))
            state = self.state(tokens, size=size)
            self.save_in_full(tokens, state)
            self.damage()
            with self.cache() as cache:
                with self.assertRaises(KeyError):
                    cache[tokens]
                self.assertGreater(cache.stats()["damaged_blocks"], 0)
            self.save_in_full(tokens, state)
            with self.cache() as cache:
                cache.clear()

    def test_entries_of_another_salt_key_or_model_are_not_found(self):
        with self.cache() as cache:
            cache[[1, 2]] = self.state([1, 2])
        for options in ({"salt": "other"}, {"model": "other"}, {"key": bytes(32)}):
            with self.cache(**options) as cache:
                self.assertNotIn([1, 2], cache)

    def test_clear_forgets_everything_also_after_a_restart(self):
        with self.cache() as cache:
            cache[[1, 2]] = self.state([1, 2])
            self.assertGreater(cache.cache_size, 0)
            cache.clear()
            self.assertNotIn([1, 2], cache)
        with self.cache() as cache:
            self.assertNotIn([1, 2], cache)


class Misuse(StatesTest):
    def test_impossible_values_and_calls_are_refused_with_a_line(self):
        for options, says in (({"host": "1GB"}, "host is '1GB'"), ({"key": b"1"}, "1 bytes: 32"),
                              ({"nvme": -1}, "nvme is -1"), ({"block_tokens": -1}, "block_tokens is -1")):
            with self.assertRaisesRegex(kvtier.Invalid, says):
                TieredCache(self.path, **options)
        cache = self.cache()
        with self.assertRaisesRegex(kvtier.Invalid, "not attached"):
            cache.save()
        cache[[1, 2]] = self.state([1, 2])
        with self.assertRaisesRegex(kvtier.Invalid, "before its first use"):
            cache.attach(object())
        cache.close()
        cache.close()
        for call in (lambda: cache[[1]], lambda: [1] in cache, cache.stats, cache.clear, cache.flush,
                     lambda: cache.attach(object())):
            with self.assertRaisesRegex(kvtier.Closed, "closed"):
                call()


if __name__ == "__main__":
    unittest.main()
