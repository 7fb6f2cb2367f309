#!/usr/bin/env python3
"""In 16 bits too a run is its lanes: one set of bits for each model, whatever carries its eight lanes.

    narrow_bits_test.py PATH_TO_LOCKSTEP Bf16|Fp16

A GPT with dropout and a thin ResNet-18 are trained by 1, 2, 3, 4 and 8 workers, whole and in shards, over shared memory
and TCP. Weights and statistics (params_sha256), the loss of every step, and under loss scaling the scale and which
steps were skipped must be what one worker gets alone. Where libtorch lacks the kernels of Fp16 the line that says so
is checked, and printed, and the test counts as skipped (exit status 77).
"""
import sys
import unittest

sys.dont_write_bytecode = True
from train_case import Case  # takes the program's path out of sys.argv

WORKERS = [1, 2, 3, 4, 8]
COMMON = ["--lanes", 8, "--seed", 7, "--steps", 12, "--checkpoint-every", -1, "--eval-every", 0]
GPT = ["--model", "gpt", "--blocks", 2, "--width", 64, "--heads", 2, "--context", 32, "--dropout", 0.1, "--lane-batch", 2,
       "--lr", "2e-3", *COMMON]
RESNET = ["--model", "resnet18", "--channels", 4, "--examples", 400, "--lane-batch", 4, "--lr", "1e-3", *COMMON]
MODELS = {"gpt": GPT, "resnet18": RESNET}
NO_KERNELS = 77  # ctest's SKIP_RETURN_CODE


class Narrow:
    """The cases; a subclass below is a precision."""

    PRECISION = ""
    SCALING = []  # without a step that overflows

    def trained(self, workers, *args):
        """Trains into the folder `run`; gives its bits."""
        summary = self.train("run", "-n", workers, "--precision", self.PRECISION, "--overwrite", *args)
        self.assertEqual(summary["workers"], workers)
        self.assertEqual(summary["precision"], self.PRECISION)
        return {"params_sha256": summary["params_sha256"],
                "steps": [(r["step"], r["loss"], r.get("loss_scale"), r.get("skipped"))
                          for r in self.rows("run", "steps.csv")]}

    def test_any_workers_strategy_and_engine(self):
        for name, model in MODELS.items():
            model = [*model, *self.SCALING]
            alone = self.trained(1, *model)
            self.assertNotIn("1", [skipped for _, _, _, skipped in alone["steps"]])
            self.assertEqual(len({loss for _, loss, _, _ in alone["steps"]}), 12)
            for workers in WORKERS:
                for strategy in ["ddp", "zero1"]:
                    for engine in ["shm", "tcp"]:
                        with self.subTest(model=name, workers=workers, strategy=strategy, engine=engine):
                            found = self.trained(workers, *model, "--strategy", strategy, "--engine", engine)
                            self.assertEqual(found, alone)
            for strategy in ["zero2", "zero3"]:
                with self.subTest(model=name, workers=3, strategy=strategy):
                    self.assertEqual(self.trained(3, *model, "--strategy", strategy), alone)
            for change in [["--seed", 8], ["--algorithm", "ring"]]:  # what does change the bits
                other = self.trained(3, *model, *change)
                self.assertNotEqual(other["params_sha256"], alone["params_sha256"], change)

    def test_layerwise_optimizers(self):
        for optimizer in ["lars", "lamb"]:
            for name, model in MODELS.items():
                run = [*model, *self.SCALING, "--optimizer", optimizer]
                alone = self.trained(1, *run)
                for workers in [2, 4]:
                    for strategy in ["ddp", "zero1"]:
                        with self.subTest(optimizer=optimizer, model=name, workers=workers, strategy=strategy):
                            self.assertEqual(self.trained(workers, *run, "--strategy", strategy), alone)

    def test_half_the_bytes_travel(self):
        # Wider, so that batch norm's parameters and statistics, which stay f32, are few among the others.
        for name, model in {"gpt": GPT, "resnet18": [*RESNET, "--channels", 16]}.items():
            for strategy in ["ddp", "zero1"]:
                with self.subTest(model=name, strategy=strategy):
                    run = ["-n", 2, *model, "--steps", 2, "--strategy", strategy, "--engine", "tcp"]
                    wide = self.train("wide", *run, "--overwrite")["wire_bytes"]
                    narrow = self.train("narrow", *run, *self.SCALING, "--overwrite", "--precision",
                                        self.PRECISION)["wire_bytes"]
                    self.assertAlmostEqual(narrow / wide, 0.5, delta=0.01)


class Bf16(Narrow, Case):
    PRECISION = "bf16"


class Fp16(Narrow, Case):
    PRECISION = "fp16"
    SCALING = ["--loss-scale", 128]

    # A scale so high that the first steps overflow, and which doubles soon enough to overflow again.
    HIGH = ["--loss-scale", 2.0**26, "--loss-scale-every", 4, "--steps", 24]

    def test_overflow(self):
        for name, model in MODELS.items():
            alone = self.trained(1, *model, *self.HIGH)
            scales = [float(scale) for _, _, scale, _ in alone["steps"]]
            skipped = [i for i, step in enumerate(alone["steps"]) if step[3] == "1"]
            self.assertEqual(scales[0], 2.0**26)
            self.assertEqual(skipped[:2], [0, 1])
            self.assertTrue(0 < len(skipped) < 24, skipped)
            taken = 0  # steps since the scale was changed
            for i in range(23):
                taken = 0 if i in skipped else taken + 1
                self.assertEqual(scales[i + 1] / scales[i], 0.5 if i in skipped else 2 if taken == 4 else 1, scales)
                taken %= 4
            self.assertTrue(any(b > a for a, b in zip(scales, scales[1:])), scales)
            for workers in WORKERS[1:]:
                for strategy, engine in [("ddp", "shm"), ("zero1", "tcp")]:
                    with self.subTest(model=name, workers=workers, strategy=strategy, engine=engine):
                        found = self.trained(workers, *model, *self.HIGH, "--strategy", strategy, "--engine", engine)
                        self.assertEqual(found, alone)

    def test_goes_on_with_other_workers(self):
        run = [*GPT, *self.HIGH, "--checkpoint-every", 5, "--keep", 0]  # among steps that are skipped
        alone = self.trained(1, *run)
        for step, workers in [(5, 3), (10, 4)]:
            with self.subTest(step=step, workers=workers):
                name = f"step-{step:08d}"
                summary = self.train(f"from{step}", "-n", workers, "--resume", self.path("run", "checkpoints", name))
                self.assertEqual(summary["params_sha256"], alone["params_sha256"])
                scales = [(r["step"], r["loss"], r["loss_scale"], r["skipped"])
                          for r in self.rows(f"from{step}", "steps.csv")]
                self.assertEqual(scales[-(24 - step):], alone["steps"][step:])


class Kernels(Case):
    """Says whether libtorch has those of fp16; otherwise what `lockstep train` says instead must be one clear line."""

    def runTest(self):
        done = self.run_program("train", *GPT, "--steps", 1, "--precision", "fp16", "--out", self.path("probe"))
        self.reason = ""
        if done.returncode != 0:
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            for words in ["--precision fp16: libtorch", "matrix products"]:
                self.assertIn(words, done.stderr)
            self.reason = done.stderr.strip()


if __name__ == "__main__":
    if "Fp16" in sys.argv:
        probe = Kernels()
        if not unittest.TextTestRunner().run(probe).wasSuccessful():
            sys.exit(1)
        if probe.reason:
            print(probe.reason)
            sys.exit(NO_KERNELS)
    unittest.main(verbosity=2)
