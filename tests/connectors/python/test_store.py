"""kvtier.Store: exact bytes or a miss, and no way to crash the interpreter."""
import os
import pathlib
import random
import select
import subprocess
import sys
import tempfile
import threading
import unittest

import kvtier
from kvtier import Status

CAPACITY = "32MiB"
SEED = int(os.environ.get("KVTIER_SEED", "1"))


class StoreTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name, "store"))
        self.random = random.Random(SEED)

    def open(self, capacity=CAPACITY, **options):
        store = kvtier.Store(self.path, capacity, **options)
        self.addCleanup(store.close)
        return store

    def flip_bits_on_disk(self, count):
        """One bit in each of `count` places of the segment files."""
        files = [path for path in pathlib.Path(self.path).iterdir() if path.stat().st_size > 1 << 20]
        for _ in range(count):
            with open(self.random.choice(files), "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                place = self.random.randrange(size)
                file.seek(place)
                byte = file.read(1)[0] ^ 1 << self.random.randrange(8)
                file.seek(place)
                file.write(bytes([byte]))


class Records(StoreTest):
    def test_what_was_put_comes_back_byte_for_byte_also_after_a_restart(self):
        for key in (None, bytes(range(32))):
            records = {f"key {n}": self.random.randbytes(n) for n in (1, 511, 512, 4096, 65537, 1 << 20)}
            with self.open(key=key) as store:
                self.assertTrue(all(result.ok for result in store.put_batch(records.items())))
                self.assertEqual({name: store.get(name) for name in records}, records)
            with self.open(key=key) as store:
                self.assertEqual({name: store.get(name) for name in records}, records)
                store.reset()
                self.assertEqual([store.get(name) for name in records], [None] * len(records))

    def test_labels_and_generations_come_back_and_another_generation_is_a_miss(self):
        with self.open() as store:
            store.put("a", b"bytes", form=2, tokens=65535, generation=7)
            found = store.find("a")
            self.assertEqual((found.length, found.form, found.tokens, found.generation), (5, 2, 65535, 7))
            self.assertEqual(found.key, kvtier.digest("a"))
            self.assertEqual(store.get(found.key), b"bytes")
            self.assertEqual(store.get("a", generation=7), b"bytes")
            self.assertIsNone(store.get("a", generation=8))

    def test_what_is_not_there_is_none(self):
        with self.open() as store:
            store.put("a", b"1")
            self.assertEqual(store.exists(["a", b"a", "b"]), [True, True, False])
            self.assertEqual(store.delete(["a", "b"]), 1)
            self.assertIsNone(store.get("a"))
            self.assertIsNone(store.find("a"))
            self.assertIsNone(store.get_into("a", bytearray(8)))
            self.assertIsNone(store.pin("a"))
            self.assertNotIn("a", store)

    def test_salts_and_namespaces_do_not_meet(self):
        spaces = [("", b""), ("m", b""), ("", b"m"), ("m", b"s"), ("ms", b"")]
        for i, (namespace, salt) in enumerate(spaces):
            with self.open(namespace=namespace, salt=salt) as store:
                self.assertIsNone(store.get("a"))
                store.put("a", bytes([i]))
        for i, (namespace, salt) in enumerate(spaces):
            with self.open(namespace=namespace, salt=salt) as store:
                self.assertEqual(store.get("a"), bytes([i]))
                self.assertEqual([record.length for record in store.records()], [1])

    def test_records_of_another_key_or_of_none_are_misses(self):
        with self.open(key=b"k" * 32) as store:
            store.put("a", b"secret" * 100)
        content = b"".join(path.read_bytes() for path in pathlib.Path(self.path).iterdir() if path.is_file())
        self.assertNotIn(b"secret", content)
        for key in (None, b"l" * 32):
            with self.open(key=key) as store:
                self.assertIsNone(store.get("a"))

    def test_b62_a_damaged_record_is_a_miss_and_heals_with_the_next_put(self):
        records = {f"key {i}": self.random.randbytes(64 << 10) for i in range(64)}
        with self.open() as store:
            store.put_batch(records.items())
        self.flip_bits_on_disk(400)
        with self.open() as store:
            got = {name: store.get(name) for name in records}
            self.assertTrue(all(data is None or data == records[name] for name, data in got.items()))
            missing = [name for name, data in got.items() if data is None]
            self.assertGreater(len(missing), 0)
            self.assertTrue(all(result.ok for result in store.put_batch((n, records[n]) for n in missing)))
            self.assertEqual({name: store.get(name) for name in records}, records)

    def test_b64_what_cannot_fit_is_refused_and_evicts_nothing(self):
        with self.open() as store:
            store.put("a", b"kept")
            with self.assertRaisesRegex(kvtier.Full, "at most"):
                store.put("large", bytes(store.length_max + 1))
            results = store.put_batch([("large", bytes(store.length_max + 1)), ("small", b"1")])
            self.assertEqual([result.status for result in results], [Status.FULL, Status.OK])
            self.assertEqual(store.get("a"), b"kept")

    def test_a_pinned_record_stays_while_others_make_room(self):
        with self.open() as store:
            store.put_batch([("pinned", b"1" * 1000), ("other", b"2" * 1000)])
            with store.pin("pinned") as record:
                self.assertEqual(record.length, 1000)
                for i in range(128):
                    store.put(f"fill {i}", self.random.randbytes(512 << 10))
                self.assertEqual(store.get("pinned"), b"1" * 1000)
                self.assertIsNone(store.get("other"))
            self.assertEqual(store.stats()["held_bytes"], 0)

    def test_a_released_pin_can_be_released_again_and_outlives_its_store(self):
        with self.open() as store:
            store.put("a", b"1")
            pin = store.pin("a")
            pin.release()
            pin.release()
            pin = store.pin("a")
        pin.release()

    def test_the_directory_is_its_owners_alone(self):
        with self.open() as store:
            store.put("a", b"1")
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o700)


