#!/usr/bin/env python3
"""Wherever the model's state lies, the bits are those of one worker alone.

    shard_bits_test.py PATH_TO_LOCKSTEP [TEST_CLASS]

A GPT with dropout and tied embeddings, and ResNet-18 with batch norm, in fp32 and bf16, by every optimizer that knows shards, clipped,
eight lanes: each of RUNS has the params_sha256 and the losses of ddp on one worker, and so has a run that is saved and gone on with by
another stage and number of workers, twice. A subclass is a model in a precision.
"""
import os
import random
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from train_case import Case  # takes the program's path out of sys.argv

OPTIMIZERS = {"sgd": ["--lr", "0.02", "--momentum", "0.9"], "adamw": ["--lr", "0.01"], "lars": ["--lr", "0.5"], "lamb": ["--lr", "0.02"]}
NODES = {"LOCKSTEP_NODE_SIZE": "2"}
OFFLOAD = ["--offload", "{}"]  # a folder
# Workers, strategy, flags, and where the nodes end.
RUNS = [
    (2, "ddp", ["--recompute"], {}),
    (3, "ddp", OFFLOAD, {}),
    (4, "ddp", [], NODES),
    (8, "ddp", [], {}),
    (1, "zero1", OFFLOAD, {}),
    (2, "zero1", [], {}),
    (3, "zero1", ["--recompute"], {}),
    (8, "zero1", [*OFFLOAD, "--recompute"], {}),
    (1, "zero2", ["--recompute"], {}),
    (2, "zero2", OFFLOAD, {}),
    (4, "zero2", [], {}),
    (8, "zero2", [], {}),
    (1, "zero3", [*OFFLOAD, "--recompute"], {}),
    (2, "zero3", ["--gathered-mb", "1"], {}),
    (3, "zero3", [*OFFLOAD, "--recompute"], {}),
    (4, "zero3", [*OFFLOAD, "--offload-what", "state,params"], {}),
    (8, "zero3", [], {}),
    (4, "hybrid-shard", [], NODES),
    (4, "hybrid-shard", [*OFFLOAD, "--recompute", "--gathered-mb", "1"], NODES),
]
# Each is saved and gone on with by the next.
CHAINS = [[(2, "ddp", []), (8, "zero3", []), (3, "zero1", OFFLOAD)],
          [(3, "zero3", ["--gathered-mb", "1"]), (1, "zero2", []), (4, "ddp", ["--recompute"])]]


class Model:
    ARGS = []
    PRECISION = "fp32"
    STEPS = 3

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("disk"))
        with open(self.path("text"), "w") as file:
            file.write(" ".join(random.Random(1).choices(["lane", "bucket", "tree", "step", "sum", "of", "a"], k=600)))

    def args(self, optimizer):
        return [*(a.format(self.folder) for a in self.ARGS), "--precision", self.PRECISION, "--lanes", "8", "--optimizer", optimizer,
                *OPTIMIZERS[optimizer], "--clip-norm", "0.5", "--eval-every", "0", "--seed", "7"]

    def bits(self, name):
        return self.summary(name)["params_sha256"], self.losses(name)

    def placed(self, flags):
        return [flag.format(self.path("disk")) for flag in flags]

    def of(self, optimizer):
        args = [*self.args(optimizer), "--steps", self.STEPS]
        self.train("alone", "-n", 1, *args, "--checkpoint-every", -1, "--overwrite")
        alone = self.bits("alone")
        for workers, strategy, flags, variables in RUNS:
            with self.subTest(optimizer=optimizer, workers=workers, strategy=strategy, flags=flags):
                self.train("run", "-n", workers, *args, "--strategy", strategy, *self.placed(flags), "--checkpoint-every", -1, "--overwrite",
                           env=dict(self.environment, **variables))
                self.assertEqual(self.bits("run"), alone)
                self.assertEqual(os.listdir(self.path("disk")), [], "left on disk")
        for k, chain in enumerate(CHAINS):
            with self.subTest(optimizer=optimizer, chain=chain):
                name = f"chain{k}"
                shutil.rmtree(self.path(name), ignore_errors=True)
                for i, (workers, strategy, flags) in enumerate(chain):
                    begin = ["--resume", self.path(name)] if i else [*self.args(optimizer), "--checkpoint-every", 1]
                    self.train(name, "-n", workers, *begin, "--strategy", strategy, *self.placed(flags), "--steps", i + 1)
                self.assertEqual(self.bits(name), alone)

    def test_sgd(self):
        self.of("sgd")

    def test_adamw(self):
        self.of("adamw")

    def test_lars(self):
        self.of("lars")

    def test_lamb(self):
        self.of("lamb")


class Gpt(Model, Case):
    ARGS = ["--model", "gpt", "--blocks", "2", "--width", "16", "--heads", "2", "--context", "8", "--dropout", "0.1", "--tied-embeddings", "--data",
            "{}/text", "--examples", "64", "--lane-batch", "2"]


class Gptbf16(Gpt):
    PRECISION = "bf16"


class Resnet(Model, Case):
    ARGS = ["--model", "resnet18", "--cifar-stem", "--channels", "4", "--data", "synthetic", "--examples", "48", "--lane-batch", "2"]


class Resnetbf16(Resnet):
    PRECISION = "bf16"


if __name__ == "__main__":
    unittest.main(verbosity=2)
