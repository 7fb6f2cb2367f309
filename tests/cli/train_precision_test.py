"""--precision: what travels and what is kept in 16 bits, what is refused, and (slow) that the loss is f32's."""
import os
import unittest

from train_case import LANES, Case

RUN = [*LANES, "--seed", 5, "--checkpoint-every", -1]


class Precision(Case):
    def test_bf16_sends_half_the_bytes_and_takes_what_was_predicted(self):
        run = [*RUN, "--width", 128, "--lanes", 2, "-n", 2, "--steps", 5, "--engine", "tcp", "--strategy", "zero1"]
        wide = self.train("fp32", *run)
        narrow = self.train("bf16", *run, "--precision", "bf16")
        self.assertEqual(narrow["precision"], "bf16")
        self.assertAlmostEqual(narrow["wire_bytes"] / wide["wire_bytes"], 0.5, delta=0.03)
        self.assertAlmostEqual(narrow["state_bytes_a_parameter"], 4 + 12 / 2, delta=0.3)
        self.assertEqual(narrow["predicted_state_bytes_a_parameter"], 4 + 12 / 2)
        self.assertEqual(len(narrow["state_bytes"]), 2)

    def test_goes_on_and_begins_from_each_other(self):
        run = [*RUN, "-n", 2, "--precision", "bf16", "--checkpoint-every", 3, "--keep", 0]
        whole = self.train("whole", *run, "--steps", 6)
        rest = self.train("rest", "--resume", self.path("whole", "checkpoints", "step-00000003"), "-n", 2)
        self.assertEqual(rest["params_sha256"], whole["params_sha256"])
        self.refused("train", "--resume", self.path("whole"), "--precision", "fp32", "--out", self.path("none"),
                     words=["--precision", "bf16", "--init"])
        begun = self.train("begun", *RUN, "-n", 1, "--steps", 1, "--precision", "bf16-autocast", "--init",
                           self.path("whole"))
        self.assertEqual(begun["precision"], "bf16-autocast")
        done = self.run_program("infer", "--resume", self.path("whole"), "--precision", "fp32", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_lacking_is_said(self):
        done = self.run_program("train", *RUN, "-n", 2, "--steps", 1, "--precision", "fp16", "--out", self.path("none"))
        if done.returncode != 0:  # a libtorch without such kernels says so
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn("--precision fp16: libtorch", done.stderr)
            self.assertIn("matrix products", done.stderr)
            # A sweep says so before its first run.
            self.refused("sweep", "batch", *RUN, "--steps", 4, "--factors", 1, "--recipes", "fixed", "--precisions", "fp32,fp16",
                         "--out", self.path("sweep"), words=["lockstep sweep batch: --precision fp16: libtorch"])
            self.assertFalse(os.path.exists(self.path("sweep")))


class PrecisionLoss(Case):
    """In 16 bits the loss ends within a hundredth of f32's."""

    def check_loss(self, *run):
        wide = self.train("fp32", *run)["final_loss"]
        narrow = self.train("bf16", *run, "--precision", "bf16")["final_loss"]
        self.assertLess(abs(narrow / wide - 1), 0.01, f"{narrow} in bf16, {wide} in f32")

    def test_gpt(self):
        self.check_loss("--model", "gpt", "--blocks", 2, "--width", 64, "--heads", 2, "--context", 32, "-n", 2,
                        "--lane-batch", 16, "--steps", 400, "--lr", "2e-3", "--schedule", "cosine", "--eval-every", 0)


if __name__ == "__main__":
    unittest.main()
