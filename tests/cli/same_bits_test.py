#!/usr/bin/env python3
"""A run is its lanes: eight of them give one set of bits, whatever carries them.

    same_bits_test.py PATH_TO_LOCKSTEP [TEST_CLASS]

The same model is trained by 1, 2, 3, 4 and 8 workers, with every canonical algorithm, with other buckets, with the
optimizer's state in shards, and killed and gone on with by other numbers of workers. Each time the weights and the
batch-norm statistics (params_sha256), the loss of every step, and accuracy and validation loss of every epoch must be
what one worker gets alone.
"""
import os
import random
import shutil
import signal
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from train_case import Case  # takes the program's path out of sys.argv

WORKERS = [1, 2, 3, 4, 8]
OPTIMIZERS = ["sgd", "adamw"]
NODES = {"LOCKSTEP_NODE_SIZE": "2"}  # of 3 workers 2 + 1, of 8 four times 2: aligned, and so canonical
ALGORITHMS = {"eager": {}, "direct": {}, "tree": {}, "halving-doubling": {}, "pairwise": {}, "hierarchical": NODES}
FREE = ["--steps", "100000"]  # until it is killed


class Model:
    """The cases; a subclass below is a model."""

    NAME = ""
    DATA = ""
    ARGS = []          # an epoch ends with a step in which some lanes carry less, or nothing
    STEPS = 5          # into the second epoch
    ALGORITHMS = ALGORITHMS
    ALGORITHM_WORKERS = [3, 8]
    ALGORITHM_ARGS = []
    BUCKETS = []       # of --bucket-cap-mb, growing, all below the default
    WITHOUT = []       # turns the model's random part off
    KILLS = []         # optimizer, then per start its workers and which of them is killed; None: none
    CHECKPOINT_EVERY = 2

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.mkdtemp(prefix="lockstep-same-bits-")
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)
        with open(os.path.join(cls.shared, "text"), "w") as file:
            words = random.Random(1).choices(["lane", "bucket", "tree", "step", "worker", "sum", "of", "a"], k=600)
            file.write(" ".join(words))
        cls.references = {}

    def setUp(self):
        super().setUp()
        self.environment["LOCKSTEP_CACHE_DIR"] = os.path.join(self.shared, "cache")
        self.environment["TMPDIR"] = self.shared  # where the flight records of a killed run go

    def args(self, optimizer):
        # Steps must be large enough to show: a wrong gradient that the optimizer rounds away is not seen.
        where = [] if os.sep in self.DATA else ["--data-dir", os.path.join(self.shared, "data")]
        return ["--model", self.NAME, "--data", self.DATA.format(self.shared), *where, *self.ARGS, "--lanes", "8",
                "--last-step", "short", "--optimizer", optimizer, "--lr", "0.01", "--seed", "7"]

    def bits(self, name):
        summary = self.summary(name)
        return {"params_sha256": summary["params_sha256"], "accuracy": summary["accuracy"],
                "validation_loss": summary["validation_loss"], "losses": self.losses(name),
                "epochs": [(r["epoch"], r["step"], r["validation_loss"], r["accuracy"])
                           for r in self.rows(name, "epochs.csv")]}

    def trained(self, workers, optimizer, *more, variables=None, steps=None):
        """Trains into the folder `run`; gives its bits."""
        args = [*self.args(optimizer), "--checkpoint-every", "-1", "--steps", steps or self.STEPS]
        summary = self.train("run", "-n", workers, *args, "--overwrite", *more,
                             env=dict(self.environment, **(variables or {})))
        self.assertEqual(summary["workers"], workers)
        self.assertEqual(len(self.losses("run")), steps or self.STEPS)
        return self.bits("run")

    def reference(self, optimizer):
        """What one worker gets alone."""
        if optimizer not in self.references:
            self.references[optimizer] = self.trained(1, optimizer)
        return self.references[optimizer]

    def buckets(self):
        return self.rows("run", "buckets.csv")

    def test_any_number_of_workers(self):
        for optimizer in OPTIMIZERS:
            for n in WORKERS[1:]:
                with self.subTest(optimizer=optimizer, workers=n):
                    self.assertEqual(self.trained(n, optimizer), self.reference(optimizer))
        self.assertNotEqual(self.reference("sgd"), self.reference("adamw"))

    def test_the_models_state_in_shards(self):
        for i, n in enumerate(WORKERS):
            for stage in (1, 2, 3):
                optimizer = OPTIMIZERS[(i + stage) % 2]
                with self.subTest(optimizer=optimizer, workers=n, stage=stage):
                    self.assertEqual(self.trained(n, optimizer, "--strategy", f"zero{stage}"), self.reference(optimizer))

    def test_every_canonical_algorithm(self):
        for i, (name, variables) in enumerate(self.ALGORITHMS.items()):
            optimizer = OPTIMIZERS[i % 2]
            for n in self.ALGORITHM_WORKERS:
                with self.subTest(algorithm=name, workers=n):
                    found = self.trained(n, optimizer, "--algorithm", name, *self.ALGORITHM_ARGS, variables=variables)
                    self.assertEqual({r["algorithm"] for r in self.buckets()}, {name})
                    self.assertEqual(found, self.reference(optimizer))

    def test_any_size_of_buckets(self):
        counts = []
        for i, cap in enumerate(self.BUCKETS):
            with self.subTest(bucket_cap_mb=cap):
                found = self.trained(3 - i, "adamw", "--bucket-cap-mb", cap, "--first-bucket-mb", cap)
                counts.append(1 + max(int(r["bucket"]) for r in self.buckets()))
                self.assertEqual(found, self.reference("adamw"))
        self.assertGreater(counts[-1], 1)
        self.assertEqual(sorted(set(counts), reverse=True), counts, "a larger cap, fewer buckets")

    def test_killed_and_gone_on_with(self):
        for optimizer, *starts in self.KILLS:
            with self.subTest(optimizer=optimizer, starts=starts):
                self.assertEqual(*self.killed(optimizer, starts))

    def killed(self, optimizer, starts):
        """The bits of a run that was killed after each start but the last, and of one that was not."""
        name = f"killed-{optimizer}"
        args = [*self.args(optimizer), "--checkpoint-every", self.CHECKPOINT_EVERY, *FREE]
        saved = 0
        for workers, victim in starts[:-1]:
            process = self.start(name, "-n", workers, *args)
            self.addCleanup(process.kill)
            self.wait_for_checkpoint(process, name, saved + self.CHECKPOINT_EVERY)
            found = self.workers_of(name)
            self.assertEqual(len(found), workers)
            os.kill(found[victim], signal.SIGKILL)
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1, out + err)
            kept = max(self.saved_steps(name))
            self.assertGreater(kept, saved)
            saved = kept
            args = ["--resume", self.path(name), *FREE]
        workers, _ = starts[-1]
        self.train(name, "-n", workers, "--resume", self.path(name), "--steps", saved + 2)
        self.assertEqual(self.summary(name)["workers"], workers)
        return self.bits(name), self.trained(2, optimizer, steps=saved + 2)

    def test_what_does_change_the_bits(self):
        base = self.reference("sgd")
        self.assertEqual(len(base["epochs"]), 2)
        for args in [["--seed", "8"], *self.WITHOUT]:
            with self.subTest(args=args):
                found = self.trained(2, "sgd", *args)
                self.assertNotEqual(found["params_sha256"], base["params_sha256"])
                self.assertNotEqual(found["losses"], base["losses"])


