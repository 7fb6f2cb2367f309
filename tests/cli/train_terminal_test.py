#!/usr/bin/env python3
"""What a person at a terminal sees of a run: train_terminal_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import unittest

from train_case import LANES, PROGRAM, Case


class Terminal(Case):
    """What a run shows on a terminal of so many columns, and nowhere else."""

    ARGS = [*LANES, "--epochs", "2"]
    BAR = (r"epoch (\d)  step (\d+)/16(\033\[0m)? ▕([█▉▊▋▌▍▎▏ ]+)▏ "
           r"loss \d\.\d{4}  [\d .]+ samples/s  comm [\d.]+ %  ETA \d+:\d\d")

    def shown(self, columns, **variables):
        near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([PROGRAM, "train", "--out", self.path("run"), "--overwrite", *self.ARGS],
                                   stdin=subprocess.DEVNULL, stdout=far, stderr=far, env=self.environment | variables)
        os.close(far)
        text = b""
        try:
            while piece := os.read(near, 65536):
                text += piece
        except OSError:  # the other side is closed
            pass
        os.close(near)
        self.assertEqual(process.wait(60), 0, text)
        return text.decode()

    def test_a_bar_with_rate_and_time_left(self):
        text = self.shown(120)
        bars = re.findall(self.BAR, text)
        self.assertTrue(bars, text)
        self.assertEqual(bars[-1][:2], ("2", "16"))
        self.assertEqual(bars[-1][3], "█" * 30)  # full at the end
        for epoch, step, plain, bar in bars:
            self.assertEqual(len(bar), 30)
            self.assertEqual(plain, "\033[0m")
        self.assertIn("\033[1mepoch 1  step ", text)
        self.assertRegex(text, r"accuracy +\033\[1m[\d.]+ %\033\[0m")
        # Each is taken away before the next, or a line, comes; none stays.
        self.assertEqual(text.count("\r\033[K"), len(bars))
        self.assertEqual(len(re.findall(r"(?:\n|\033\[K)epoch \d  step \d+  loss .*\r\n", text)), 2)

    def test_a_narrow_one_has_no_room_for_the_bar(self):
        text = self.shown(60)
        self.assertNotIn("▕", text)
        self.assertRegex(text, r"step \d+/16\033\[0m loss .* samples/s .* ETA \d+:\d\d")

    def test_without_colours(self):
        text = self.shown(120, NO_COLOR="1")
        self.assertTrue(re.findall(self.BAR, text), text)
        self.assertEqual(set(re.findall(r"\033\[\d*\w", text)), {"\033[K"})

    def test_a_pipe_gets_plain_lines(self):
        done = self.run_program("train", "--out", self.path("run"), *self.ARGS)
        self.assertEqual(done.returncode, 0, done.stderr)
        for mark in ("\033", "\r", "▕"):
            self.assertNotIn(mark, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
