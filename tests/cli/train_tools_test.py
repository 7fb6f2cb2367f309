#!/usr/bin/env python3
"""`lockstep sweep`, `infer` and `bench step`: train_tools_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import fcntl
import glob
import json
import os
import subprocess
import unittest
import xml.etree.ElementTree

from train_case import CACHE, LANES, MLP, PROGRAM, Case, say_repeated


class Tools(Case):
    def test_sweep(self):
        done = self.run_program("sweep", "bucket_cap_mb", "--values", "0.02,0.05,1", "-n", 2, *MLP, "--steps", 8,
                                "--out", self.path("sweep"))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows("sweep", "sweep.csv")
        self.assertEqual([r["bucket_cap_mb"] for r in rows], ["0.02", "0.05", "1"])
        self.assertEqual(len({r["params_sha256"] for r in rows}), 1)
        xml.etree.ElementTree.parse(self.path("sweep", "sweep.svg"))
        for r in rows:
            self.assertGreater(float(r["samples_per_s"]), 0)
        self.assertIn("samples/s", done.stdout)
        # Nothing is written over unless it is asked for, nor then what no sweep wrote, or somebody is writing.
        sweep = ["sweep", "bucket_cap_mb", "--values", "0.02", *MLP, "--steps", 2, "--out", self.path("sweep")]
        before = self.files_of("sweep")
        self.refused(*sweep, words=["--out", "not empty", "--overwrite"])
        with open(self.path("sweep", ".lock"), "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            self.refused(*sweep, "--overwrite", words=["is being written by"])
        os.remove(self.path("sweep", ".lock"))
        self.assertEqual(self.files_of("sweep"), before)
        os.rename(self.path("sweep", "sweep.csv"), self.path("kept.csv"))
        with open(self.path("sweep", "sweep.csv"), "w") as file:
            file.write("mine\n")
        self.refused(*sweep, "--overwrite", words=[self.path("sweep", "sweep.csv"), "no sweep wrote"])
        os.rename(self.path("kept.csv"), self.path("sweep", "sweep.csv"))
        done = self.run_program(*sweep, "--overwrite")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.rows("sweep", "sweep.csv")), 1)

    def test_sweep_over_batches_and_its_advice(self):
        sweep = ["sweep", "batch", *MLP, "--lanes", 2, "--optimizer", "sgd", "--lr", 0.01, "--steps", 40, "--measure", "noise",
                 "--factors", "1,2", "--out", self.path("sweep")]
        done = self.run_program(*sweep, "--recipes", "fixed,linear")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows("sweep", "sweep.csv")
        self.assertEqual([(r["factor"], r["recipe"], r["steps"], r["lr"]) for r in rows],
                         [("1", "fixed", "40", "0.01"), ("1", "linear", "40", "0.01"),
                          ("2", "fixed", "20", "0.01"), ("2", "linear", "20", "0.02")])
        self.assertEqual(len({r["params_sha256"] for r in rows}), 3)
        self.assertFalse(os.path.exists(self.path("sweep", "1x-linear-fp32")))  # the same run as fixed
        xml.etree.ElementTree.parse(self.path("sweep", "sweep.svg"))
        with open(self.path("sweep", "index.html")) as page:
            self.assertIn("lockstep sweep batch", page.read())
        self.assertEqual(len(self.rows("sweep/2x-fixed-fp32", "noise.csv")), 20)
        run = self.path("sweep", "1x-fixed-fp32")
        advice = json.loads(self.run_program("plan", "batch", run, "--json").stdout)
        self.assertEqual(advice["critical_batch"], self.summary("sweep/1x-fixed-fp32")["noise"])
        self.assertIn("critical batch", self.run_program("plan", "batch", run).stdout)
        self.refused(*sweep, "--recipes", "fixed", words=["--out", "not empty"])
        self.refused(*sweep, "--recipes", "cubic", words=["--recipes", "cubic", "linear"])
        self.refused("plan", words=["accepted: batch, memory"])
        self.refused("plan", "batch", words=["run's folder"])
        self.refused("plan", "batch", self.path("none"), words=["none", "no folder"])
        self.refused("train", *MLP, "--measure", "noise", words=["--measure noise", "--lanes 2"])
        self.refused("train", *MLP, "--measure", "loss", words=["--measure 'loss'", "none, noise"])

    def test_sweep_over_methods_of_compression(self):
        sweep = ["sweep", "compress", "-n", 2, *MLP, "--lanes", 2, "--optimizer", "sgd", "--lr", 0.01, "--steps", 8,
                 "--out", self.path("sweep")]
        done = self.run_program(*sweep, "--methods", "none,bf16", "--factors", "2,1")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows("sweep", "sweep.csv")
        self.assertEqual([(r["factor"], r["batch"], r["method"], r["steps"], r["lr"]) for r in rows],
                         [("1", "8", "none", "8", "0.01"), ("1", "8", "bf16", "8", "0.01"),
                          ("2", "16", "none", "4", "0.02"), ("2", "16", "bf16", "4", "0.02")])
        for dense, half in (rows[:2], rows[2:]):
            # Two bytes instead of four, and the same framing, which is the rest.
            self.assertEqual(float(dense["times_less"]), 1)
            self.assertTrue(1.8 < float(half["times_less"]) < 2, half)
            self.assertEqual(float(half["wire_bytes"]), float(half["wire_bytes_a_step"]) * int(half["steps"]))
            self.assertNotEqual(dense["params_sha256"], half["params_sha256"])
        for row in rows:  # the row is the run's
            summary = self.summary(f"sweep/{row['factor']}x-{row['method']}")
            self.assertEqual(float(row["wire_bytes_a_step"]), summary["wire_bytes"])
            self.assertEqual(float(row["validation_loss"]), summary["validation_loss"])
        xml.etree.ElementTree.parse(self.path("sweep", "sweep.svg"))
        self.refused(*sweep, "--methods", "none", words=["--out", "not empty"])
        self.refused(*sweep, "--overwrite", "--methods", "none,zip", words=["--compress", "zip", "bf16"])
        self.refused(*sweep, "--methods", "none,", words=["--methods", "empty item"])
        self.refused(*sweep, "--compress", "bf16", words=["--compress", "--methods"])

    def test_a_sweep_that_fails_keeps_what_it_found(self):
        done = self.run_program("sweep", "lr", "--values", "0.001,1e6", *MLP, "--optimizer", "sgd", "--out", self.path("sweep"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual([row["lr"] for row in self.rows("sweep", "sweep.csv")], ["0.001"])
        self.assertIn(f"1 of 2 values are in {self.path('sweep', 'sweep.csv')}", done.stderr)

    def test_sweep_refuses_before_it_runs(self):
        for option in ("resume", "init", "out", "overwrite"):
            self.refused("sweep", option, "--values", "a,b", *MLP, words=[option, "names no setting of a run"])
        self.refused("sweep", "bucket_cap", "--values", "1", words=["bucket_cap", "bucket_cap_mb"])
        self.refused("sweep", "lanes", "--values", "2,many", *MLP, words=["lanes", "many", "a whole number"])
        self.refused("sweep", "lanes", *MLP, words=["--values"])

    def test_infer(self):
        summary = self.train("run", *LANES, "--steps", 4)
        done = self.run_program("infer", "--resume", self.path("run"), "--examples", 0, "--batch", 8, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = json.loads(done.stdout)
        self.assertEqual(row["examples"], 60)
        self.assertAlmostEqual(row["accuracy"], summary["accuracy"])
        self.assertLessEqual(row["latency_ms_p50"], row["latency_ms_p95"])
        text = self.run_program("infer", "--resume", self.path("run"))
        self.assertRegex(text.stdout, r"latency +p50 .* p95 .* ms an image\naccuracy")
        with open("/dev/full", "w") as full:
            for flags in ([], ["--json"]):
                done = subprocess.run([PROGRAM, "infer", "--resume", self.path("run"), *flags], stdout=full, text=True,
                                      stderr=subprocess.PIPE, env=self.environment)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("standard output can't be written", done.stderr)
        self.refused("infer", "--resume", self.path("none"), words=["none"])
        self.refused("infer", words=["--resume"])

    def test_infer_of_a_corrupt_checkpoint(self):
        self.train("run", *LANES, "--steps", 4, "--checkpoint-every", 2)
        newest = self.path("run", "checkpoints", "step-00000004")
        whole = self.path("run", "checkpoints", "step-00000002")
        for file, damage in (("model.safetensors", lambda good: good[:-1]), ("model.safetensors", None),
                             ("state.json", lambda good: good[:40] + bytes([good[40] ^ 1]) + good[41:]),
                             ("manifest.json", lambda good: good + b" ")):
            with open(os.path.join(newest, file), "rb") as kept:
                good = kept.read()
            os.remove(os.path.join(newest, file))
            if damage:
                with open(os.path.join(newest, file), "wb") as damaged:
                    damaged.write(damage(good))
            self.refused("infer", "--resume", newest, words=["step-00000004 is damaged", file, whole])
            with open(os.path.join(newest, file), "wb") as repaired:
                repaired.write(good)
        self.assertEqual(self.run_program("infer", "--resume", newest).returncode, 0)

    def test_bench_step(self):
        row = self.bench_step("bench", "step", "-n", 2)
        self.assertEqual((row["workers"], row["lane_batch"], row["model"]), (2, 32, "mlp"))
        self.assertAlmostEqual(row["efficiency"], row["alone_ms"] / row["step_ms"])
        self.assertAlmostEqual(row["samples_per_s"], 64000 / row["step_ms"])
        self.assertEqual(row["params"], 1024 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10)
        self.assertEqual((row["engine"], row["bucket_cap_mb"]), ("shm", 25))
        self.assertTrue(0 < row["comm_fraction"] < 1)
        self.refused("bench", "step", "--model", "resnet17", words=["--model"])

    # Steps of some milliseconds, and more than a few: what else runs on the machine comes in pieces of that size.
    STEP = ["--model", "mlp", "--width", 256, "--layers", 2, "--lane-batch", 32, "--steps", 12, "--json"]

    def bench_step(self, *command, env=None):
        """The row that it prints. Its steps alone and those that the prediction is made from are not the same ones: where
        a busy machine was in one of the two, both are measured again."""
        for attempts_left in (2, 1, 0):
            done = self.run_program(*command, *self.STEP, env=env or self.environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines()]
            self.assertEqual(len(rows), 1, done.stdout)
            try:
                self.check_prediction(rows[0], [rows[0]["alone_ms"]])
                break
            except AssertionError as wrong:
                if attempts_left == 0:
                    raise
                say_repeated(self.id(), f"the prediction is off: {wrong}")
        return rows[0]

    def check_prediction(self, row, alone_ms):
        """It is what was computed in the very steps that it was made from, and the exchange that it expects: a factor of 4
        is for medians of parts and the part of backward that the exchange slows down. How good it is, against steps that
        really exchange, depends on how busy the machine is: then a step is longer than its parts' medians, hence the
        shortest and the longest of `alone_ms`."""
        step_ms, share = row["predicted_step_ms"], row["predicted_comm_fraction"]
        self.assertTrue(0 < share < 1, share)
        self.assertGreater(step_ms, min(alone_ms) / 4)
        self.assertLess(step_ms, 4 * max(alone_ms) / (1 - share))

    def test_a_predicted_exchange_is_what_the_costs_say(self):
        """By a table in which every call takes a second. A step has a few of them, buckets and counts, and each may take some
        times longer where the machine is found to be crowded; a wrong unit would be off by a thousand."""
        self.bench_step("bench", "step", "-n", 2)  # so that there is a table
        os.mkdir(self.path("costs"))
        for name in glob.glob(os.path.join(CACHE, "costs-*-2.json")):
            with open(name) as file:
                table = json.load(file)
            for measured in table["measured"]:
                measured["points"] = [[size, 1.0] for size, _ in measured["points"]]
            with open(self.path("costs", os.path.basename(name)), "w") as file:
                json.dump(table, file)
        done = self.run_program("bench", "step", "-n", 2, *self.STEP, env=dict(self.environment, LOCKSTEP_CACHE_DIR=self.path("costs")))
        self.assertEqual(done.returncode, 0, done.stderr)
        row = json.loads(done.stdout)
        self.assertTrue(1000 < row["predicted_step_ms"] < 50_000, row)
        self.assertGreater(row["predicted_comm_fraction"], 0.9)

    def computed_ms(self, name):
        """What steps of a run take without the exchange, those that its prediction is made from."""
        steps = self.rows(name, "steps.csv")[3:]
        return [float(r["compute_ms"]) + float(r["data_wait_ms"]) for r in steps]

    def test_bench_step_in_a_job(self):
        row = self.bench_step("run", "-n", 3, PROGRAM, "bench", "step", env=dict(self.environment, LOCKSTEP_ENGINE="tcp"))
        self.assertEqual((row["workers"], row["engine"]), (3, "tcp"))
        done = self.run_program("run", "-n", 2, PROGRAM, "bench", "step", *self.STEP, "-n", 3)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is not what lockstep run started: 2", done.stdout + done.stderr)

    def test_training_says_what_it_chose_and_predicted(self):
        shared = self.train("shared", "-n", 2, *LANES, "--steps", 30, "--bucket-cap-mb", "auto")
        self.assertEqual((shared["bucket_cap_mb"], shared["engine"]), (25, "shm"))
        self.check_prediction(shared, self.computed_ms("shared"))
        wires = dict(self.environment, LOCKSTEP_ENGINE="tcp", LOCKSTEP_LOG="info")
        done = self.run_program("run", "-n", 2, PROGRAM, "train", "--out", self.path("wires"), *LANES, "--steps", 30,
                                "--bucket-cap-mb", "auto", env=wires)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.summary("wires")
        self.assertEqual(found["engine"], "tcp")
        self.assertIn(found["bucket_cap_mb"], (1, 2, 4, 8, 16, 25))
        said = [line for line in done.stderr.splitlines() if "bucket_cap_mb" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertIn(f"bucket_cap_mb {found['bucket_cap_mb']:g}: an all-reduce of ", said[0])
        self.check_prediction(found, self.computed_ms("wires"))
        self.assertEqual(found["params_sha256"], shared["params_sha256"])
        for cap in ("auto", "0.05"):  # as it is in a file, and as it was given
            with open(self.path("recipe.json"), "w") as file:
                json.dump({"bucket_cap_mb": cap if cap == "auto" else float(cap)}, file)
            summary = self.train("file" + cap, *MLP[:-4], "--config", self.path("recipe.json"), "--steps", 3)
            self.assertEqual(summary["bucket_cap_mb"], 25 if cap == "auto" else 0.05)

    def test_the_end_says_how_far_off_a_prediction_is(self):
        for workers, expected in ((1, r" \(predicted 0\.0 %\), "), (2, r" \(predicted [\d.]+ %, off by [-+]\d+ %\), ")):
            done = self.run_program("train", "-n", workers, *LANES, "--steps", 8, "--out", self.path(f"off{workers}"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"communication  [\d.]+ % of the work" + expected)
            self.assertRegex(done.stdout, r"predicted [\d.]+ ms, off by (\+\d+|-[1-9]\d*) %, p95 ")


if __name__ == "__main__":
    unittest.main(verbosity=1)
