#!/usr/bin/env python3
"""`lockstep train --offload`: the optimizer's state on disk. train_offload_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import json
import os
import resource
import signal
import subprocess
import time
import unittest

from train_case import LANES, PROGRAM, Case, open_files, peak_of


class OffloadCase(Case):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("disk"))

    def disk(self):
        return ["--offload", self.path("disk")]


class Offload(OffloadCase):
    def test_the_same_bits_and_a_run_that_goes_on_either_way(self):
        args = [*LANES, "--checkpoint-every", 4]
        plain = self.train("plain", *args, "--steps", 8)
        self.assertNotIn("offload", plain)
        # In shards on disk, then whole in memory; and the other way round.
        first = self.train("there", *args, "--steps", 4, "-n", 2, "--strategy", "zero3", *self.disk())
        self.train("here", *args, "--steps", 4)
        for name, how in (("there", ["-n", 1, "--strategy", "ddp", "--offload", "none"]),
                          ("here", ["-n", 2, "--strategy", "zero1", *self.disk()])):
            done = self.run_program("train", "--resume", self.path(name), "--steps", 8, *how)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.summary(name)["params_sha256"], plain["params_sha256"], name)
            self.assertEqual(self.losses(name), self.losses("plain"), name)
            self.assertEqual("offload" in self.summary(name), "--offload" in how and "none" not in how)
        self.assertEqual(os.listdir(self.path("disk")), [])
        # What is in memory is counted, and what is on disk beside it.
        figures = first["offload"]
        self.assertEqual(figures["folder"], self.path("disk"))
        self.assertEqual(len(figures["bytes"]), 2)
        self.assertGreaterEqual(sum(figures["bytes"]), plain["memory"]["optimizer_bytes"])
        self.assertEqual(first["memory"]["optimizer_bytes"], figures["staging_bytes"])
        for name in ("read_gbs", "write_gbs", "predicted_ms", "measured_ms"):
            self.assertGreater(figures[name], 0, name)

    def test_parameters_on_disk(self):
        args = [*LANES, "--checkpoint-every", 4, "--clip-norm", 1]
        both = [*self.disk(), "--offload-what", "state,params"]
        plain = self.train("plain", *args, "--steps", 8)
        # In shards on disk, then whole in memory; in another number of shards; and the other way round.
        first = self.train("there", *args, "--steps", 4, "-n", 2, "--strategy", "zero3", *both)
        self.train("more", *args, "--steps", 4, "-n", 2, "--strategy", "zero3", *self.disk(), "--offload-what", "params")
        self.train("here", *args, "--steps", 4)
        for name, how in (("there", ["-n", 1, "--strategy", "ddp", "--offload", "none", "--offload-what", "state"]),
                          ("more", ["-n", 3, "--strategy", "zero3", *both]),
                          ("here", ["-n", 2, "--strategy", "zero3", *both])):
            done = self.run_program("train", "--resume", self.path(name), "--steps", 8, *how)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.summary(name)["params_sha256"], plain["params_sha256"], name)
            self.assertEqual(self.losses(name), self.losses("plain"), name)
        self.assertEqual(os.listdir(self.path("disk")), [])
        figures = first["offload"]["params"]
        self.assertEqual(len(figures["bytes"]), 2)
        self.assertGreaterEqual(sum(figures["bytes"]), plain["memory"]["parameter_bytes"])
        self.assertEqual(first["memory"]["parameter_bytes"], figures["staging_bytes"])
        for name in ("read_gbs", "write_gbs", "predicted_ms", "measured_ms"):
            self.assertGreater(figures[name], 0, name)
        self.refused("train", "--out", self.path("run"), *LANES, "--strategy", "zero2", *both,
                     words=["--offload-what state,params", "--strategy is zero2", "accepted: zero3"])
        self.refused("train", "--out", self.path("run"), *LANES, *self.disk(), "--offload-what", "all",
                     words=["--offload-what 'all'", "state, params"])

    def test_says_what_it_will_cost_before_the_first_step(self):
        done = self.run_program("train", "--out", self.path("run"), *LANES, "--steps", 2, *self.disk())
        self.assertEqual(done.returncode, 0, done.stderr)
        said = r"offload: \S+ \w+ of optimizer state on disk in %s \((io_uring|threads)(, direct|, through the page cache|; it is memory, not a disk)\), " \
               r"[\d.]+ GB/s read, [\d.]+ GB/s write a worker: about \S+ ms a step more" % self.path("disk")
        self.assertRegex(done.stdout + done.stderr, said)
        # And at the end what it did cost.
        self.assertRegex(done.stdout, r"\noffload        [\d.]+ ms that a step waited \(predicted [\d.]+ ms, off by [+-]\d+ %\)\n")
        figures = self.summary("run")["offload"]
        self.assertIn(f"offload        {figures['measured_ms']:.1f} ms that a step waited (predicted {figures['predicted_ms']:.1f} ms", done.stdout)
        self.assertRegex(done.stdout, r"\nmodel state    [\d.]+ \w+, [\d.]+ bytes a parameter \(predicted [\d.]+ \w+, [\d.]+, off by [+-]\d+ %\)\n")

    def test_plan_says_what_is_on_disk(self):
        done = self.run_program("plan", "memory", "--params", "1B", "-n", 4, "--precision", "bf16", "--json", *self.disk())
        self.assertEqual(done.returncode, 0, done.stderr)
        with_disk = json.loads(done.stdout)
        without = json.loads(self.run_program("plan", "memory", "--params", "1B", "-n", 4, "--precision", "bf16", "--json").stdout)
        for there, here in zip(with_disk["stages"], without["stages"]):
            self.assertEqual(there["disk_bytes"], here["optimizer_bytes"])
            self.assertEqual(there["optimizer_bytes"], 24 << 20)
            self.assertEqual(there["gradient_bytes"], here["gradient_bytes"])
            self.assertGreater(there["disk_ms"], 0)
            self.assertNotIn("disk_bytes", here)
        done = self.run_program("plan", "memory", "--params", "1B", "-n", 4, "--precision", "bf16", "--json", *self.disk(),
                                "--offload-what", "state,params")
        self.assertEqual(done.returncode, 0, done.stderr)
        for both, state, here in zip(json.loads(done.stdout)["stages"], with_disk["stages"], without["stages"]):
            params = here["parameter_bytes"] if both["stage"] == 3 else 0
            self.assertEqual(both["disk_bytes"], state["disk_bytes"] + params)
            self.assertEqual(both["parameter_bytes"] < here["parameter_bytes"], params > 0)
        # Four workers share the disk: a quarter each takes as long as a quarter of what four times all of it takes.
        stages = with_disk["stages"]
        self.assertAlmostEqual(stages[0]["disk_ms"] / stages[1]["disk_ms"], 4, 2)


class OffloadLimits(OffloadCase):
    def test_faults_are_one_line(self):
        nowhere = self.path("nowhere")
        for what, args in (("state", []), ("params", ["--strategy", "zero3"])):
            self.refused("train", "--out", self.path("run"), *LANES, "--steps", 2, "-n", 2, "--offload", nowhere, "--offload-what",
                         what, *args, words=[f"--offload {nowhere}: No such file or directory; accepted: a folder"])
        self.refused("train", "--out", self.path("run"), *LANES, "--steps", 2, "--offload", __file__,
                     words=[f"--offload {__file__}: Not a directory"])
        self.refused("train", "--out", self.path("run"), *LANES, "--optimizer", "torch-adamw", *self.disk(),
                     words=["--offload", "torch-adamw", "accepted: adamw"])
        self.refused("train", "--out", self.path("run"), *LANES, "--offload", "", words=["--offload ''", "accepted: a folder"])
        self.assertFalse(os.path.exists(self.path("run")))

    def test_a_full_disk(self):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", self.path("disk")], capture_output=True,
                                 text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no small file system can be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.path("disk")], check=True)
        # A wider model's 1.4 MB find none; two workers' 136 KB each do.
        self.refused("train", "--out", self.path("run"), *LANES, "--width", 150, "--steps", 2, *self.disk(), status=1,
                     words=["cannot make a scratch file of", f"in {self.path('disk')} (", "are free): No space left on device"])
        self.assertFalse(os.path.exists(self.path("run")))
        small = self.train("run", *LANES, "--steps", 2, "-n", 2, "--strategy", "zero1", *self.disk())
        self.assertTrue(small["offload"]["in_memory"])
        self.assertFalse(small["offload"]["direct"])

    def test_nothing_is_left_when_it_is_killed(self):
        args = [*LANES, "--steps", 100000, "-n", 2, *self.disk()]
        with self.start("run", *args) as process:
            self.wait_for_steps(process, "run", 3)
            workers = self.workers_of("run")
            held = [link for pid in workers for link in open_files(pid)]
            self.assertEqual(sum(link.startswith(self.path("disk")) for link in held), 2, held)  # it was there
            self.assertEqual(os.listdir(self.path("disk")), [])
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            process.communicate(timeout=60)
        self.assertEqual(os.listdir(self.path("disk")), [])

    def test_trains_in_memory_that_is_too_little_without(self):
        """Under a limit on addresses: what libtorch and the collectives reserve is measured by the run itself."""
        wide = ["--model", "mlp", "--data", "synthetic", "--width", 3500, "--layers", 4, "--examples", 8, "--lanes", 1,
                "--lane-batch", 4, "--steps", 2, "--checkpoint-every", -1, "--eval-every", 0]
        environment = dict(self.environment, MALLOC_ARENA_MAX="1")  # else threads reserve more, or less

        def train(name, *args, limit=resource.RLIM_INFINITY):
            """What became of it, and the most addresses that its worker had."""
            most = 0
            with subprocess.Popen([PROGRAM, "train", "--out", self.path(name), *map(str, [*wide, *args])], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))) as process:
                while process.poll() is None:
                    for pid in self.workers_of(name):
                        most = max(most, peak_of(pid))
                    time.sleep(0.02)
                out, err = process.communicate()
            return process.returncode, out, err, most

        most = 0
        for _ in range(4):  # what is seen of a run may be short of its peak: beside a load its last moments are missed
            status, out, err, seen = train("there", "--overwrite", *self.disk())
            self.assertEqual(status, 0, err)
            most = max(most, seen)
            limit = most + (48 << 20)
            status, out, err, _ = train("again", "--overwrite", *self.disk(), limit=limit)
            if status == 0:
                break
        self.assertEqual(status, 0, err)
        self.assertGreater(self.summary("there")["offload"]["bytes"][0], 300 << 20)
        self.assertEqual(self.summary("again")["params_sha256"], self.summary("there")["params_sha256"])
        # Wherever it runs out: also where it would be a buffer of the library of matrix products, which asks for ever.
        for less in range(0, 200, 40):
            status, out, err, _ = train("here", "--overwrite", limit=limit - (less << 20))
            self.assertEqual(status, 1, out + err)
            self.assertEqual(len(err.splitlines()), 1, err)
            self.assertIn("not enough memory", err)


if __name__ == "__main__":
    unittest.main(verbosity=1)
