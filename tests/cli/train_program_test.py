#!/usr/bin/env python3
"""`lockstep train` as people run it: train_program_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import fcntl
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest
import xml.etree.ElementTree

from train_case import LANES, MLP, PROGRAM, Case

CONTRACT = {"workers", "lanes", "lane_batch", "steps", "samples_per_s", "step_ms_p50", "step_ms_p95", "comm_fraction",
            "overlap_fraction", "final_loss", "accuracy", "params_sha256", "peak_rss_bytes"}


class Bits(Case):
    """One run, whatever the number of workers."""

    def same(self, workers, *args):
        first = None
        for n in workers:
            with self.subTest(workers=n, args=args):
                summary = self.train(f"n{n}", "-n", n, *args, "--overwrite")
                self.assertEqual(summary["workers"], n)
                self.assertEqual(len(summary["peak_rss_bytes"]), n)
                found = (summary["params_sha256"], summary["accuracy"], summary["validation_loss"],
                         self.losses(f"n{n}"))
                first = first or found
                self.assertEqual(found, first)

    def test_any_number_of_workers(self):
        self.same([1, 2, 3, 4], *LANES, "--steps", "6", "--seed", "3")

    def test_any_number_of_workers_over_an_epochs_end_with_momentum(self):
        args = [*LANES, "--steps", "10", "--optimizer", "sgd", "--lr", "0.1", "--schedule", "cosine",
                "--warmup-steps", "2"]
        self.same([1, 2, 4], *args, "--last-step", "short")
        self.same([1, 3], *args)

    def test_what_becomes_of_the_last_step(self):
        """230 examples are 7 steps of 32 and 6 examples."""
        epochs = {"short": [32] * 7 + [6], "drop": [32] * 7, "wrap": [32] * 8}
        hashes = set()
        for last_step, samples in epochs.items():
            summary = self.train(last_step, *LANES, "--epochs", 2, "--last-step", last_step)
            self.assertEqual([int(r["samples"]) for r in self.rows(last_step, "steps.csv")], 2 * samples)
            hashes.add(summary["params_sha256"])
        self.assertEqual(len(hashes), 3)
        self.assertEqual(self.train("default", *LANES, "--epochs", 2)["params_sha256"],
                         self.summary("wrap")["params_sha256"])
        self.refused("train", *LANES, "--examples", 31, "--last-step", "drop", "--out", self.path("none"),
                     words=["31 examples", "8 lanes × 4", "32 examples or more"])
        self.refused("train", *LANES, "--last-step", "keep", "--out", self.path("none"),
                     words=["--last-step 'keep'", "short, drop, wrap"])

    def test_batch_norm_and_dropout(self):
        self.same([1, 2], "--model", "resnet18", "--data", "shapes", "--examples", "40", "--eval-examples", "20",
                  "--lanes", "4", "--lane-batch", "2", "--steps", "2", "--data-dir", self.path("data"))
        self.same([1, 2], "--model", "gpt", "--data", "synthetic", "--blocks", "1", "--width", "16", "--heads", "2",
                  "--context", "8", "--dropout", "0.2", "--examples", "64", "--eval-examples", "16", "--lanes", "4",
                  "--lane-batch", "2", "--steps", "3")

    def test_norms(self):
        resnet = ["--model", "resnet18", "--data", "synthetic", "--examples", 8, "--eval-examples", 4, "--lane-batch", 2,
                  "--steps", 1]
        self.same([1, 2], *resnet, "--lanes", 2, "--norm", "group")
        sync = [*resnet, "--norm", "sync"]
        self.refused("train", *sync, "--lanes", 4, "-n", 2, "--out", self.path("none"),
                     words=["--norm sync", "4 lanes on 2 workers", "accepted: -n 4"])
        self.train("sync", *sync, "-n", 2)
        self.refused("train", "--resume", self.path("sync"), "-n", 1, "--steps", 2,
                     words=["--norm sync", "2 lanes on 1 worker would", "accepted: -n 2"])

    def test_algorithms_and_buckets_change_no_bit(self):
        base = self.train("base", "-n", 2, *LANES, "--steps", 4)["params_sha256"]
        for name, args in {"tree": ["--algorithm", "tree"], "halving": ["--algorithm", "halving-doubling"],
                           "one": ["--bucket-cap-mb", "25"], "threads": ["--loader-threads", "3"]}.items():
            self.assertEqual(self.train(name, "-n", 2, *LANES, *args, "--steps", 4)["params_sha256"], base, name)

    def test_the_seed_and_the_lanes_do(self):
        base = self.train("base", *LANES, "--steps", 2)["params_sha256"]
        self.assertNotEqual(self.train("seed", *LANES, "--steps", 2, "--seed", 1)["params_sha256"], base)
        self.assertNotEqual(self.train("lanes", *MLP, "--lanes", 4, "--steps", 2)["params_sha256"], base)

    def test_under_a_launcher(self):
        base = self.train("base", "-n", 2, *LANES, "--steps", 3)["params_sha256"]
        done = self.run_program("run", "-n", 2, PROGRAM, "train", *LANES, "--steps", 3, "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.summary("run")["params_sha256"], base)
        self.assertIn("throughput", done.stdout)
        refused = self.run_program("run", "-n", 2, PROGRAM, "train", "-n", 3, *LANES, "--steps", 3)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("-n (--workers) 3", refused.stderr)


class Resume(Case):
    """Stopped and gone on with, by whatever hand: the same run."""

    ARGS = [*LANES, "--steps", "12", "--checkpoint-every", "4"]

    def test_in_the_middle_of_an_epoch_with_other_workers(self):
        for optimizer in ("adamw", "torch-sgd"):
            with self.subTest(optimizer=optimizer):
                args = [*self.ARGS, "--optimizer", optimizer, "--keep", "0"]
                whole = self.train(f"whole-{optimizer}", "-n", 1, *args)
                losses = self.losses(f"whole-{optimizer}")
                checkpoint = self.path(f"whole-{optimizer}", "checkpoints", "step-00000004")
                part = self.train(f"part-{optimizer}", "--resume", checkpoint, "-n", 2)
                self.assertEqual(part["params_sha256"], whole["params_sha256"])
                self.assertEqual(part["steps"], 12)
                self.assertEqual(self.losses(f"part-{optimizer}"), losses[4:])

    def test_the_last_step_of_an_epoch_is_a_part_of_the_run(self):
        args = [*LANES, "--steps", 10, "--checkpoint-every", 4, "--keep", 0]
        whole = self.train("whole", *args, "--last-step", "short")
        checkpoint = self.path("whole", "checkpoints", "step-00000004")
        self.refused("train", "--resume", checkpoint, "--last-step", "wrap", "--out", self.path("other"),
                     words=["--last-step", "wrap", "another run", "short"])
        self.assertEqual(self.train("rest", "--resume", checkpoint)["params_sha256"], whole["params_sha256"])
        # Checkpoints of versions that knew nothing else.
        self.change_state(checkpoint, lambda state: state["options"].pop("last_step"))
        self.assertEqual(self.train("old", "--resume", checkpoint, "-n", 2)["params_sha256"], whole["params_sha256"])

    def test_only_rank_zero_needs_the_folder(self):
        """As on machines that share no files: each worker in a folder of its own."""
        for optimizer in ("adamw", "torch-adam"):
            with self.subTest(optimizer=optimizer):
                args = [*self.ARGS, "--optimizer", optimizer, "--keep", "0"]
                whole = self.train("whole", *args, "--overwrite")
                for rank in range(2):
                    shutil.rmtree(self.path(f"machine{rank}"), ignore_errors=True)
                    os.mkdir(self.path(f"machine{rank}"))
                os.rename(self.path("whole"), self.path("machine0", "whole"))
                resume = [PROGRAM, "train", "--resume", "whole/checkpoints/step-00000004", "--out", "rest"]
                done = self.run_program("run", "-n", 2, "sh", "-c", 'cd "$0$RANK" && exec "$@"', self.path("machine"), *resume)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(self.summary("machine0/rest")["params_sha256"], whole["params_sha256"])
                self.assertEqual(os.listdir(self.path("machine1")), [])
                # Nor does a wrong one have to be refused by everybody's own eyes.
                resume[3] = "none"
                done = self.run_program("run", "-n", 2, "sh", "-c", 'cd "$0$RANK" && exec "$@"', self.path("machine"), *resume)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("none", done.stdout + done.stderr)
                shutil.rmtree(self.path("machine0"))

    def test_after_sigkill(self):
        process = self.start("killed", "-n", 2, *LANES, "--steps", "100000", "--checkpoint-every", "4")
        self.wait_for_steps(process, "killed", 6)
        workers = self.workers_of("killed")
        self.assertEqual(len(workers), 2)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        last = max(name for name in os.listdir(self.path("killed", "checkpoints")) if name.startswith("step-"))
        steps = int(last[5:]) + 3  # what came after the checkpoint is done again
        done = self.run_program("train", "--resume", self.path("killed"), "-n", 3, "--steps", steps)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        whole = self.train("whole", "-n", 2, *LANES, "--steps", steps)
        for key in ("params_sha256", "final_loss", "final_loss_steps", "last_step_loss"):
            self.assertEqual(self.summary("killed")[key], whole[key], key)
        self.assertEqual(self.losses("killed"), self.losses("whole"))
        self.assertEqual([int(r["step"]) for r in self.rows("killed", "steps.csv")], list(range(1, steps + 1)))

    def test_a_killed_parent_leaves_no_worker(self):
        process = self.start("killed", "-n", 2, *LANES, "--steps", "100000")
        self.wait_for_steps(process, "killed", 3)
        self.assertEqual(len(self.workers_of("killed")), 2)
        process.kill()
        process.communicate()
        for _ in range(400):
            if not self.workers_of("killed"):
                break
            time.sleep(0.05)
        self.assertEqual(self.workers_of("killed"), [])
        # They were told to stop, and that is what they did.
        done = len(self.rows("killed", "steps.csv"))
        self.assertIn(f"step-{done:08}", os.listdir(self.path("killed", "checkpoints")))

    def test_sigint_writes_a_checkpoint_and_says_how_to_go_on(self):
        process = self.start("stopped", "-n", 2, *LANES, "--steps", "100000")
        self.wait_for_steps(process, "stopped", 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out + err)
        done = len(self.rows("stopped", "steps.csv"))
        self.assertIn(f"step-{done:08}", os.listdir(self.path("stopped", "checkpoints")))
        command = re.search(r"to resume: lockstep (.*)", err).group(1).split()
        self.assertEqual(self.run_program(*command, "--steps", done + 2).returncode, 0)
        whole = self.train("whole", *LANES, "--steps", done + 2)
        self.assertEqual(self.summary("stopped")["params_sha256"], whole["params_sha256"])

    def test_a_killed_worker_is_named(self):
        os.mkdir(self.path("tmp"))
        self.environment["TMPDIR"] = self.path("tmp")
        process = self.start("broken", "-n", 2, *LANES, "--steps", "100000", "--checkpoint-every", "2")
        self.wait_for_steps(process, "broken", 3)
        workers = self.workers_of("broken")
        self.assertEqual(len(workers), 2)
        os.kill(workers[1], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertRegex(err, r"rank 1 of group world died")
        self.assertRegex(err, r"rank 1 failed first: it was killed by SIGKILL")
        self.assertIn("out of memory?", err)
        for dumps in os.listdir(self.path("tmp")):
            self.assertIn(f"in {self.path('tmp', dumps)}", err)
        newest = max(os.listdir(self.path("broken", "checkpoints")))
        self.assertIn(f"the newest checkpoint is {self.path('broken', 'checkpoints', newest)}; "
                      f"to resume: lockstep train --resume {self.path('broken')} -n 2", err)

    def test_started_again_by_the_launcher(self):
        args = [*LANES, "--steps", 400, "--checkpoint-every", 5]
        process = subprocess.Popen([PROGRAM, "run", "-n", "2", "--max-restarts", "1", PROGRAM, "train", "--out",
                                    self.path("again"), *map(str, args)], env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_for_steps(process, "again", 8)
        os.kill(self.workers_of("again")[1], signal.SIGKILL)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertIn("going on after step", out)
        self.assertEqual(self.summary("again")["params_sha256"], self.train("whole", *args)["params_sha256"])
        self.assertEqual(self.losses("again"), self.losses("whole"))

    def test_a_run_that_is_through_is_left_alone(self):
        self.train("run", *self.ARGS)
        before = self.files_of("run")
        run = self.path("run")
        said = f"{run} is through: step 12 of 12; --steps N above 12 goes on\n"
        for args in ([], ["--steps", 12], ["-n", 2]):
            with self.subTest(args=args):
                done = self.run_program("train", "--resume", run, *args)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, said, ""))
        done = self.run_program("train", "--resume", run, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, said))
        self.assertEqual(json.loads(done.stdout)["step"], 12)
        self.refused("train", "--resume", run, "--steps", 5, words=["--steps 5", "12", "accepted: 12 or more"])
        # 230 examples are 8 steps of 32: the second epoch is begun.
        self.refused("train", "--resume", run, "--epochs", 1, words=["--epochs 1", "step 8", "12", "accepted: 2 or more"])
        self.assertEqual(self.files_of("run"), before)
        done = self.run_program("train", "--resume", run, "--steps", 13)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("run")["steps"], 13)

    def test_killed_between_the_last_checkpoint_and_the_summary(self):
        before = self.train("run", *self.ARGS)
        for left in ("", json.dumps(before | {"steps": 2})):  # of an earlier part of the run
            with open(self.path("run", "summary.json"), "w") as file:
                file.write(left)
            done = self.run_program("train", "--resume", self.path("run"))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            after = self.summary("run")
            for key in ("steps", "params_sha256", "accuracy", "validation_loss", "best_accuracy", "final_loss",
                        "final_loss_steps", "last_step_loss"):
                self.assertEqual(after[key], before[key], key)

    def test_started_again_when_the_run_was_through(self):
        """A worker is lost after the last checkpoint: nothing is left to do, and that is no failure."""
        train = [PROGRAM, "train", "--out", self.path("run"), *map(str, self.ARGS)]
        fails_once = '"$@" && test "$TORCHELASTIC_RESTART_COUNT" = 1'
        done = self.run_program("run", "-n", 2, "--max-restarts", 1, "sh", "-c", fails_once, "sh", *train)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("is through: step 12 of 12", done.stdout)
        self.assertEqual(self.summary("run")["steps"], 12)

    def test_started_again_leaves_an_older_run_alone(self):
        """Refused at the first start, because there is a run in the folder: so it is at the second."""
        self.train("run", *self.ARGS)
        for checkpoints in (True, False):
            if not checkpoints:
                shutil.rmtree(self.path("run", "checkpoints"))
            before = self.files_of("run")
            done = self.run_program("run", "-n", 1, "--max-restarts", 1, PROGRAM, "train", "--out", self.path("run"),
                                    *LANES, "--steps", 20)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            refusals = re.findall(rf"^lockstep train: --out {self.path('run')} is not empty", done.stderr, re.MULTILINE)
            self.assertEqual(len(refusals), 2, done.stderr)
            self.assertIn("restart 1 of 1", done.stderr)
            self.assertEqual(self.files_of("run"), before)

    def test_overwriting_removes_nothing_before_all_is_checked(self):
        self.train("run", *self.ARGS)
        before = self.files_of("run")
        out = ["--out", self.path("run"), "--overwrite"]
        for args, words in [
            (["--algorithm", "rign"], ["--algorithm", "rign", "accepted", "ring"]),
            (["--algorithm", "eager", "--bucket-cap-mb", 25, "--width", 2048], ["--algorithm", "eager", "at most"]),
            (["--order", "any-old"], ["--order", "any-old", "canonical"]),
            (["--optimizer", "sgdx"], ["--optimizer", "sgdx", "sgd"]),
            (["--data", self.path("nowhere")], ["--data", "nowhere"]),
            (["--model", "gpt", "--data", "shapes"], ["gpt", "shapes"]),
            (["--lanes", 1, "-n", 2], ["--lanes 1", "2 workers"]),
        ]:
            with self.subTest(args=args):
                base = list(self.ARGS)
                if "gpt" in args:  # which has no use for the mlp's layers, and says so first
                    at = base.index("--layers")
                    del base[at:at + 2]
                done = self.run_program("train", *base, *args, *out)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)
        self.assertEqual(self.files_of("run"), before)

    def test_another_run_is_refused(self):
        self.train("run", *LANES, "--steps", 2)
        for args, words in [
            (["--lane-batch", "5"], ["--lane-batch", "5", "4"]),
            (["--seed", "9"], ["--seed", "9", "0"]),
            (["--optimizer", "sgd"], ["--optimizer", "sgd", "adamw", "accepted", "without --optimizer", "--init"]),
            (["-n", "9"], ["-n 9", "8 lanes", "accepted: -n 8 at most"]),
        ]:
            with self.subTest(args=args):
                self.refused("train", "--resume", self.path("run"), *args, words=words)

    def test_an_altered_checkpoint_is_refused_and_the_one_before_offered(self):
        self.train("run", *LANES, "--steps", 4, "--checkpoint-every", 2)
        weights = self.path("run", "checkpoints", "step-00000004", "model.safetensors")
        with open(weights, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            byte = file.read(1)
            file.seek(-3, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        self.refused("train", "--resume", self.path("run"), words=["model.safetensors", "step-00000002"])
        self.refused("train", "--resume", self.path("nowhere"), words=["nowhere"])


class Folder(Case):
    """What a run leaves."""

    def test_files(self):
        summary = self.train("run", "-n", 2, *LANES, "--epochs", 2)
        self.assertLessEqual(CONTRACT, set(summary))
        steps, epochs = self.rows("run", "steps.csv"), self.rows("run", "epochs.csv")
        self.assertEqual(summary["steps"], len(steps))
        self.assertEqual(len(epochs), 2)
        self.assertEqual(sum(int(r["samples"]) for r in steps), 2 * 8 * 32)
        last_epoch = [float(r["loss"]) for r in steps[8:]]
        self.assertAlmostEqual(sum(last_epoch) / 8, summary["final_loss"], places=12)
        self.assertEqual(float(epochs[-1]["train_loss"]), summary["final_loss"])
        self.assertEqual((summary["final_loss_steps"], summary["last_step_loss"]), (8, last_epoch[-1]))
        self.assertEqual(float(epochs[-1]["accuracy"]), summary["accuracy"])
        for r in steps:
            parts = float(r["compute_ms"]) + float(r["exposed_comm_ms"]) + float(r["data_wait_ms"])
            self.assertAlmostEqual(parts, float(r["step_ms"]), places=3)
        self.assertTrue(all(float(r["compute_ms"]) > 0 and float(r["comm_ms"]) > 0 for r in steps))
        buckets = self.rows("run", "buckets.csv")
        self.assertEqual({r["step"] for r in buckets}, {r["step"] for r in steps})
        self.assertGreater(len(buckets), len(steps))  # more than one a step
        for r in steps:  # the time in which data of some bucket moves
            moves = [(float(b["start"]), float(b["end"])) for b in buckets if b["step"] == r["step"]]
            self.assertAlmostEqual(self.union(moves), float(r["comm_ms"]), places=2)
        for r in buckets:
            self.assertLessEqual(float(r["start"]), float(r["end"]))
            self.assertTrue(r["algorithm"])
        self.assertEqual(self.rows("run", "latency.csv")[-1]["bucket"], "all")
        self.assertEqual(int(self.rows("run", "latency.csv")[-1]["count"]), len(buckets))
        self.assertEqual([n for n in os.listdir(self.path("run")) if n.startswith(".")], [])
        memory = summary["memory"]
        self.assertEqual(memory["predicted_bytes"],
                         memory["parameter_bytes"] + memory["gradient_bytes"] + memory["optimizer_bytes"])

    def test_trace(self):
        self.train("run", "-n", 2, *LANES, "--steps", 8, "--trace-steps", 2)
        with open(self.path("run", "trace.json")) as file:
            events = json.load(file)["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual({e["pid"] for e in spans}, {0, 1})
        names = {e["name"] for e in spans}
        self.assertLessEqual({"forward", "backward", "optimizer", "data", "bucket 0"}, names)
        self.assertEqual({e["args"]["step"] for e in spans}, {1, 2, 4, 5, 6, 7, 8})
        for e in spans:
            self.assertGreaterEqual(e["dur"], 0)
        self.assertEqual({e["args"]["name"] for e in events if e["name"] == "thread_name"},
                         {"compute", "communication"})
        lanes = [e["args"]["lane"] for e in spans if e["name"] == "forward" and e["args"]["step"] == 1]
        self.assertEqual(sorted(lanes), list(range(8)))
        waits = {(e["pid"], e["args"]["step"]): e["ts"] for e in spans if e["name"] == "wait for buckets"}
        self.assertEqual(len(waits), 2 * 7)

    @staticmethod
    def union(spans, until=float("inf")):
        """How long some of the spans last, counted up to a moment."""
        total, reached = 0, float("-inf")
        for begin, end in sorted((min(a, until), min(b, until)) for a, b in spans):
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    def test_overlap(self):
        """The part of the exchange that backward hides: as the trace shows it, and as the summary says. Whether there is any
        is for the scheduler to say too, so that on a busy machine it may take more than one run."""
        hidden = 0
        for attempt in range(4):
            hidden = hidden or self.check_overlap(f"run{attempt}")
        self.assertGreater(hidden, 0)

    def check_overlap(self, name):
        # Layers large enough that a processor is found for the exchange before the last one's gradient has come.
        summary = self.train(name, "-n", 2, *LANES, "--width", 512, "--lane-batch", 64, "--steps", 12, "--trace-steps", 12)
        with open(self.path(name, "trace.json")) as file:
            spans = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
        waits = {e["args"]["step"]: e["ts"] for e in spans if e["name"] == "wait for buckets"}
        hidden = moved = 0
        for step in range(4, 13):  # once it has settled
            moves = [(e["ts"], e["ts"] + e["dur"]) for e in spans
                     if e["name"].startswith("bucket ") and e["args"]["step"] == step]
            ready = [float(row["ready"]) for row in self.rows(name, "buckets.csv") if int(row["step"]) == step]
            self.assertEqual(len(ready), len(moves))
            self.assertLess(min(ready), max(ready))  # some bucket may leave before the last gradient has come
            hidden += self.union(moves, waits[step])
            moved += self.union(moves)
        self.assertLess(hidden, moved)  # the last one can't
        self.assertAlmostEqual(hidden / moved, summary["overlap_fraction"], places=2)
        return hidden

    def test_page(self):
        self.train("run", "-n", 2, *LANES, "--epochs", 2)
        with open(self.path("run", "index.html")) as file:
            page = file.read()
        charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 6)
        for chart in charts:
            xml.etree.ElementTree.fromstring(chart)
            self.assertNotIn("nothing yet", chart)
        self.assertEqual(re.findall(r"(?:src|href)=", page), [])

    def test_what_is_printed(self):
        done = self.run_program("train", "--out", self.path("run"), *LANES, "--epochs", 2)
        self.assertNotIn("\033", done.stdout + done.stderr)
        self.assertEqual(len(re.findall(r"^epoch \d", done.stdout, re.M)), 2)
        self.assertIn(self.path("run", "index.html"), done.stdout)
        done = self.run_program("train", "--out", self.path("json"), *LANES, "--epochs", 2, "--json")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line.get("event") for line in lines], ["epoch", "epoch", None])
        self.assertLessEqual(CONTRACT, set(lines[-1]))

    def test_a_folder_with_something_in_it(self):
        self.train("run", *LANES, "--steps", 2)
        again = ["train", "--out", self.path("run"), *LANES, "--steps", 2]
        self.refused(*again, words=["--out", "not empty", "--resume", "--overwrite"])
        # Only what would be taken is offered.
        shutil.rmtree(self.path("run", "checkpoints"))
        with open(self.path("run", "trace.json"), "w") as file:
            file.write("mine")
        done = self.run_program(*again)
        self.assertEqual(done.returncode, 2)
        self.assertIn("accepted: another folder", done.stderr)
        self.assertNotIn("--resume", done.stderr)
        self.assertNotIn("--overwrite", done.stderr)

    def test_a_full_disk(self):
        process = self.start("run", "-n", 2, *LANES, "--steps", 100000, "--checkpoint-every", 10)
        self.wait_for_steps(process, "run", 12)
        workers = self.workers_of("run")
        self.assertEqual(len(workers), 2)
        for worker in workers:  # no file may be longer than this; the weights are
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (40000, 40000))
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn("File too large", err)
        self.assertRegex(err, "the newest checkpoint is .*step-.*; to resume: lockstep train --resume")
        # Nothing was lost: the newest checkpoint is whole, and the run goes on from it.
        kept = os.listdir(self.path("run", "checkpoints"))
        self.assertEqual([name for name in kept if not name.startswith("step-")], [])
        steps = max(int(name[5:]) for name in kept) + 2
        done = self.run_program("train", "--resume", self.path("run"), "--steps", steps)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("run")["params_sha256"],
                         self.train("whole", *LANES, "--steps", steps)["params_sha256"])
        self.assertEqual(self.losses("run"), self.losses("whole"))


class Terminal(Case):
    """What a run shows on a terminal of so many columns, and nowhere else."""

    ARGS = [*LANES, "--epochs", "2"]
    BAR = (r"epoch (\d)  step (\d+)/16(\033\[0m)? ▕([█▉▊▋▌▍▎▏ ]+)▏ "
           r"loss \d\.\d{4}  [\d .]+ samples/s  comm [\d.]+ %  ETA \d+:\d\d")

    def shown(self, columns, **variables):
        near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([PROGRAM, "train", "--out", self.path("run"), "--overwrite", *self.ARGS],
                                   stdin=subprocess.DEVNULL, stdout=far, stderr=far, env=self.environment | variables)
        os.close(far)
        text = b""
        try:
            while piece := os.read(near, 65536):
                text += piece
        except OSError:  # the other side is closed
            pass
        os.close(near)
        self.assertEqual(process.wait(60), 0, text)
        return text.decode()

    def test_a_bar_with_rate_and_time_left(self):
        text = self.shown(120)
        bars = re.findall(self.BAR, text)
        self.assertTrue(bars, text)
        self.assertEqual(bars[-1][:2], ("2", "16"))
        self.assertEqual(bars[-1][3], "█" * 30)  # full at the end
        for epoch, step, plain, bar in bars:
            self.assertEqual(len(bar), 30)
            self.assertEqual(plain, "\033[0m")
        self.assertIn("\033[1mepoch 1  step ", text)
        self.assertRegex(text, r"accuracy +\033\[1m[\d.]+ %\033\[0m")
        # Each is taken away before the next, or a line, comes; none stays.
        self.assertEqual(text.count("\r\033[K"), len(bars))
        self.assertEqual(len(re.findall(r"(?:\n|\033\[K)epoch \d  step \d+  loss .*\r\n", text)), 2)

    def test_a_narrow_one_has_no_room_for_the_bar(self):
        text = self.shown(60)
        self.assertNotIn("▕", text)
        self.assertRegex(text, r"step \d+/16\033\[0m loss .* samples/s .* ETA \d+:\d\d")

    def test_without_colours(self):
        text = self.shown(120, NO_COLOR="1")
        self.assertTrue(re.findall(self.BAR, text), text)
        self.assertEqual(set(re.findall(r"\033\[\d*\w", text)), {"\033[K"})

    def test_a_pipe_gets_plain_lines(self):
        done = self.run_program("train", "--out", self.path("run"), *self.ARGS)
        self.assertEqual(done.returncode, 0, done.stderr)
        for mark in ("\033", "\r", "▕"):
            self.assertNotIn(mark, done.stdout + done.stderr)


class Usage(Case):
    def test_bad_flags(self):
        for args, words in [
            (["--model", "resnet17"], ["--model", "resnet17", "resnet18"]),
            (["--precision", "bf16"], ["--precision", "fp32"]),
            (["--device", "cuda"], ["--device", "cpu"]),
            (["--steps", "many"], ["--steps", "many", "a whole number"]),
            (["--lane-batch", "0"], ["--lane-batch"]),
            (["--lanez", "4"], ["--lanez", "--lanes"]),
            (["-n", "4", *MLP, "--lanes", "2"], ["--lanes", "2", "4"]),
            (["--data", "nowhere"], ["--data", "nowhere", "no such file or folder", "shapes", "cifar10"]),
            (["--data", "cifar10"], ["cifar10", "--data-dir"]),
            (["--model", "gpt", "--data", "shapes"], ["gpt", "shapes"]),
            ([*MLP, "--algorithm", "rign", "-n", "2", "--steps", "1"], ["rign", "ring"]),
        ]:
            with self.subTest(args=args):
                self.refused("train", *args, "--out", self.path("none"), words=words)

    def test_what_was_written_is_what_is_refused(self):
        for args, words in [
            (["--steps", "99999999999999999999"], ["--steps", "'99999999999999999999'", "1 to 1099511627776"]),
            (["--seed", "99999999999999999999"], ["--seed", "'99999999999999999999'", "0 to 18446744073709551615"]),
            (["--bucket-cap-mb", "-1"], ["--bucket-cap-mb", "'-1'", "or 0 (auto)"]),
            (["--out", ""], ["--out ''", "folder"]),
            (["--resume", ""], ["--resume ''", "checkpoint"]),
            (["--out", "--overwrite"], ["--out", "'--overwrite'", "./--overwrite"]),
            (["--steps", "-5"], ["--steps", "'-5'", "accepted: 1 to"]),
            (["--steps", "1e3"], ["--steps '1e3'", "a whole number"]),
            (["--model", "mpl"], ["--model", "mpl", "Did you mean 'mlp'?"]),
            (["-np", "2"], ["-np", "did you mean -n?"]),
            (["--nproc_per_node", "2"], ["--nproc-per-node", "did you mean -n?"]),
            (["--batch-size", "2"], ["--batch-size", "did you mean --lane-batch?"]),
            (["--learning-rate", "2"], ["--learning-rate", "did you mean --lr?"]),
        ]:
            with self.subTest(args=args):
                self.refused("train", *MLP, "--steps", "1", *args, words=words, cwd=self.folder)
        self.assertFalse(os.path.exists(self.path("runs")))

    def test_too_many_workers_are_not_started(self):
        begin = time.monotonic()
        self.refused("train", *MLP, "--lanes", 8, "-n", 64, "--out", self.path("none"), words=["--lanes 8", "64 workers"])
        self.assertLess(time.monotonic() - begin, 5)  # 64 that load libtorch take much longer
        done = self.run_program("run", "-n", 3, PROGRAM, "train", *MLP, "--lanes", 2, "--out", self.path("none"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("--lanes 2 is less than the 3 workers", done.stderr)

    def test_one_is_not_many(self):
        done = self.run_program("train", *MLP, "--steps", 1, "--out", self.path("run"))
        self.assertRegex(done.stdout.splitlines()[0], r"\(230 examples\): 1 worker, 1 lane × 4, 1 step$")

    def test_config(self):
        with open(self.path("a.toml"), "w") as file:
            file.write('model = "mlp"\ndata = "synthetic"\nwidth = 32\nlayers = 2\nlane_batch = 4\nlanes = 8\n'
                       'examples = 230\neval-examples = 60\nseed = 5\nsteps = 2\n')
        config = self.train("toml", "--config", self.path("a.toml"), "--seed", "6")
        with open(self.path("toml", "config.json")) as file:
            kept = json.load(file)
        self.assertEqual((kept["seed"], kept["lanes"], kept["width"]), (6, 8, 32))
        # Every option of a run is in config.json, which is itself a config file.
        flags = re.findall(r"^  (?:-\w,)?--([\w-]+)", self.run_program("train", "--help").stdout, re.MULTILINE)
        self.assertEqual({flag.replace("-", "_") for flag in flags} - {"config", "help", "json"}, set(kept))
        for name in ("out", "resume", "overwrite", "workers"):
            kept.pop(name)
        with open(self.path("b.json"), "w") as file:
            json.dump(kept, file)
        again = self.train("json", "--config", self.path("b.json"))
        self.assertEqual(again["params_sha256"], config["params_sha256"])
        with open(self.path("a.toml"), "a") as file:
            file.write("optimiser = 'sgd'\n")
        self.refused("train", "--config", self.path("a.toml"), words=["a.toml", "optimiser", "optimizer", "lane_batch"])

    def test_bad_data(self):
        os.mkdir(self.path("data"))
        for i in range(1, 6):
            with open(self.path("data", f"data_batch_{i}.bin"), "wb") as file:
                file.write(bytes(3073 * 2 - 1))
        with open(self.path("data", "test_batch.bin"), "wb") as file:
            file.write(bytes(3073))
        self.refused("train", "--data", self.path("data"), "--out", self.path("none"), "-n", 2,
                     words=["data_batch_1.bin", "6145"])

    def test_help(self):
        for command in (["train"], ["sweep"], ["infer"], ["bench", "step"]):
            done = self.run_program(*command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Examples:", done.stdout)
        listed = self.run_program("--help").stdout
        for word in ("train", "sweep", "infer"):
            self.assertRegex(listed, rf"\n  {word} ")

    def test_without_its_other_half(self):
        shutil.copy(PROGRAM, self.path("lockstep"))
        done = subprocess.run([self.path("lockstep"), "train"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("libtorch", done.stderr)


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
        done = self.run_program("bench", "step", "-n", 2, "--model", "mlp", "--width", 256, "--layers", 2,
                                "--lane-batch", 32, "--steps", 12, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = json.loads(done.stdout)
        self.assertEqual((row["workers"], row["lane_batch"], row["model"]), (2, 32, "mlp"))
        self.assertAlmostEqual(row["efficiency"], row["alone_ms"] / row["step_ms"])
        self.assertAlmostEqual(row["samples_per_s"], 64000 / row["step_ms"])
        self.assertEqual(row["params"], 1024 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10)
        self.assertEqual((row["engine"], row["bucket_cap_mb"]), ("shm", 25))
        self.assertTrue(0 < row["comm_fraction"] < 1)
        self.check_prediction(row, [row["alone_ms"]])
        self.refused("bench", "step", "--model", "resnet17", words=["--model"])

    def check_prediction(self, row, alone_ms):
        """It is what was computed in the very steps that it was made from, and the exchange that it expects: a factor of 4
        is for medians of parts and the part of backward that the exchange slows down. How good it is, against steps that
        really exchange, depends on how busy the machine is: then a step is longer than its parts' medians, hence the
        shortest and the longest of `alone_ms`."""
        step_ms, share = row["predicted_step_ms"], row["predicted_comm_fraction"]
        self.assertTrue(0 < share < 1, share)
        self.assertGreater(step_ms, min(alone_ms) / 4)
        self.assertLess(step_ms, 4 * max(alone_ms) / (1 - share))

    def computed_ms(self, name):
        """What steps of a run take without the exchange, those that its prediction is made from."""
        steps = self.rows(name, "steps.csv")[3:]
        return [float(r["compute_ms"]) + float(r["data_wait_ms"]) for r in steps]

    def test_bench_step_in_a_job(self):
        # Steps of some milliseconds, and more than a few: what else runs on the machine comes in pieces of that size.
        step = [PROGRAM, "bench", "step", "--model", "mlp", "--width", 256, "--layers", 2, "--lane-batch", 32, "--steps", 12,
                "--json"]
        tcp = dict(self.environment, LOCKSTEP_ENGINE="tcp")
        done = self.run_program("run", "-n", 3, *step, env=tcp)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines()]
        self.assertEqual([(r["workers"], r["engine"]) for r in rows], [(3, "tcp")])
        self.check_prediction(rows[0], [rows[0]["alone_ms"]])
        done = self.run_program("run", "-n", 2, *step, "-n", 3)
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