class Batches(StoreTest):
    def test_submitted_batches_come_back_once_each_through_select(self):
        with self.open(queue_depth=4) as store:
            data = {n: self.random.randbytes(3000) for n in range(64)}
            asked = {store.submit_put([(f"{n} {i}", data[n]) for i in range(8)]) for n in data}
            done = []
            while len(done) < len(asked):
                self.assertEqual(select.select([store], [], [], 60)[0], [store])
                done += store.poll()
            self.assertEqual(sorted(one.batch for one in done), sorted(asked))
            self.assertTrue(all(result.ok for one in done for result in one.results))
            self.assertEqual(store.poll(), [])
            self.assertEqual(store.get("63 7"), data[63])

    def test_select_sees_a_batch_that_a_waiting_call_finished(self):
        with self.open() as store:
            asked = store.submit_put([("a", b"1")])
            store.put("b", b"2")
            while "a" not in store:
                store.put("b", b"2")
            self.assertTrue(store.wait(60))
            self.assertEqual(select.select([store], [], [], 60)[0], [store])
            self.assertEqual([one.batch for one in store.poll()], [asked])

    def test_an_empty_batch_is_done(self):
        with self.open() as store:
            self.assertEqual(store.put_batch([]), [])
            self.assertEqual(store.exists([]), [])
            asked = store.submit_get([])
            self.assertTrue(store.wait(60))
            self.assertEqual([(one.batch, one.results) for one in store.poll()], [(asked, [])])

    def test_buffers_are_the_stores_until_the_batch_is_back(self):
        with self.open() as store:
            store.put("a", b"12345678")
            buffer = bytearray(8)
            store.submit_get([("a", buffer)])
            with self.assertRaises(BufferError):
                buffer.append(0)
            store.wait(60)
            self.assertTrue(store.poll()[0].results[0].ok)
            buffer.append(0)
            self.assertEqual(buffer, b"12345678\0")

    def test_parts_of_larger_buffers_are_read_and_written_where_they_are(self):
        with self.open() as store:
            source = self.random.randbytes(3 << 12)
            view = memoryview(source)
            store.put_batch([(f"{i}", view[i << 12:i + 1 << 12]) for i in range(3)])
            target = bytearray(len(source))
            parts = memoryview(target)
            results = store.get_batch([(f"{i}", parts[i << 12:i + 1 << 12]) for i in (2, 0, 1)])
            self.assertTrue(all(result.ok and result.length == 4096 for result in results))
            self.assertEqual(target, source)

    def test_the_days_bytes_are_a_limit_that_needed_records_pass(self):
        with self.open(bytes_per_day="1MiB") as store:
            results = store.put_batch([(f"{i}", self.random.randbytes(256 << 10)) for i in range(8)])
            self.assertIn(Status.FULL, [result.status for result in results])
            self.assertLessEqual(store.stats()["written_bytes"], 1 << 20)
            self.assertTrue(store.put_batch([("needed", bytes(1000))], is_needed=True)[0].ok)


