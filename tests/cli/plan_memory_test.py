#!/usr/bin/env python3
"""`lockstep plan memory`: the number before a run is the number at its end. plan_memory_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import json
import unittest

from train_case import MLP, Case

MODEL = ["--model", "mlp", "--data", "synthetic", "--width", 64, "--layers", 2]


class PlanMemory(Case):
    def plan(self, *args):
        done = self.run_program("plan", "memory", *args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_run_takes_what_was_planned(self):
        for strategy, planned in (("zero1", ["--stage", 1]), ("zero2", ["--stage", 2]), ("zero3", ["--stage", 3]),
                                  ("hybrid-shard", ["--strategy", "hybrid-shard"])):
            with self.subTest(strategy=strategy):
                summary = self.train(strategy, *MLP, "--width", 64, "--precision", "bf16", "-n", 2, "--lanes", 8,
                                     "--strategy", strategy, "--steps", 1, "--checkpoint-every", -1, "--eval-every", 0)
                row = self.plan(*MODEL, "--precision", "bf16", "-n", 2, "--lanes", 8, *planned)["stages"][0]
                self.assertEqual(row["strategy"], strategy)
                self.assertEqual(row["total_bytes"], summary["predicted_state_bytes"])
                for taken in summary["state_bytes"]:  # buckets are aligned
                    self.assertAlmostEqual(taken / row["total_bytes"], 1, delta=0.02)

    def test_counts_a_model_that_it_makes(self):
        plan = self.plan("--model", "gpt", "--blocks", 2, "--width", 64, "--heads", 4, "--context", 32, "-n", 4,
                         "--machines", 4, "--precision", "fp16", "--memory", "1G")  # for which the processor may have no kernels
        block = 12 * 64 * 64 + 13 * 64
        self.assertEqual(plan["params"], 2 * block + (256 + 32) * 64 + 2 * 64 + 64 * 256 + 256)
        self.assertEqual([row["fits"] for row in plan["stages"]], [True, True, True, True])
        # Of the small model all gradients may be in flight; and two units, which zero3 gathers where workers share no memory.
        self.assertEqual(plan["stages"][3]["in_flight_bytes"], 2 * plan["params"] + 2 * 2 * block)
        self.assertIn("not counted: activations", plan["notes"][-1])
        # Nor does what no forward here would fit: the run may be elsewhere.
        long = self.plan("--model", "gpt", "--blocks", 1, "--width", 8, "--heads", 8, "--context", 100000, "--memory", "80G")
        self.assertEqual(long["params"], 12 * 8 * 8 + 13 * 8 + (256 + 100000) * 8 + 2 * 8 + 8 * 256 + 256)

    def test_a_number_gives_the_papers_figures(self):
        text = self.run_program("plan", "memory", "--params", "7.5B", "--workers", 64, "--precision", "bf16", "--memory", "24G")
        self.assertEqual(text.returncode, 0, text.stderr)
        states = [line.split()[8:10] for line in text.stdout.splitlines() if line.split()[:1] in (["0"], ["1"], ["2"], ["3"])]
        self.assertEqual(states, [["120.0", "GB"], ["31.4", "GB"], ["16.6", "GB"], ["1.9", "GB"]], text.stdout)

    def test_refuses(self):
        self.refused("plan", "memory", words=["--params", "--model"])
        self.refused("plan", "memory", "--params", "7.5G", words=["--params '7.5G'", "7.5B"])
        self.refused("plan", "memory", "--params", "7B", "--blocks", 3, words=["--blocks", "--params"])
        self.refused("plan", "memory", "--model", "gpt", "--layers", 3, words=["--layers", "--model gpt"])
        self.refused("plan", "memory", "--model", "gpt", "--blocks", 1000, "--width", 65536,
                     words=["lockstep plan memory: ", "this machine's memory", "--params"])
        self.refused("plan", words=["batch, memory"])
        offload = ["--params", "1B", "--memory", "24G", "--offload"]
        self.refused("plan", "memory", *offload, self.path("none"), words=[f"--offload {self.path('none')}: No such file or directory"])
        self.refused("plan", "memory", *offload, "host", words=["--offload host", "without --gpu", "accepted: a folder"])
        for stage in (0, 1, 2):
            self.refused("plan", "memory", *offload, "/tmp", "--offload-what", "params", "--stage", stage,
                         words=["--offload-what params", f"--stage is {stage}", "accepted: 3"])

    def test_asks_gpus_for_their_memory(self):
        for model in (["--params", "1B"], ["--model", "mlp"]):
            done = self.run_program("plan", "memory", *model, "--gpu")
            if done.returncode == 0:
                self.assertIn("its part of a GPU of this machine", done.stdout)
            else:
                self.refused("plan", "memory", *model, "--gpu", words=["--gpu: there is no GPU here", "accepted: --memory"])
            self.assertEqual(self.run_program("plan", "memory", *model, "--gpu", "--memory", "80G").returncode, 0)


if __name__ == "__main__":
    unittest.main()
