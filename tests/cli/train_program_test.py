#!/usr/bin/env python3
"""`lockstep train` as people run it: train_program_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import json
import os
import re
import resource
import shutil
import subprocess
import unittest
import xml.etree.ElementTree

from train_case import LANES, MLP, PROGRAM, Case, say_repeated

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

    def test_smoothed_labels_are_for_training_alone(self):
        plain = self.train("plain", *LANES, "--lr", 0, "--epochs", 1)
        smooth = self.train("smooth", *LANES, "--lr", 0, "--epochs", 1, "--label-smoothing", 0.5)
        self.assertEqual(smooth["params_sha256"], plain["params_sha256"])  # nobody has moved
        self.assertEqual(smooth["validation_loss"], plain["validation_loss"])
        self.assertNotEqual(smooth["final_loss"], plain["final_loss"])
        self.refused("train", *LANES, "--label-smoothing", 1, "--out", self.path("none"),
                     words=["--label-smoothing", "0 to 0.99"])

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


class BitsMore(Case):
    """The same for more of what must not matter."""

    same = Bits.same

    def test_any_number_of_workers_over_an_epochs_end_with_momentum(self):
        args = [*LANES, "--steps", "10", "--optimizer", "sgd", "--lr", "0.1", "--schedule", "cosine",
                "--warmup-steps", "2"]
        self.same([1, 2, 4], *args, "--last-step", "short")
        self.same([1, 3], *args)

    def test_algorithms_and_buckets_change_no_bit(self):
        base = self.train("base", "-n", 2, *LANES, "--steps", 4)["params_sha256"]
        for name, args in {"tree": ["--algorithm", "tree"], "halving": ["--algorithm", "halving-doubling"],
                           "one": ["--bucket-cap-mb", "25"], "threads": ["--loader-threads", "3"]}.items():
            self.assertEqual(self.train(name, "-n", 2, *LANES, *args, "--steps", 4)["params_sha256"], base, name)


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
        self.assertEqual(memory["accounted_bytes"], memory["parameter_bytes"] + memory["gradient_bytes"] +
                         memory["optimizer_bytes"] + memory["gathered_bytes"])
        self.assertEqual(memory["accounted_bytes"], summary["state_bytes"][0])
        self.assertEqual(memory["predicted_bytes"], summary["predicted_state_bytes"])
        self.assertNotEqual(memory["predicted_bytes"], memory["accounted_bytes"])  # by what buckets are aligned

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
            hidden = self.check_overlap(f"run{attempt}")
            if hidden > 0:
                break
            say_repeated(self.id(), "no part of the exchange was hidden")
        self.assertGreater(hidden, 0)

    def check_overlap(self, name):
        # One lane a worker, and layers that are large: its backward, beside which alone there is something to send, takes
        # longer than a processor that others have keeps the exchange waiting.
        summary = self.train(name, "-n", 2, *MLP, "--lanes", 2, "--lane-batch", 256, "--examples", 1024, "--width", 512, "--layers", 4,
                             "--steps", 12, "--trace-steps", 12)
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
        self.wait_for_checkpoint(process, "run", 10)
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


class Usage(Case):
    def test_bad_flags(self):
        for args, words in [
            (["--model", "resnet17"], ["--model", "resnet17", "resnet18"]),
            (["--precision", "fp8"], ["--precision", "fp32"]),
            *([] if shutil.which("nvidia-smi") else [(["--device", "cuda"], ["--device", "cpu"])]),
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
        def used():
            times = resource.getrusage(resource.RUSAGE_CHILDREN)
            return times.ru_utime + times.ru_stime

        before = used()
        self.refused("train", *MLP, "--lanes", 8, "-n", 64, "--out", self.path("none"), words=["--lanes 8", "64 workers"])
        self.assertLess(used() - before, 5)  # of a processor: 64 that load libtorch take much more
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
        # Every option of a run is in config.json, which is itself a config file: --lr, or what it follows from.
        flags = re.findall(r"^  (?:-\w,)?--([\w-]+)", self.run_program("train", "--help").stdout, re.MULTILINE)
        self.assertEqual({flag.replace("-", "_") for flag in flags} - {"config", "help", "json", "base_lr"}, set(kept))
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
        for command in (["train"], ["sweep"], ["sweep", "batch"], ["plan"], ["plan", "batch"], ["infer"], ["bench", "step"]):
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


if __name__ == "__main__":
    unittest.main(verbosity=1)