class Misuse(StoreTest):
    def test_wrong_buffers_are_refused_with_what_is_wanted(self):
        with self.open() as store:
            for data in ("text", 5, None, memoryview(b"123456")[::2], []):
                with self.assertRaisesRegex(TypeError, "contiguous buffer"):
                    store.put("a", data)
            with self.assertRaisesRegex(TypeError, "writable"):
                store.get_into("a", b"123")
            with self.assertRaisesRegex(kvtier.Invalid, "0 bytes"):
                store.put("a", b"")
            for key in (5, None, ["a"]):
                with self.assertRaisesRegex(TypeError, "bytes or str"):
                    store.put(key, b"1")
            with self.assertRaisesRegex(TypeError, "a list of keys"):
                store.exists("abc")
            self.assertEqual(store.stats()["records"], 0)

    def test_a_buffer_that_is_too_short_says_how_long_the_record_is(self):
        with self.open() as store:
            store.put("a", b"12345")
            result, = store.get_batch([("a", bytearray(2))])
            self.assertEqual((result.status, result.length), (Status.FULL, 5))
            with self.assertRaisesRegex(kvtier.Full, "has 5 bytes, the buffer 2"):
                store.get_into("a", bytearray(2))

    def test_impossible_values_name_value_and_rule(self):
        for options, says in (({"capacity": "1GB"}, "capacity is '1GB'"), ({"capacity": 5}, "5 bytes"),
                              ({"capacity": -1}, "-1"), ({"key": b"short"}, "key has 5 bytes: 32"),
                              ({"queue_depth": -1}, "queue_depth is -1"), ({"queue_bytes": "many"}, "queue_bytes")):
            with self.assertRaisesRegex(kvtier.Invalid, says):
                self.open(**options)
        with self.assertRaisesRegex(kvtier.Invalid, "parent"):
            kvtier.Store(self.path + "/a/b", CAPACITY)
        with self.assertRaisesRegex(kvtier.Invalid, "0 directories"):
            kvtier.Store([], CAPACITY)
        self.assertFalse(os.path.exists(self.path))
        with self.open() as store:
            for options, says in (({"form": 4}, "form is 4: 0 to 3"), ({"tokens": 65536}, "tokens is 65536"),
                                  ({"generation": 1 << 64}, "generation")):
                with self.assertRaisesRegex(kvtier.Invalid, says):
                    store.put("a", b"1", **options)
            with self.assertRaises(kvtier.Invalid):
                kvtier.Digest(b"short")

    def test_a_store_that_is_open_is_busy(self):
        with self.open():
            with self.assertRaisesRegex(kvtier.Busy, "one at a time"):
                self.open()
        self.open().close()

    def test_after_close_every_call_says_closed(self):
        store = self.open()
        store.submit_put([("a", b"1")])
        store.close()
        store.close()
        self.assertTrue(store.closed)
        calls = [lambda: store.put("a", b"1"), lambda: store.get("a"), lambda: store.exists(["a"]), store.sync,
                 lambda: store.delete(["a"]), store.stats, store.poll, store.wait, store.fileno, store.reset,
                 store.compact, lambda: store.pin("a"), lambda: list(store.records()), store.lost,
                 lambda: store.submit_get([("a", bytearray(1))])]
        for call in calls:
            with self.assertRaisesRegex(kvtier.Closed, "is closed"):
                call()


