"""--strategy and --compress: how workers share a model changes no bit, what gradients travel as does."""
import json
import os
import unittest

from train_case import LANES, Case

RUN = [*LANES, "--last-step", "short", "--seed", 5, "--checkpoint-every", -1]


class Strategies(Case):
    def test_any_strategy_on_any_number_of_workers(self):
        whole = self.train("ddp", "-n", 1, *RUN, "--steps", 9)
        self.assertEqual(whole["memory"]["optimizer_bytes"], 2 * whole["memory"]["parameter_bytes"])
        for strategy, n in (("zero1", 1), ("zero1", 2), ("zero1", 3), ("zero2", 3), ("zero3", 2), ("zero3", 3)):
            with self.subTest(strategy=strategy, workers=n):
                name = f"{strategy}-{n}"
                part = self.train(name, "-n", n, *RUN, "--steps", 9, "--strategy", strategy)
                self.assertEqual(part["params_sha256"], whole["params_sha256"])
                self.assertEqual(part["validation_loss"], whole["validation_loss"])
                self.assertEqual(self.losses(name), self.losses("ddp"))
                share = part["memory"]["optimizer_bytes"] / whole["memory"]["optimizer_bytes"]
                self.assertAlmostEqual(share, 1 / n, delta=0.05)
                share = part["memory"]["parameter_bytes"] / whole["memory"]["parameter_bytes"]
                self.assertAlmostEqual(share, 1 / n if strategy == "zero3" else 1, delta=0.05)

    def test_gone_on_with_under_another_one(self):
        args = [*RUN, "--steps", 8, "--keep", 0, "--checkpoint-every", 3]
        whole = self.train("ddp", "-n", 2, *args)["params_sha256"]
        self.assertEqual(self.train("zero1", "-n", 3, *args, "--strategy", "zero1")["params_sha256"], whole)
        for name, run, more in (("a", "ddp", ["-n", 2, "--strategy", "zero1"]),
                                ("b", "zero1", ["-n", 1, "--strategy", "ddp"]),
                                ("c", "zero1", ["-n", 2]),  # which stays zero1
                                ("d", "ddp", ["-n", 3, "--strategy", "zero3"])):
            with self.subTest(run=run, more=more):
                checkpoint = self.path(run, "checkpoints", "step-00000003")
                rest = self.train(name, "--resume", checkpoint, *more)
                self.assertEqual(rest["params_sha256"], whole)
                # Adam's two numbers a parameter, in as many parts as the parameters are, or in two.
                ratio = rest["memory"]["optimizer_bytes"] / rest["memory"]["parameter_bytes"]
                self.assertAlmostEqual(ratio, 2 if "ddp" in more or "zero3" in more else 1, delta=0.1)

    def test_gradients_as_bf16(self):
        run = [*RUN, "-n", 2, "--steps", 6]
        exact = self.train("exact", *run)
        rough = self.train("rough", *run, "--compress", "bf16")
        self.assertNotEqual(rough["params_sha256"], exact["params_sha256"])
        self.assertAlmostEqual(rough["final_loss"], exact["final_loss"], delta=0.02 * exact["final_loss"])
        both = self.train("both", *run, "--compress", "bf16", "--strategy", "zero1")
        self.assertEqual(both["params_sha256"], rough["params_sha256"])
        for summary in (exact, rough, both):
            self.assertGreater(summary["predicted_step_ms"], 0)
            self.assertGreater(summary["predicted_comm_fraction"], 0)

    def test_shared_updates_are_in_the_trace(self):
        self.train("zero1", *RUN, "-n", 2, "--steps", 5, "--strategy", "zero1")
        with open(self.path("zero1", "trace.json")) as file:
            names = {event["name"] for event in json.load(file)["traceEvents"]}
        self.assertLessEqual({"bucket 0", "parameters of bucket 0", "wait for buckets", "wait for parameters"}, names)

    def test_what_does_not_go_together_is_said(self):
        self.refused("train", *RUN, "--steps", 1, "-n", 2, "--strategy", "zero1", "--optimizer", "torch-adam", "--out",
                     self.path("none"), words=["--optimizer torch-adam", "--strategy zero1", "sgd, adam, adamw"])
        self.refused("train", *RUN, "--steps", 1, "--compress", "bf16", "--algorithm", "tree", "--out",
                     self.path("none"), words=["--algorithm", "--compress bf16", "none"])
        self.refused("train", *RUN, "--steps", 1, "-n", 2, "--strategy", "zero1", "--algorithm", "tree", "--out",
                     self.path("none"), words=["--algorithm", "--strategy zero1", "reduce_scatter", "tree"])
        self.refused("train", *RUN, "--steps", 1, "-n", 2, "--strategy", "zero2", "--gathered-mb", 8, "--out",
                     self.path("none"), words=["--gathered-mb", "zero2", "zero3"])
        self.assertFalse(os.path.exists(self.path("none")))
        self.refused("train", *RUN, "--steps", 1, "--compress", "fp9", "--out", self.path("none"),
                     words=["--compress 'fp9'", "none, bf16"])


