"""kvtier.Runtime: the bytes of a sequence come back from every tier, and misuse is an exception."""
import array
import os
import pathlib
import random
import tempfile
import unittest

import kvtier

SHAPE = kvtier.Shape(16, [kvtier.Group(layers=2, kv_heads=2, head_dim=64)])
BLOCK = SHAPE.block_bytes()
SEED = int(os.environ.get("KVTIER_SEED", "1"))


class RuntimeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name, "store"))
        self.random = random.Random(SEED)

    def open(self, device=32 * BLOCK, host="3MiB", **options):
        runtime = kvtier.Runtime(SHAPE, device=device, host=host, nvme=(self.path, "64MiB"), device_kind="emulated",
                                 **options)
        self.addCleanup(runtime.close)
        return runtime

    def compute(self, runtime, sequence, tokens, content):
        """Writes the KV of what is missing: content[i] for block i."""
        rest = tokens[len(sequence):]
        with kvtier.ready_step(runtime, sequence, len(rest)) as step:
            self.assertEqual(step.ready, [sequence])
            first, slots = sequence.table()
            for block in range(len(sequence) // 16, len(slots)):
                runtime.slot(0, slots[block - first])[:] = content[block]
            sequence.commit(rest)

    def read(self, runtime, sequence):
        """The bytes of the blocks that are there."""
        with kvtier.ready_step(runtime, sequence, 1):
            _, slots = sequence.table()
            return [bytes(runtime.slot(0, slot)) for slot in slots[:len(sequence) // 16]]


class Bytes(RuntimeTest):
    def test_sequences_come_back_byte_for_byte_from_every_tier_and_after_a_restart(self):
        prompts = [[n << 16 | i for i in range(16 * 16 + 1)] for n in range(24)]
        contents = [[self.random.randbytes(BLOCK) for _ in range(17)] for _ in prompts]
        with self.open() as runtime:
            for tokens, content in zip(prompts, contents):
                sequence = runtime.create(tokens)
                self.assertEqual(sequence.reused, 0)
                self.compute(runtime, sequence, tokens, content)
                sequence.finish()
            self.check_all(runtime, prompts, contents, is_all=True)
            tiers = runtime.stats()["tiers"]
            self.assertGreater(tiers["nvme"]["hits"], 0)
            self.assertGreater(tiers["host"]["hits"] + tiers["device"]["hits"], 0)
            self.assertTrue(runtime.metrics().startswith("#") and runtime.metrics().endswith("# EOF\n"))
        with self.open() as runtime:
            self.check_all(runtime, prompts, contents, is_all=False)

    def check_all(self, runtime, prompts, contents, is_all):
        reused = 0
        for tokens, content in reversed(list(zip(prompts, contents))):  # the newest are still high up
            sequence = runtime.create(tokens)
            reused += sequence.reused
            self.assertEqual(self.read(runtime, sequence), content[:sequence.reused // 16])
            sequence.finish()
        self.assertTrue(reused == 256 * len(prompts) if is_all else reused > 0, reused)

    def test_a_salt_of_another_shares_nothing(self):
        tokens, content = list(range(64)), [self.random.randbytes(BLOCK) for _ in range(4)]
        with self.open() as runtime:
            for salt in ("a", "b"):
                sequence = runtime.create(tokens, salt=salt)
                self.assertEqual(sequence.reused, 0)
                self.compute(runtime, sequence, tokens, content)
                sequence.finish()
            self.assertEqual(runtime.create(array.array("I", tokens), salt=b"a").reused, 48)

    def test_fork_truncate_idle_and_resume_keep_the_tokens(self):
        tokens, content = list(range(40)), [self.random.randbytes(BLOCK) for _ in range(3)]
        with self.open() as runtime:
            sequence = runtime.create(tokens)
            self.compute(runtime, sequence, tokens, content)
            fork = sequence.fork()
            self.assertEqual((len(sequence), len(fork)), (40, 40))
            self.assertEqual(fork.truncate(20, tokens[16:20]), 20)
            self.assertEqual(len(fork), 20)
            sequence.idle()
            runtime.expect({sequence: 3})
            self.assertIs(sequence.resume(), kvtier.Room.OK)
            self.assertEqual(self.read(runtime, sequence), content[:2])
            self.assertEqual(self.read(runtime, fork), content[:1])
            self.assertIsInstance(sequence.stall, str)


class Misuse(RuntimeTest):
    def test_impossible_values_name_value_and_rule(self):
        for options, says in (({"device": 1}, "device_bytes is 1"), ({"device": "1 GB"}, "1 GB"),
                              ({"policy": "best"}, "best"), ({"device_kind": "tpu"}, "device_kind is 'tpu'"),
                              ({"nvme_key": b"1"}, "1 bytes: 32")):
            with self.assertRaisesRegex(kvtier.Invalid, says):
                kvtier.Runtime(SHAPE, **{"device": "1MiB", "host": "4MiB", **options})
        for group, says in ((kvtier.Group(layers=0), "layers"), (kvtier.Group(1, 1, 1, "fp4"), "fp4"),
                            (kvtier.Group(1, 1, 1, kind="ring"), "ring")):
            with self.assertRaisesRegex(kvtier.Invalid, says):
                kvtier.Runtime(kvtier.Shape(16, [group]), device="1MiB")

    def test_wrong_calls_are_refused_and_change_nothing(self):
        with self.open() as runtime:
            sequence = runtime.create(range(20))
            for call, error, says in (
                    (lambda: runtime.create([-1]), TypeError, "ids from 0"),
                    (lambda: runtime.create(["a"]), TypeError, "ids from 0"),
                    (lambda: runtime.create(array.array("H", [1])), TypeError, "32-bit"),
                    (lambda: runtime.create(memoryview(array.array("I", range(40)))[::2]), TypeError, "contiguous"),
                    (lambda: runtime.wait(float("nan")), kvtier.Invalid, "timeout is nan"),
                    (lambda: sequence.append(-1), kvtier.Invalid, "count is -1"),
                    (lambda: sequence.commit([1]), kvtier.Invalid, "not in a step"),
                    (sequence.table, kvtier.Invalid, "not in a step"),
                    (lambda: sequence.table(1), kvtier.Invalid, "group is 1"),
                    (lambda: sequence.truncate(5), kvtier.Invalid, "the last 5"),
                    (lambda: sequence.truncate(16), kvtier.Invalid, "longer than the sequence"),
                    (lambda: runtime.slot(0, 1 << 20), kvtier.Invalid, "slot is"),
                    (lambda: runtime.slot(2, 0), kvtier.Invalid, "group is 2"),
                    (lambda: runtime.step([sequence], stream=9), kvtier.Invalid, "stream is 9")):
                with self.assertRaisesRegex(error, says):
                    call()
            self.assertIs(sequence.append(33 * 16), kvtier.Room.TOO_LONG)
            sequence.finish()
            for call in (sequence.finish, lambda: sequence.append(1), sequence.fork, sequence.idle, sequence.resume,
                         lambda: runtime.step([sequence])):
                with self.assertRaisesRegex(kvtier.Invalid, "finished"):
                    call()
            self.assertEqual(len(sequence), 0)

    def test_a_runtime_is_not_closed_under_a_view_of_its_memory(self):
        with self.open() as runtime:
            view = runtime.slot(0, 0)
            part = view[100:200]
            del view
            with self.assertRaisesRegex(BufferError, "1 views"):
                runtime.close()
            part[:] = bytes(100)
            del part

    def test_after_close_every_call_says_closed(self):
        runtime = self.open()
        sequence = runtime.create(range(20))
        runtime.close()
        runtime.close()
        for call in (lambda: runtime.create([1]), runtime.stats, runtime.metrics, runtime.wait, runtime.fileno,
                     runtime.reset, lambda: len(sequence), lambda: sequence.append(1), sequence.finish, lambda: sequence.stall,
                     lambda: runtime.step([]), lambda: runtime.slot(0, 0), runtime.synchronize):
            with self.assertRaisesRegex(kvtier.Closed, "is closed"):
                call()

    def test_a_child_after_fork_is_told_and_the_parent_goes_on(self):
        runtime = self.open()
        sequence = runtime.create(range(20))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    sequence.append(1)
                except kvtier.Closed as error:
                    status = 0 if "before a fork" in str(error) else 2
                runtime.close()
                del runtime, sequence
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertIs(sequence.append(20), kvtier.Room.OK)


if __name__ == "__main__":
    unittest.main()
