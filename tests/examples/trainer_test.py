"""examples/04_trainer, told to stop and killed in the middle: it ends with the bits of a run that nobody disturbed, and its
folder has the page.

trainer_test.py LOCKSTEP PROGRAM
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "base"))
from repeated import say_repeated

LOCKSTEP, PROGRAM = sys.argv[1:3]
STEPS = 20 * 30  # 2000 examples in steps of 4 lanes × 25


class Trainer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.expected = cls.run_whole(cls.new_folder(), 0)

    @classmethod
    def new_folder(cls):
        return pathlib.Path(tempfile.mkdtemp(dir=cls.temporary.name), "run")

    @staticmethod
    def command(folder, workers):
        return [*([LOCKSTEP, "run", "-n", str(workers), "--"] if workers else []), PROGRAM, str(folder)]

    @classmethod
    def run_whole(cls, folder, workers):
        """Runs to the end; the parameters' hash."""
        done = subprocess.run(cls.command(folder, workers), capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
        summary = json.loads((folder / "summary.json").read_text())
        if summary["steps"] != STEPS:
            raise AssertionError(summary)
        return summary["params_sha256"]

    def disturb(self, folder, workers, sent):
        """Starts it, sends the signal when the second epoch is told, and so the first one's checkpoint there, and returns status and standard output."""
        with subprocess.Popen(self.command(folder, workers), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            said = ""
            for line in process.stdout:
                said += line
                if "epoch 2 " in line:
                    process.send_signal(sent)
                    break
            said += process.stdout.read()
            return process.wait(timeout=120), said

    def disturb_at_work(self, workers, sent):
        for _ in range(5):  # on a busy machine a run may be over before this script hears of its second epoch
            folder = self.new_folder()
            status, said = self.disturb(folder, workers, sent)
            summary = folder / "summary.json"
            if not summary.exists() or json.loads(summary.read_text())["steps"] < STEPS:
                break
            say_repeated(self.id(), "the run was over before its signal")
        return folder, status, said

    def test_the_number_of_workers_makes_no_difference_and_there_is_a_page(self):
        folder = self.new_folder()
        self.assertEqual(self.run_whole(folder, 2), self.expected)
        page = (folder / "index.html").read_text()
        self.assertIn("net on wave", page)
        self.assertIn('aria-label="Loss"', page)
        self.assertLess(json.loads((folder / "summary.json").read_text())["validation_loss"], 0.02)

    def test_told_to_stop_it_goes_on(self):
        for workers, then in ((0, 2), (2, 1)):
            folder, status, said = self.disturb_at_work(workers, signal.SIGTERM)
            self.assertEqual(status, 128 + signal.SIGTERM, said)
            self.assertIn("if_there = resume", said)
            self.assertLess(json.loads((folder / "summary.json").read_text())["steps"], STEPS)
            self.assertEqual(self.run_whole(folder, then), self.expected)

    def test_killed_it_goes_on(self):
        folder, status, said = self.disturb_at_work(0, signal.SIGKILL)
        self.assertEqual(status, -signal.SIGKILL, said)
        self.assertTrue(os.listdir(folder / "checkpoints"))
        self.assertEqual(self.run_whole(folder, 2), self.expected)

    def test_one_that_is_through_stays(self):
        folder = self.new_folder()
        self.run_whole(folder, 1)
        before = (folder / "summary.json").stat().st_mtime_ns
        self.assertEqual(self.run_whole(folder, 2), self.expected)
        self.assertEqual((folder / "summary.json").stat().st_mtime_ns, before)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
