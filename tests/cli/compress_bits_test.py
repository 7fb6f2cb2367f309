#!/usr/bin/env python3
"""A compressed run is its lanes and its groups: one set of bits by every method, whatever carries it.

    compress_bits_test.py PATH_TO_LOCKSTEP [MPIEXEC [TEST]]

One worker alone, in shared memory, gives the bits. Other numbers of workers, over shared memory, TCP and MPI, with the
optimizer's state and the gradients in shards, and a run of which a worker was killed and that others went on with, have to
have the same.
"""
import os
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
from train_case import LANES, PROGRAM, Case  # takes the program's path out of sys.argv

MPIEXEC = sys.argv.pop(1) if len(sys.argv) > 1 else ""
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
METHODS = ["int8:min=0", "fp8:min=0", "int8:form=scattered:ef=on:min=0", "qsgd:16:min=0", "terngrad:min=0", "onebit:min=0",
           "intsgd:min=0", "randk:0.2:ef=on:min=0", "topk:0.05:min=0", "dgc:0.05:rampup=4:min=0", "powersgd:rank=2:min=0",
           "*.bias=none,0.*=topk:0.1:min=0:warmup=2,powersgd:rank=2:min=0", "onebit-adam:warmup=3:min=0"]
STEPS = 8
KILLED_AFTER = 4  # steps, of which there is a checkpoint
RUN = [*LANES, "--last-step", "short", "--seed", 5, "--compress-groups", 4, "--eval-every", 0]


class CompressBits(Case):
    def args(self, method):
        if method.startswith("onebit-adam"):
            return [*RUN, "--optimizer", "onebit-adam", "--lr", 0.003, "--compress", method]
        return [*RUN, "--optimizer", "sgd", "--momentum", 0, "--lr", 0.01, "--compress", method]

    def bits(self, name):
        return self.summary(name)["params_sha256"], self.losses(name)

    def trained(self, method, *more):
        self.train("run", *self.args(method), "--checkpoint-every", -1, "--steps", STEPS, "--overwrite", *more)
        return self.bits("run")

    def under_mpi(self, method, workers):
        args = [PROGRAM, "train", *self.args(method), "--checkpoint-every", -1, "--steps", STEPS, "--overwrite",
                "--engine", "mpi", "--out", self.path("mpi")]
        done = subprocess.run([MPIEXEC, "-n", str(workers), *map(str, args)], capture_output=True, text=True, timeout=240,
                              env={**self.environment, **OPEN_MPI})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = self.summary("mpi")
        self.assertEqual((summary["engine"], summary["workers"]), ("mpi", workers))
        return self.bits("mpi")

    def killed(self, method):
        """Four workers over TCP, of which one is killed; three go on in shared memory, with another strategy."""
        name = f"killed-{METHODS.index(method)}"  # of its own: in another's there would be a checkpoint already
        process = self.start(name, "-n", 4, "--engine", "tcp", "--strategy", "zero1", *self.args(method), "--overwrite",
                             "--checkpoint-every", KILLED_AFTER, "--steps", 100000)
        self.addCleanup(process.kill)
        self.wait_for_checkpoint(process, name, KILLED_AFTER)
        os.kill(self.workers_of(name)[2], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        saved = max(self.saved_steps(name))
        self.train(name, "-n", 3, "--engine", "shm", "--strategy", "ddp", "--resume", self.path(name), "--steps",
                   saved + 2, "--checkpoint-every", -1)
        self.train("whole", *self.args(method), "-n", 2, "--checkpoint-every", -1, "--steps", saved + 2, "--overwrite")
        return self.bits(name), self.bits("whole")

    def carried(self, method):
        one = self.trained(method, "-n", 1)
        self.assertEqual(len(one[1]), STEPS)
        for n, engine, strategy in ((2, "tcp", "ddp"), (3, "shm", "zero1"), (4, "tcp", "zero2"), (8, "shm", "ddp")):
            with self.subTest(method=method, workers=n, engine=engine, strategy=strategy):
                self.assertEqual(self.trained(method, "-n", n, "--engine", engine, "--strategy", strategy), one)
        if MPIEXEC:
            self.assertEqual(self.under_mpi(method, 2), one)
        else:
            print("this build has no MPI", file=sys.stderr)

    def test_whatever_carries_it(self):
        for method in METHODS:
            self.carried(method)

    def test_killed_and_gone_on_with(self):
        for method in METHODS:
            with self.subTest(method=method):
                self.assertEqual(*self.killed(method))


if __name__ == "__main__":
    unittest.main(verbosity=2)