class Compressed(Case):
    def test_a_compressed_run_has_the_same_bits_on_other_workers(self):
        run = [*RUN, "--compress", "topk:0.05", "--checkpoint-every", 2]
        whole = self.train("whole", *run, "-n", 1, "--compress-groups", 2, "--steps", 4)
        self.assertGreater(whole["compress"]["ratio"], 2)
        self.train("part", *run, "-n", 2, "--steps", 2)  # whose two groups are kept
        done = self.run_program("train", "--resume", self.path("part"), "-n", 3, "--steps", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("part", "summary.json")) as file:
            self.assertEqual(json.load(file)["params_sha256"], whole["params_sha256"])

    def test_says_what_compresses_and_what_never_does(self):
        run = ["train", *RUN, "-n", 2, "--steps", 2, "--overwrite", "--out", self.path("run"), "--compress"]
        for method, notes, last in (("topk:0.05", 0, "compression    topk:0.05, messages {:.3g} × smaller in the last step\n"),
                                    ("topk:0.05:warmup=1", 0, "compression    topk:0.05:warmup=1, messages {:.3g} × smaller in the last step\n"),
                                    ("topk:0.05:warmup=2", 1, "compression    topk:0.05:warmup=2\n"),
                                    ("auto", 0, "compression    auto: none\n")):
            with self.subTest(method=method):
                done = self.run_program(*run, method)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stderr.count("compresses nothing: its warm-up is 2 steps, the run 2"), notes, done.stderr)
                self.assertIn(last.format(self.summary("run")["compress"]["ratio"]), done.stdout)

    def test_methods_that_the_model_has_no_use_for(self):
        for method, words in (("topk:0", ["--compress topk:0", "above 0 and at most 1"]),
                              ("powersgd:rank=100", ["rank 100 is above that of a matrix of"]),
                              ("embed.*=topk:0.1,fp8", ["'embed.*' matches no parameter", "accepted: names such as"])):
            with self.subTest(method=method):
                self.refused("train", *RUN, "-n", 2, "--steps", 1, "--compress", method, "--out", self.path("none"), words=words)

    def test_one_flag_is_enough_for_onebit_adam(self):
        run = [*RUN, "--optimizer", "onebit-adam", "--lr", 0.01]
        whole = self.train("whole", *run, "-n", 1, "--compress-groups", 2, "--compress", "onebit-adam:warmup=3", "--steps", 6)
        self.assertGreater(whole["compress"]["ratio"], 5)  # of the last step
        part = [*run, "--compress", "onebit-adam:warmup=3", "--checkpoint-every", 4]
        self.train("part", *part, "-n", 2, "--engine", "tcp", "--strategy", "zero1", "--steps", 4)
        done = self.run_program("train", "--resume", self.path("part"), "-n", 3, "--strategy", "ddp", "--steps", 6)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("part")["params_sha256"], whole["params_sha256"])
        # Without a word of its exchange: a thousand steps are Adam.
        dense = self.train("dense", *run, "-n", 2, "--steps", 4)
        self.assertEqual(dense["compress"]["ratio"], 1)
        adam = self.train("adam", *RUN, "--optimizer", "adam", "--lr", 0.01, "-n", 2, "--steps", 4)
        self.assertEqual(dense["params_sha256"], adam["params_sha256"])

    def test_onebit_adam_with_what_it_cannot_be_with(self):
        onebit = ["train", *RUN, "--steps", 1, "--out", self.path("none"), "--optimizer", "onebit-adam"]
        for args, words in ((["--compress", "topk:0.1"], ["--compress is topk:0.1", "accepted: onebit-adam"]),
                            (["--clip-norm", 1], ["--clip-norm 1", "the momentum", "accepted: none"]),
                            (["--loss-scaling", "on"], ["--loss-scaling on", "accepted: --loss-scaling off"]),
                            (["--measure", "noise"], ["--measure noise", "accepted: --measure none"]),
                            (["--algorithm", "tree"], ["--algorithm", "--optimizer onebit-adam"]),
                            (["--compress", "onebit-adam:warmup=0"], ["warmup=0; accepted: 1 or more"])):
            with self.subTest(args=args):
                self.refused(*onebit, *args, words=words)
        self.refused("train", *RUN, "--steps", 1, "--out", self.path("none"), "--compress", "onebit-adam",
                     words=["--optimizer is adamw; accepted: --optimizer onebit-adam"])

    def test_one_worker_compresses_nothing_and_says_so(self):
        done = self.run_program("train", *RUN, "-n", 1, "--steps", 2, "--compress", "bf16", "--out", self.path("one"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("one worker has nobody to exchange gradients with: bf16 changes nothing", done.stdout + done.stderr)

    def test_a_compressed_run_goes_on_without_an_algorithm(self):
        self.train("rough", *RUN, "-n", 2, "--steps", 3, "--checkpoint-every", 2, "--compress", "bf16")
        checkpoint = self.path("rough", "checkpoints", "step-00000002")
        # An order of sums is the run's own, whatever it is compressed by.
        for more, words in ((["--algorithm", "ring"], ["--compress bf16", "none"]), (["--order", "any"], ["would make another run"])):
            self.refused("train", "--resume", checkpoint, "-n", 2, *more, "--out", self.path("none"), words=[*more, *words])
        self.assertFalse(os.path.exists(self.path("none")))


if __name__ == "__main__":
    unittest.main()