class Mlp(Model, Case):
    NAME = "mlp"
    DATA = "synthetic"
    ARGS = ["--width", "32", "--layers", "2", "--examples", "60", "--eval-examples", "40", "--eval-batch", "9",
            "--lane-batch", "3"]
    ALGORITHM_ARGS = ["--bucket-cap-mb", "0.02", "--first-bucket-mb", "0.01"]  # several buckets
    BUCKETS = [0.004, 0.02]
    KILLS = [("sgd", (4, 1), (3, 2), (8, None)), ("adamw", (8, 0), (3, None))]

    def test_a_rotated_sum_is_another(self):
        # What the others would show if an algorithm added up in an order of its own.
        found = self.trained(3, "sgd", "--algorithm", "ring")
        self.assertNotEqual(found["params_sha256"], self.reference("sgd")["params_sha256"])


class Gpt(Model, Case):
    NAME = "gpt"
    DATA = "{}/text"
    ALGORITHM_WORKERS = [3]  # eight are the MLP's
    ARGS = ["--blocks", "2", "--width", "16", "--heads", "2", "--context", "8", "--dropout", "0.1", "--examples", "60",
            "--eval-examples", "20", "--eval-batch", "6", "--lane-batch", "3"]
    ALGORITHM_ARGS = ["--bucket-cap-mb", "0.02", "--first-bucket-mb", "0.01"]
    BUCKETS = [0.004, 0.02]
    WITHOUT = [["--dropout", "0"]]
    KILLS = [("sgd", (8, 3), (1, None)), ("adamw", (3, 0), (4, None))]


class Resnet18(Model, Case):
    NAME = "resnet18"
    DATA = "shapes"
    ARGS = ["--examples", "28", "--eval-examples", "8", "--eval-batch", "3", "--lane-batch", "2"]
    STEPS = 3
    ALGORITHMS = {name: v for name, v in ALGORITHMS.items() if name != "eager"}  # which carries 256 KiB
    ALGORITHM_WORKERS = [3]
    BUCKETS = [1, 8]
    WITHOUT = [["--no-augment"]]
    KILLS = [("sgd", (2, 1), (3, None)), ("adamw", (3, 0), (1, None))]
    CHECKPOINT_EVERY = 1


if __name__ == "__main__":
    unittest.main(verbosity=2)
