#!/usr/bin/env python3
"""How `lockstep train` is told to stop by those who tell every process of a job: train_stop_test.py LOCKSTEP"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LOCKSTEP = ""
RUN = ["-n", "2", "--model", "mlp", "--data", "synthetic", "--width", "64", "--lanes", "4", "--lane-batch", "4",
       "--steps", "1000000", "--eval-every", "0"]


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return -1


def descendants_of(pid):
    parents = {int(name): parent_of(name) for name in os.listdir("/proc") if name.isdigit()}
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


class Stop(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-stop-")
        self.addCleanup(self.folder.cleanup)
        self.out = os.path.join(self.folder.name, "run")

    def steps(self):
        try:
            with open(os.path.join(self.out, "steps.csv"), encoding="utf-8") as lines:
                return max(0, sum(1 for _ in lines) - 1)
        except OSError:
            return 0

    def start(self, *before, args=()):
        process = subprocess.Popen([*before, LOCKSTEP, "train", *RUN, *args, "--out", self.out], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while self.steps() < 3:
            self.assertIsNone(process.poll(), "it ended early")
            self.assertLess(time.monotonic(), deadline, "it does not train")
            time.sleep(0.02)
        return process

    def expect_checkpoint(self, process, status):
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, f"{out}{err}")
        self.assertIn(f"step-{self.steps():08}", os.listdir(os.path.join(self.out, "checkpoints")), f"{out}{err}")
        self.assertIn("to resume:", err)
        return err

    def test_a_signal_to_every_process_writes_the_checkpoint(self):
        process = self.start()
        for pid in [process.pid, *descendants_of(process.pid)]:
            os.kill(pid, signal.SIGTERM)
        self.expect_checkpoint(process, 128 + signal.SIGTERM)

    def test_a_signal_to_every_process_that_is_repeated_too(self):
        process = self.start()
        everybody = [process.pid, *descendants_of(process.pid)]
        for _ in range(3):
            for pid in everybody:
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    pass  # it was quick
            time.sleep(0.01)
        self.expect_checkpoint(process, 128 + signal.SIGTERM)

    def test_every_signal_that_stops_writes_the_checkpoint(self):
        for number in (signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(signal=number.name):
                self.out = os.path.join(self.folder.name, number.name)
                process = self.start()
                process.send_signal(number)
                err = self.expect_checkpoint(process, 128 + number)
                self.assertRegex(err, rf"{number.name}: .*a checkpoint.*once more.*at once")

    def test_nohup_is_not_told(self):
        process = self.start("nohup")
        for pid in [process.pid, *descendants_of(process.pid)]:
            os.kill(pid, signal.SIGHUP)
        before = self.steps()
        deadline = time.monotonic() + 30
        while self.steps() < before + 5:
            self.assertIsNone(process.poll(), "it stopped")
            self.assertLess(time.monotonic(), deadline, "it does not train")
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        self.expect_checkpoint(process, 128 + signal.SIGTERM)

    def test_a_reader_who_is_gone(self):
        """`| head -1` is being told to stop; `| tee` that Ctrl-C ended too is not why it stops."""
        for args, sent, status in ((["--examples", "64"], None, 128 + signal.SIGPIPE), ([], signal.SIGINT, 130)):
            with self.subTest(status=status):
                self.out = os.path.join(self.folder.name, str(status))
                process = self.start(args=args)
                process.stdout.close()
                process.stdout = None
                if sent:
                    process.send_signal(sent)
                self.assertIn("nobody reads" if sent is None else "SIGINT", self.expect_checkpoint(process, status))


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
