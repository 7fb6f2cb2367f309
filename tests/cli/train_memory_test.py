#!/usr/bin/env python3
"""Models that are too large for one worker's memory. train_memory_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import resource
import subprocess
import time
import unittest

from train_case import PROGRAM, Case, peak_of

ROOM = 48 << 20  # beyond what a run was seen to take: no two take quite the same
NO_LIMIT = resource.RLIM_INFINITY


class Memory(Case):
    def train_within(self, name, layers, *args, limit=NO_LIMIT):
        """What became of it, what it said, and the most addresses that one of its two workers had. Over tcp workers have no memory
        in common, so all that a worker holds is its own, and counts."""
        words = [PROGRAM, "train", "--out", self.path(name), "-n", 2, "--engine", "tcp", "--model", "mlp", "--data", "synthetic",
                 "--width", 2000, "--layers", layers, "--examples", 8, "--lanes", 2, "--lane-batch", 4, "--steps", 2,
                 "--checkpoint-every", -1, "--eval-every", 0, "--bucket-cap-mb", 8, *args]
        environment = dict(self.environment, MALLOC_ARENA_MAX="1")  # else threads reserve more, or less
        most = 0
        with subprocess.Popen(list(map(str, words)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))) as process:
            while process.poll() is None:
                most = max([most, *map(peak_of, self.workers_of(name))])
                time.sleep(0.01)
            out, err = process.communicate()
        return process.returncode, out + err, most

    def test_in_shards_then_on_disk(self):
        """One limit for all: of 38 M parameters ddp has no room and zero3 has; of 58 M zero3 has none, and has with their state on disk."""
        disk = ["--offload", self.folder]
        peaks = {}
        for name, layers, args in (("whole", 10, ["--strategy", "ddp"]), ("shards", 10, ["--strategy", "zero3"]),
                                   ("larger", 15, ["--strategy", "zero3", *disk])):
            status, said, peaks[name] = self.train_within(name, layers, *args)
            self.assertEqual(status, 0, said)
        self.assertEqual(self.summary("shards")["params_sha256"], self.summary("whole")["params_sha256"])
        # Half of the model's state, two units and a few buckets.
        state = self.summary("whole")["state_bytes"][0]
        self.assertLess(max(self.summary("shards")["state_bytes"]), 0.65 * state)
        limit = max(peaks["shards"], peaks["larger"]) + ROOM
        self.assertLess(limit, peaks["whole"], peaks)
        for name, layers, args, hash_of in (("shards2", 10, ["--strategy", "zero3"], "shards"),
                                            ("larger2", 15, ["--strategy", "zero3", *disk], "larger")):
            status, said, _ = self.train_within(name, layers, *args, limit=limit)
            self.assertEqual(status, 0, said)
            self.assertEqual(self.summary(name)["params_sha256"], self.summary(hash_of)["params_sha256"])
        for name, layers, strategy in (("whole2", 10, "ddp"), ("larger3", 15, "zero3")):
            status, said, _ = self.train_within(name, layers, "--strategy", strategy, limit=limit)
            self.assertEqual(status, 1, said)
            self.assertRegex(said, r"not enough memory|no memory for \d+ bytes")


if __name__ == "__main__":
    unittest.main(verbosity=1)
