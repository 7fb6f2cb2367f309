#!/usr/bin/env python3
"""How `lockstep train` stops, and that nothing is lost by it: train_stop_test.py LOCKSTEP

DISK_SHIM is the library that makes disks slow (disk_shim.cc)."""
import fcntl
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "base"))
from repeated import say_repeated

LOCKSTEP = ""
SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which older Pythons have no name for
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
        self.out = ""

    def steps(self):
        try:
            with open(os.path.join(self.out, "steps.csv"), encoding="utf-8") as lines:
                return max(0, sum(1 for _ in lines) - 1)
        except OSError:
            return 0

    def start(self, *args, before=(), stdout=subprocess.PIPE, **variables):
        self.out = tempfile.mkdtemp(prefix="run-", dir=self.folder.name)
        process = subprocess.Popen([*before, LOCKSTEP, "train", *RUN, "--out", self.out, *args], text=True, stdout=stdout,
                                   stderr=subprocess.PIPE, start_new_session=True, env=dict(os.environ, **variables))
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
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
        self.expect_the_last_step(f"{out}{err}")
        self.assertIn("to resume:", err)
        return err

    def expect_the_last_step(self, message=""):
        checkpoints = os.path.join(self.out, "checkpoints")
        self.assertTrue(os.path.isdir(checkpoints), f"no checkpoint after {self.steps()} steps; {message}")
        self.assertIn(f"step-{self.steps():08}", os.listdir(checkpoints), message)

    def slow_disk(self, fault):
        return {"LD_PRELOAD": os.environ["DISK_SHIM"], "DISK_FAULTS": fault}

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

    def test_a_quit_too_and_it_is_heard_at_once(self):
        process = self.start()
        process.send_signal(signal.SIGQUIT)
        err = self.expect_checkpoint(process, 128 + signal.SIGQUIT)
        self.assertRegex(err, r"SIGQUIT: .*a checkpoint.*once more.*at once")

    def test_a_reader_who_is_gone(self):
        """`| head -1` is being told to stop; `| tee` that Ctrl-C ended too is not why it stops."""
        for args, sent, status in ((["--examples", "64"], None, 128 + signal.SIGPIPE), ([], signal.SIGINT, 130)):
            with self.subTest(status=status):
                process = self.start(*args)
                process.stdout.close()
                process.stdout = None
                if sent:
                    process.send_signal(sent)
                self.assertIn("nobody reads" if sent is None else "SIGINT", self.expect_checkpoint(process, status))

    def test_a_signal_behind_a_reader_who_is_gone(self):
        """The workers were told by a SIGTERM of ours then, which nobody sent."""
        for attempt in range(3):
            process = self.start("--examples", "64", **self.slow_disk("fsync .staging/model.safetensors delay_ms=6000"))
            process.stdout.close()
            process.stdout = None
            begin = time.monotonic()
            self.assertIn("nobody reads", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            late = time.monotonic() - begin
            if late < 2.5 or attempt == 2:  # within the 3 s in which signals are one
                self.expect_checkpoint(process, 128 + signal.SIGINT)
                return
            say_repeated(self.id(), f"a signal came {late:.1f} s behind the reader's end")
            process.communicate(timeout=60)

    def test_timeout_tells_it_and_its_group(self):
        process = self.start(before=["timeout", "--signal=TERM", "1000"])
        os.kill(process.pid, signal.SIGTERM)  # timeout passes it on as if the time were over
        self.expect_checkpoint(process, 128 + signal.SIGTERM)

    def test_a_terminal_or_connection_that_is_gone(self):
        for everybody in (False, True):
            with self.subTest(everybody=everybody):
                process = self.start()
                for pid in [process.pid, *(descendants_of(process.pid) if everybody else [])]:
                    os.kill(pid, signal.SIGHUP)
                self.expect_checkpoint(process, 128 + signal.SIGHUP)

    def test_nohup(self):
        """What is ignored stays so, also in the workers."""
        process = self.start(before=["env", "--ignore-signal=HUP"])
        for pid in [process.pid, *descendants_of(process.pid)]:
            os.kill(pid, signal.SIGHUP)
        seen = self.steps()
        while self.steps() < seen + 3:
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        self.expect_checkpoint(process, 128 + signal.SIGTERM)

    def test_a_second_one_later_ends_at_once(self):
        """A checkpoint that takes ten minutes is not waited for."""
        process = self.start(**self.slow_disk("fsync .staging/model.safetensors delay_ms=600000"))
        os.kill(process.pid, signal.SIGTERM)
        while not os.path.exists(os.path.join(self.out, "checkpoints", ".staging", "model.safetensors")):
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        time.sleep(3)  # repeats until then are the same one
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)

    def test_a_parent_that_is_killed(self):
        """The workers are told by their launcher. Each of the steps is told to a parent who is not there any more."""
        process = self.start(**self.slow_disk("write steps.csv delay_ms=120"))
        others = descendants_of(process.pid)
        process.kill()
        process.communicate(timeout=60)
        deadline = time.monotonic() + 60
        while any(parent_of(pid) >= 0 for pid in others):
            self.assertLess(time.monotonic(), deadline, "workers are left")
            time.sleep(0.02)
        self.expect_the_last_step()

    def stuck(self, *args, **variables):
        """A run whose output nobody reads, and that waits for its reader."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        room = fcntl.fcntl(writer, SET_PIPE_SIZE, 8192)  # two pages, or a larger one
        # An epoch a step, and a line an epoch.
        process = self.start("--examples", "16", "--checkpoint-every", "-1", *args, stdout=writer, **variables)
        os.close(writer)
        # Not a run that no core is free for: the pipe is what stands still, with much in it. A page of it that is begun may
        # have no room for what comes.
        seen, since, deadline = -1, time.monotonic(), time.monotonic() + 60
        while seen < room // 4 or time.monotonic() - since < 0.5:
            waiting = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0]
            if waiting != seen:
                seen, since = waiting, time.monotonic()
            self.assertIsNone(process.poll(), "it ended early")
            self.assertLess(time.monotonic(), deadline, f"{waiting} bytes wait for a reader, and {room} have room")
            time.sleep(0.02)
        return process

    def test_output_that_nobody_reads(self):
        for everybody in (False, True):
            with self.subTest(everybody=everybody):
                process = self.stuck()
                for pid in [process.pid, *(descendants_of(process.pid) if everybody else [])]:
                    os.kill(pid, signal.SIGTERM)
                self.expect_checkpoint(process, 128 + signal.SIGTERM)

    def test_output_of_a_worker_that_nobody_reads(self):
        process = self.stuck("-n", "1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                             MASTER_PORT="29574")
        os.kill(process.pid, signal.SIGTERM)
        self.expect_checkpoint(process, 128 + signal.SIGTERM)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