class Threads(StoreTest):
    def test_threads_that_share_a_store_each_get_their_own_bytes(self):
        with self.open(queue_depth=8) as store:
            wrong = []

            def work(number):
                own = random.Random(SEED + number)
                for i in range(40):
                    data = own.randbytes(own.randrange(1, 20000))
                    store.put(f"{number} {i}", data)
                    if store.get(f"{number} {i}") not in (data, None):
                        wrong.append((number, i))

            threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])
            self.assertEqual(store.stats()["puts"], 240)

    def test_a_wait_in_one_thread_ends_with_a_submit_in_another(self):
        with self.open() as store:
            seen = []
            waiter = threading.Thread(target=lambda: seen.append(store.wait(60)))
            waiter.start()
            store.submit_put([("a", b"1")])
            waiter.join()
            self.assertEqual(seen, [True])
            self.assertEqual(len(store.poll()), 1)

    def test_close_ends_a_wait_in_another_thread(self):
        store, seen, started = self.open(), [], threading.Event()

        def wait():
            started.set()
            try:
                seen.append(store.wait(60))
            except kvtier.Closed:
                seen.append("closed")

        waiter = threading.Thread(target=wait)
        waiter.start()
        started.wait()
        store.close()
        waiter.join()
        self.assertEqual(seen, ["closed"])


class Processes(StoreTest):
    def test_a_child_after_fork_is_told_and_the_parent_goes_on(self):
        store = self.open()
        store.put("a", b"parent")
        pin = store.pin("a")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    store.get("a")
                except kvtier.Closed as error:
                    status = 0 if "before a fork" in str(error) else 2
                pin.release()
                store.close()
                del pin, store
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        store.put("b", b"still open")
        self.assertEqual((store.get("a"), store.get("b")), (b"parent", b"still open"))

    def run_python(self, text):
        package = str(pathlib.Path(kvtier.__file__).resolve().parent.parent)
        return subprocess.run([sys.executable, "-c", text, self.path], env={**os.environ, "PYTHONPATH": package},
                              capture_output=True, text=True, timeout=120, check=False)

    def test_an_interpreter_ends_with_a_store_open_and_loses_nothing(self):
        run = self.run_python("import kvtier, sys, threading\n"
                              "store = kvtier.Store(sys.argv[1], '32MiB')\n"
                              "store.put('a', b'kept')\n"
                              "pin = store.pin('a')\n"
                              "buffer = bytearray(4)\n"
                              "store.submit_get([('a', buffer)])\n"
                              "threading.Thread(target=store.wait, args=(3600,), daemon=True).start()\n"
                              "other = kvtier.Store(sys.argv[1] + '2', '32MiB')\n"
                              "threading.Thread(target=other.wait, daemon=True).start()\n")
        self.assertEqual((run.returncode, run.stdout), (0, ""), run.stderr)
        with self.open() as store:
            self.assertEqual(store.get("a"), b"kept")

    def test_the_package_loads_without_preloading_anything(self):
        run = self.run_python("import kvtier, os\nassert 'LD_PRELOAD' not in os.environ\n"
                              "print(kvtier.digest(b'').hex())")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.strip(), kvtier.digest(b"").hex())


if __name__ == "__main__":
    unittest.main()
