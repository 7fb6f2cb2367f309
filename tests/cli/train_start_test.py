#!/usr/bin/env python3
"""What a run of `lockstep train` begins with: train_start_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import json
import os
import resource
import shutil
import unittest

from train_case import LANES, MLP, PROGRAM, Case

GPT = ["--model", "gpt", "--blocks", "1", "--width", "16", "--heads", "2", "--context", "8", "--lanes", "2",
       "--lane-batch", "2", "--eval-examples", "8", "--checkpoint-every", "2", "--keep", "0"]


class Data(Case):
    """A run goes on with its own data, wherever that lies now, and with no other."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("one"))
        os.mkdir(self.path("two"))
        self.write("one/book.txt", "to be or not to be ")

    def write(self, name, words):
        with open(self.path(name), "w") as file:
            file.write(words * 60)

    def resume(self, *args, run="run", **kwargs):
        return self.run_program("train", "--resume", self.path(run), *args, **kwargs)

    def first(self, *args, run="run"):
        done = self.run_program("train", *GPT, "--data", "book.txt", "--steps", 2, "--out", self.path(run), *args,
                                cwd=self.path("one"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_from_another_folder_and_moved(self):
        self.first()
        done = self.resume("--steps", 3, cwd=self.path("two"))
        self.assertEqual(done.returncode, 0, done.stderr)
        infer = self.run_program("infer", "--resume", self.path("run"), "--json", cwd=self.path("two"))
        self.assertEqual(infer.returncode, 0, infer.stderr)
        os.rename(self.path("one/book.txt"), self.path("two/novel.txt"))
        self.refused("train", "--resume", self.path("run"), "--steps", 4, cwd=self.path("two"),
                     words=[self.path("one/book.txt"), "--data says where it is now"])
        done = self.resume("--steps", 4, "--data", "novel.txt", "-n", 2, cwd=self.path("two"))
        self.assertEqual(done.returncode, 0, done.stderr)
        # Where it was found is remembered.
        done = self.resume("--steps", 5)
        self.assertEqual(done.returncode, 0, done.stderr)
        whole = self.train("whole", *GPT, "--data", self.path("two/novel.txt"), "--steps", 5)
        self.assertEqual(self.summary("run")["params_sha256"], whole["params_sha256"])

    def test_other_data_under_the_same_name(self):
        self.first()
        before = self.files_of("run")
        self.write("one/book.txt", "to be or not to me ")
        words = ["--data", "training examples", "SHA-256", f"--init {self.path('run')}"]
        self.refused("train", "--resume", self.path("run"), "--steps", 4, words=[*words, "book.txt"])
        for command in ("infer", "train"):  # as a program of one's own does
            self.refused(command, "--resume", self.path("run"), env=dict(self.environment, LOCKSTEP_TIMOUT_S="5"),
                         words=["LOCKSTEP_TIMOUT_S", "LOCKSTEP_TIMEOUT_S"])
        # What `infer` says of the run's data is not to be of other data.
        self.refused("infer", "--resume", self.path("run"), words=["book.txt", "is not the data of", "SHA-256", "or --data"])
        done = self.run_program("infer", "--resume", self.path("run"), "--data", self.path("one/book.txt"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.write("two/other.txt", "something else to read ")
        self.refused("train", "--resume", self.path("run"), "--steps", 4, "--data", self.path("two/other.txt"),
                     words=[*words, "two/other.txt"])
        self.assertEqual(self.files_of("run"), before)

    def test_only_what_is_read_counts(self):
        self.first("--examples", 40)  # 321 bytes of the 1026 for training; the test is the last tenth

        def change(byte):
            with open(self.path("one/book.txt"), "r+") as file:
                file.seek(byte)
                file.write("?")

        change(600)
        done = self.resume("--steps", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        change(1050)
        self.refused("train", "--resume", self.path("run"), "--steps", 6, words=["test examples"])

    def test_files_of_a_name(self):
        for folder in ("one", "two"):
            for i in range(1, 6):
                with open(self.path(folder, f"data_batch_{i}.bin"), "wb") as file:
                    file.write((bytes([i]) + bytes(range(256)) * 12) * 8)
            with open(self.path(folder, "test_batch.bin"), "wb") as file:
                file.write(bytes(3073) * 8)
        args = ["--model", "mlp", "--width", 8, "--lanes", 2, "--lane-batch", 2]
        done = self.run_program("train", *args, "--data", "cifar10", "--data-dir", "one", "--steps", 2, "--out", "run",
                                cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        shutil.rmtree(self.path("one"))
        done = self.resume("--steps", 4, "--data", self.path("two"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_shapes_that_are_gone_are_made_again(self):
        """They are a function of their options: nothing is lost with their folder."""
        args = ["--model", "mlp", "--width", 8, "--lanes", 2, "--lane-batch", 2, "--data", "shapes", "--data-dir", "drawn",
                "--examples", 40, "--eval-examples", 10]
        done = self.run_program("train", *args, "--steps", 2, "--out", "run", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        shutil.rmtree(self.path("drawn"))
        done = self.run_program("train", "--resume", "run", "--steps", 4, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_synthetic_data_has_no_folder_to_be_missed(self):
        args = ["--model", "mlp", "--width", 8, "--lanes", 2, "--lane-batch", 2, "--data", "synthetic", "--data-dir",
                "nowhere", "--examples", 40, "--eval-examples", 10]
        self.train("run", *args, "--steps", 2)
        done = self.run_program("train", "--resume", self.path("run"), "--steps", 4)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_rank_reads_the_same(self):
        self.write("two/book.txt", "to be or not to me ")
        start = 'test "$RANK" = 0 && cd one || cd two; exec "$@"'
        done = self.run_program("run", "-n", 2, "sh", "-c", start, "sh", PROGRAM, "train", *GPT, "--data", "book.txt",
                                "--steps", 2, "--out", self.path("run"), cwd=self.folder)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 1 reads other data than rank 0", done.stderr)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_a_checkpoint_that_knows_only_the_name(self):
        """As earlier versions wrote it."""
        self.first()
        checkpoint = self.path("run", "checkpoints", "step-00000002")
        self.change_state(checkpoint, lambda state: state.pop("data"))
        self.refused("train", "--resume", self.path("run"), "--steps", 4, "--data", "one/book.txt", cwd=self.folder,
                     words=["--data one/book.txt would make another run", "book.txt"])


class Init(Case):
    """A new run that begins with old weights."""

    def test_any_other_option(self):
        self.train("old", *LANES, "--steps", 4, "--optimizer", "sgd")
        done = self.run_program("train", "--init", self.path("old"), "--data", "synthetic", "--examples", 100,
                                "--lanes", 4, "--lane-batch", 8, "--steps", 3, "--lr", 0, "--weight-decay", 0, "-n", 2,
                                "--out", self.path("new"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"with the weights of {self.path('old')}", done.stdout)
        # The model is the old one's, and a rate of 0 leaves the weights as they were.
        new = self.summary("new")
        self.assertEqual(new["params_sha256"], self.summary("old")["params_sha256"])
        self.assertEqual((new["steps"], new["lanes"], len(self.losses("new"))), (3, 4, 3))
        # Without them it is another run, and it goes on as any other does.
        fresh = self.train("fresh", *MLP, "--examples", 100, "--lanes", 4, "--lane-batch", 8, "--steps", 3, "--lr", 0,
                           "--weight-decay", 0)
        self.assertNotEqual(fresh["params_sha256"], new["params_sha256"])
        self.assertEqual(self.run_program("train", "--resume", self.path("new"), "--steps", 5).returncode, 0)
        self.assertEqual(self.summary("new")["params_sha256"], self.summary("old")["params_sha256"])

    def test_weights_that_do_not_fit_are_named(self):
        self.train("old", *LANES, "--steps", 1)
        for args, words in [
            (["--width", 16], ["model.safetensors", "does not fit the model", "0.bias as Float[32]"]),
            (["--layers", 3], ["does not fit the model", "4.bias"]),
            (["--init", self.path("none")], ["none"]),
            (["--init", ""], ["--init ''", "checkpoint"]),
            (["--resume", self.path("old")], ["--init", "--resume", "one of them"]),
        ]:
            with self.subTest(args=args):
                self.refused("train", "--init", self.path("old"), "--data", "synthetic", "--steps", 1, "-n", 2,
                             "--out", self.path("new"), *args, words=words)
        self.assertFalse(os.path.exists(self.path("new")))
        # What it begins with is not removed first, however it is called.
        before = self.files_of("old")
        os.symlink(self.path("old"), self.path("link"))
        for init in (self.path("old"), self.path("link", "checkpoints", "step-00000001")):
            self.refused("train", "--init", init, "--out", self.path("old"), "--overwrite", "--data", "synthetic",
                         "--steps", 1, words=["--overwrite", "--init", "another folder"])
        self.assertEqual(self.files_of("old"), before)


class Threads(Case):
    """The number of threads cuts the sums, so it belongs to the run."""

    RESNET = ["--model", "resnet18", "--data", "shapes", "--examples", "16", "--eval-examples", "8", "--lanes", "1",
              "--lane-batch", "16", "--eval-every", "0"]

    def test_it_is_the_runs_whatever_the_environment_says(self):
        one = self.train("one", *self.RESNET, "--steps", 1)
        two = self.train("two", *self.RESNET, "--steps", 1, "--threads", 2)
        self.assertNotEqual(one["params_sha256"], two["params_sha256"], "this model does not depend on it any more")
        other = self.train("other", *self.RESNET, "--steps", 1, "--threads", 2,
                           env=dict(self.environment, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OMP_DYNAMIC="true"))
        self.assertEqual(other["params_sha256"], two["params_sha256"])

    def test_a_resumed_run_keeps_it(self):
        args = [*MLP, "--lanes", 2, "--threads", 2]
        self.train("run", *args, "--steps", 2)
        self.refused("train", "--resume", self.path("run"), "--steps", 3, "--threads", 1, words=["--threads 1", "2"])
        done = self.run_program("train", "--resume", self.path("run"), "--steps", 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("run", "config.json")) as file:
            self.assertEqual(json.load(file)["threads"], 2)
        weights = self.path("run", "checkpoints", "step-00000003", "model.safetensors")
        with open(weights, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            self.assertEqual(json.loads(file.read(length))["__metadata__"]["threads"], "2")

    def test_other_kernels_are_mentioned(self):
        """Which instructions libtorch computes with changes bits as threads do, and nobody sees it."""
        self.train("run", *MLP, "--lanes", 2, "--steps", 2)
        before = self.run_program("train", "--resume", self.path("run"), "--steps", 3)
        self.assertEqual((before.returncode, before.stderr), (0, ""))
        plain = dict(self.environment, ATEN_CPU_CAPABILITY="default")
        done = self.run_program("train", "--resume", self.path("run"), "--steps", 4, env=plain)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"step-00000003 was saved by a run with instructions = .*, and here it is .*bits may differ")
        start = 'test "$RANK" = 0 || export ATEN_CPU_CAPABILITY=default; exec "$@"'
        done = self.run_program("run", "-n", 2, "sh", "-c", start, "sh", PROGRAM, "train", *MLP, "--lanes", 2, "--steps", 1,
                                "--out", self.path("mixed"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"rank 1.* computes with instructions = .*, and here it is .*which worker has a lane")

    def test_fewer_than_asked_for_are_refused(self):
        one = dict(self.environment, OMP_THREAD_LIMIT="1")
        self.refused("train", *MLP, "--threads", 2, "--steps", 1, "--out", self.path("run"), env=one,
                     words=["--threads 2", "OMP_THREAD_LIMIT=1"])
        self.train("run", *MLP, "--steps", 1, env=one)


class Flags(Case):
    """Flags of the lanes and of the optimizer do what they say, and those that could do nothing are refused."""

    def test_what_would_be_ignored_is_refused(self):
        self.refused("train", *MLP, "--blocks", 4, words=["--blocks changes nothing with --model mlp", "gpt"])
        self.refused("bench", "step", "--model", "mlp", "--heads", 4, words=["--heads", "--model mlp"])
        self.refused("sweep", "heads", "--values", "2,4", *MLP, words=["--heads", "--model mlp"])
        self.refused("train", *MLP, "--lanes", 8, "--accumulate", 2, words=["--accumulate 2 changes nothing with --lanes 8"])
        self.refused("train", "--model", "gpt", "--data", self.path("book.txt"), "--data-dir", self.folder, "--out",
                     self.path("none"), words=["--data-dir", "changes nothing with --data", "book.txt", "cifar10"])
        # A run's own recipe has every option.
        self.train("run", *LANES, "--steps", 1)
        done = self.run_program("train", "--config", self.path("run", "config.json"), "--out", self.path("again"))
        self.assertEqual(done.returncode, 0, done.stderr)
        # What a checkpoint says makes flags void, too.
        new = ["--data", "synthetic", "--steps", 1, "--out", self.path("new")]
        for args, words in [
            (["--init", self.path("run"), *new, "--blocks", 4], ["--blocks changes nothing with --model mlp", "gpt"]),
            (["--init", self.path("run"), *new, "--momentum", 0.5], ["--momentum changes nothing with --optimizer adamw"]),
            (["--resume", self.path("run"), "--steps", 2, "--accumulate", 2],
             ["--accumulate 2 changes nothing with --resume", "8"]),
        ]:
            with self.subTest(args=args):
                self.refused("train", *args, words=words)
        self.assertFalse(os.path.exists(self.path("new")))

    def test_one_command_at_a_time(self):
        for args in (["train", "train"], ["train", *MLP, "infer"], ["infer", "train", "--resume", "x"],
                     ["bench", "step", "train"], ["sweep", "train"]):
            self.refused(*args, words=["was not expected here; accepted: one command"])
        done = self.run_program("train", *LANES, "--steps", 1, "--out", "train", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_sizes_beyond_all_memory(self):
        for args in (["--model", "mlp", "--data", "synthetic", "--width", 1000000],
                     ["--model", "gpt", "--width", 1000000], ["--model", "mlp", "--width", 100000, "--layers", 1000]):
            self.refused("train", *args, "--steps", 1, "--out", self.path("run"),
                         words=["--width", "GiB, and this machine's memory is", "accepted: smaller ones"])
        narrow = ["train", "--model", "gpt", "--blocks", 1, "--width", 8, "--heads", 1, "--eval-examples", 1, "--steps", 1, "--out",
                  self.path("run")]
        self.refused(*narrow, "--context", 1000000,
                     words=["--context 1000000, --heads 1", "3725.3 GiB at least, and this machine's memory is", "accepted: smaller ones"])

        # What no one foresees: 8 GiB at once, where a process may have six.
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

        done = self.run_program(*narrow, "--context", 8192, "--examples", 32, "--lane-batch", 32, preexec_fn=limit,
                                env=dict(self.environment, LOCKSTEP_ARENA="256M", MALLOC_ARENA_MAX="1"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stderr, r"not enough memory for \d+\.\d GiB more; accepted: a smaller model, --context")
        self.assertNotIn("enforce fail", done.stderr)

    def test_accumulate_is_lanes_a_worker(self):
        base = self.train("lanes", *MLP, "-n", 2, "--lanes", 6, "--steps", 3)
        found = self.train("accumulate", *MLP, "-n", 2, "--accumulate", 3, "--steps", 3)
        self.assertEqual((found["lanes"], found["params_sha256"]), (6, base["params_sha256"]))
        # It makes the number of lanes; the number then stays.
        self.assertEqual(self.run_program("train", "--resume", self.path("accumulate"), "-n", 3, "--steps", 4).returncode, 0)
        self.assertEqual(self.summary("accumulate")["lanes"], 6)
        self.refused("train", *MLP, "--accumulate", 0, words=["--accumulate", "'0'"])

    def test_the_optimizers_flags(self):
        base = [*LANES, "--steps", 4, "--optimizer", "sgd", "--lr", "0.1"]
        cases = {"plain": [], "momentum": ["--momentum", "0.5"], "nesterov": ["--nesterov"],
                 "decay": ["--weight-decay", "0.1"],
                 "all": ["--momentum", "0.7", "--nesterov", "--weight-decay", "0.05"]}
        hashes = {name: self.train(name, *base, *args)["params_sha256"] for name, args in cases.items()}
        self.assertEqual(len(set(hashes.values())), len(hashes), hashes)
        # libtorch's own, told the same, comes to the same bits.
        torch = self.train("torch-sgd", *base, *cases["all"], "--optimizer", "torch-sgd")
        self.assertEqual(torch["params_sha256"], hashes["all"])
        trust = {"plain": [], "coefficient": ["--trust-coefficient", "0.01"], "clip": ["--trust-clip", "0.0001"]}
        hashes = {name: self.train(f"lars-{name}", *base, "--optimizer", "lars", *args)["params_sha256"]
                  for name, args in trust.items()}
        self.assertEqual(len(set(hashes.values())), len(hashes), hashes)

    def test_the_learning_rates(self):
        def rates(name, *args):
            self.train(name, *LANES, "--steps", 8, "--lr", "0.8", "--optimizer", "sgd", *args)
            return [float(row["lr"]) for row in self.rows(name, "steps.csv")]

        def near(found, expected):
            self.assertEqual(len(found), len(expected))
            for a, b in zip(found, expected):
                self.assertAlmostEqual(a, b, places=6)

        near(rates("step", "--schedule", "step", "--lr-every", 3, "--lr-factor", "0.5"),
             [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2])
        near(rates("linear", "--schedule", "linear", "--warmup-steps", 4, "--min-lr", "0.4"),
             [0.2, 0.4, 0.6, 0.8, 0.8, 0.7, 0.6, 0.5])
        near(rates("poly", "--schedule", "poly", "--lr-power", "2"),
             [0.8 * (1 - i / 8) ** 2 for i in range(8)])

    def test_the_rate_follows_the_batch(self):
        def rates(name, *args):
            self.train(name, *LANES, "--steps", 2, "--optimizer", "sgd", *args)
            return [float(row["lr"]) for row in self.rows(name, "steps.csv")]

        # 8 lanes of 4 samples
        self.assertEqual(rates("linear", "--base-lr", "0.25", "--base-batch", 16), [0.5, 0.5])
        self.assertEqual(rates("sqrt", "--base-lr", "0.25", "--base-batch", 2, "--lr-scaling", "sqrt"), [1, 1])
        self.refused("train", *LANES, "--steps", 2, "--optimizer", "sgd", "--base-lr", "0.25", "--base-batch", 16,
                     "--schedule", "cosine", "--min-lr", "0.6", "--out", self.path("none"),
                     words=["--min-lr 0.6", "0.5", "--base-lr 0.25", "8 lanes of 4"])
        again = ["--config", self.path("linear", "config.json")]
        self.assertEqual(rates("again", *again), [0.5, 0.5])
        self.assertEqual(rates("other", *again, "--lr", "0.125"), [0.125, 0.125])

    def test_large_batch_optimizers_clip_and_leave_out(self):
        base = [*LANES, "--steps", 6, "--warmup-epochs", "0.25"]
        hashes = set()
        for optimizer in ("lars", "lamb"):
            summary = self.train(optimizer, *base, "--optimizer", optimizer, "--clip-norm", "0.5")
            hashes.add(summary["params_sha256"])
            sharded = self.train(f"{optimizer}-zero1", *base, "--optimizer", optimizer, "--clip-norm", "0.5",
                                 "--strategy", "zero1", "-n", 3)
            self.assertEqual(sharded["params_sha256"], summary["params_sha256"])
            norms = [float(row["grad_norm"]) for row in self.rows(optimizer, "steps.csv")]
            self.assertEqual(len(norms), 6)
            self.assertTrue(all(norm > 0 for norm in norms))
            hashes.add(self.train(f"{optimizer}-all", *base, "--optimizer", optimizer, "--exclude", "none",
                                  "--clip-value", "0.1")["params_sha256"])
        self.assertEqual(len(hashes), 4)
        self.refused("train", *base, "--optimizer", "lars", "--exclude", "*.gain", "--out", self.path("none"),
                     words=["--exclude", "'*.gain'", "matches no parameter", "1-d"])
        self.refused("train", *LANES, "--epochs", 1, "--warmup-steps", 99, "--out", self.path("none"),
                     words=["--warmup-steps 99", "longer than the run"])
        self.refused("train", *LANES, "--lr", "nan", "--out", self.path("none"), words=["--lr", "nan", "accepted"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
