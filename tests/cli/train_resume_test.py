#!/usr/bin/env python3
"""How a run goes on, whatever ended it: train_resume_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from train_case import LANES, PROGRAM, Case


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

    def test_out_of_a_folder_of_copied_checkpoints(self):
        """Its number of workers is in them."""
        self.train("run", *LANES, "-n", 2, "--steps", 2)
        shutil.copytree(self.path("run", "checkpoints"), self.path("copied"))
        os.mkdir(self.path("copied", "step-00000001"))  # none
        done = self.run_program("train", "--resume", self.path("copied"), "--steps", 3, "--out", self.path("on"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.summary("on")["steps"], self.summary("on")["workers"]), (3, 2))

    def test_out_of_a_runs_folder_of_which_only_the_checkpoints_are_left(self):
        """Nor is it asked of a checkpoint that the program happens to be started in."""
        self.train("run", *LANES, "-n", 2, "--steps", 2)
        self.train("single", *LANES, "-n", 1, "--steps", 2)
        shutil.copytree(self.path("run", "checkpoints"), self.path("moved", "checkpoints"))
        for number, where in enumerate((self.folder, self.path("single", "checkpoints", "step-00000002"))):
            done = self.run_program("train", "--resume", self.path("moved"), "--steps", 3, "--out", self.path(f"on-{number}"), cwd=where)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.summary(f"on-{number}")["workers"], 2)

    def test_another_runs_folder_around_moved_checkpoints_is_not_asked(self):
        self.train("run", *LANES, "-n", 2, "--steps", 2)
        self.train("other", *LANES, "-n", 1, "--steps", 2)
        shutil.copytree(self.path("run", "checkpoints"), self.path("other", "moved", "checkpoints"))
        done = self.run_program("train", "--resume", self.path("other", "moved"), "--steps", 3, "--out", self.path("on"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("on")["workers"], 2)

    def test_by_a_link_to_its_checkpoint_or_to_all_of_them(self):
        self.train("run", *LANES, "-n", 2, "--steps", 2)
        os.mkdir(self.path("other"))
        with open(self.path("other", "config.json"), "w") as config:  # of another run, which is not gone on with
            json.dump({"workers": 1, "lanes": 4}, config)

        def resume(spelled, steps):
            done = self.run_program("train", "--resume", spelled, "--steps", steps, cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.summary("run")["steps"], self.summary("run")["workers"]), (steps, 2))

        for steps, link, target in ((3, "latest", self.path("run", "checkpoints", "step-00000002")),
                                    (4, "other/all", self.path("run", "checkpoints")), (5, "same", self.path("run"))):
            os.symlink(target, self.path(link))
            resume(link, steps)
        # The folder of checkpoints lies on another disk.
        os.rename(self.path("run", "checkpoints"), self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), self.path("run", "checkpoints"))
        resume("run/checkpoints/", 6)
        self.assertFalse(os.path.exists(self.path("runs")))

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

    def test_after_sigkill(self):
        process = self.start("killed", "-n", 2, *LANES, "--steps", "100000", "--checkpoint-every", "4")
        self.wait_for_checkpoint(process, "killed", 4)
        workers = self.workers_of("killed")
        self.assertEqual(len(workers), 2)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        steps = max(self.saved_steps("killed")) + 3  # what came after the checkpoint is done again
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
        self.wait_for_checkpoint(process, "broken", 2)
        workers = self.workers_of("broken")
        self.assertEqual(len(workers), 2)
        os.kill(workers[1], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertRegex(err, r"rank 1 of group world died")
        self.assertRegex(err, r"rank 1 failed first: it was killed by SIGKILL")
        self.assertIn("out of memory?", err)
        left = os.listdir(self.path("tmp"))
        self.assertTrue(left, "no flight recorder was written")
        for dumps in left:
            self.assertIn(f"in {self.path('tmp', dumps)}", err)
        newest = max(os.listdir(self.path("broken", "checkpoints")))
        self.assertIn(f"the newest checkpoint is {self.path('broken', 'checkpoints', newest)}; "
                      f"to resume: lockstep train --resume {self.path('broken')} -n 2", err)

    def test_started_again_by_the_launcher(self):
        args = [*LANES, "--steps", 400, "--checkpoint-every", 5]
        # The first start writes slowly: it is not over before this script hears of its checkpoint.
        slow_at_first = 'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then export LD_PRELOAD="$DISK_SHIM"; fi; exec "$@"'
        process = subprocess.Popen([PROGRAM, "run", "-n", "2", "--max-restarts", "1", "sh", "-c", slow_at_first, "sh",
                                    PROGRAM, "train", "--out", self.path("again"), *map(str, args)],
                                   env=dict(self.environment, DISK_FAULTS="write steps.csv delay_ms=50"),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_for_checkpoint(process, "again", 5)
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


class ResumedOtherwise(Case):
    """What is said, or refused, where it would be another run."""

    def test_other_workers_are_mentioned_where_they_change_bits(self):
        for name, args in (("bf16", ["--compress", "bf16"]), ("any", ["--order", "any"])):
            self.train(name, "-n", 2, *LANES, "--steps", 2, *args)
            same = self.run_program("train", "--resume", self.path(name), "--steps", 3)
            self.assertEqual((same.returncode, same.stderr), (0, ""))
            done = self.run_program("train", "--resume", self.path(name), "-n", 3, "--steps", 4)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"with {' '.join(args)} the bits depend on the number of workers, which was 2 and is 3 from here on",
                          done.stderr)
            with open(self.path(name, "config.json")) as file:
                self.assertEqual(json.load(file)[args[0][2:]], args[1])

    def test_an_algorithm_with_an_order_of_its_own_is_the_runs(self):
        args = [*LANES, "-n", 3]
        canonical = self.train("canonical", *args, "--steps", 2)
        ring = self.train("ring", *args, "--steps", 2, "--algorithm", "ring")
        self.assertNotEqual(ring["params_sha256"], canonical["params_sha256"], "ring sums no other way here: nothing is tested")
        whole = self.train("whole", *args, "--steps", 4, "--algorithm", "ring")
        refusal = "would make another run: the checkpoint's sums are"
        for run, algorithm, words in [
            ("ring", "tree", [f"--algorithm tree {refusal} in the order of --algorithm ring", "accepted: --resume without", "--init"]),
            ("ring", "auto", [f"--algorithm auto {refusal} in the order of --algorithm ring"]),
            ("ring", "rign", ["'rign'", "accepted", "ring"]),
            ("canonical", "ring", [f"--algorithm ring {refusal} in canonical order", "--init"]),
        ]:
            with self.subTest(run=run, algorithm=algorithm):
                self.refused("train", "--resume", self.path(run), "--steps", 3, "--algorithm", algorithm, "-n", 3, words=words)
        same = self.run_program("train", "--resume", self.path("ring"), "-n", 3, "--steps", 4)
        self.assertEqual((same.returncode, same.stderr), (0, ""))
        self.assertEqual(self.summary("ring")["params_sha256"], whole["params_sha256"])
        other = self.run_program("train", "--resume", self.path("ring"), "-n", 2, "--steps", 5)
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertIn("with --algorithm ring the bits depend on the number of workers, which was 3 and is 2 from here on",
                      other.stderr)
        with open(self.path("ring", "config.json")) as file:
            self.assertEqual(json.load(file)["algorithm"], "ring")
        # All that sum in canonical order are one run, which has none of its own.
        for algorithm, steps, kept in (("tree", 3, "tree"), (None, 4, "auto")):
            named = ["--algorithm", algorithm] if algorithm else []
            done = self.run_program("train", "--resume", self.path("canonical"), "-n", 2, "--steps", steps, *named)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(self.path("canonical", "config.json")) as file:
                self.assertEqual(json.load(file)["algorithm"], kept)

    def test_another_run_is_refused(self):
        self.train("run", *LANES, "--steps", 2)
        for args, words in [
            (["--lane-batch", "5"], ["--lane-batch", "5", "4"]),
            (["--seed", "9"], ["--seed", "9", "0"]),
            (["--optimizer", "sgd"], ["--optimizer", "sgd", "adamw", "accepted", "without --optimizer", "--init"]),
            (["--order", "any"], ["--order", "any", "canonical"]),
            (["-n", "9"], ["-n 9", "8 lanes", "accepted: -n 8 at most"]),
        ]:
            with self.subTest(args=args):
                self.refused("train", "--resume", self.path("run"), *args, words=words)

    def test_a_state_of_other_kinds_is_named(self):
        self.train("run", *LANES, "--steps", 2)
        checkpoint = self.path("run", "checkpoints", "step-00000002")
        self.change_state(checkpoint, lambda state: state["options"].update(device=5))
        self.refused("train", "--resume", checkpoint, "--out", self.path("other"),
                     words=["state.json", "device 5 is not understood", "text"])
        self.change_state(checkpoint, lambda state: state.update(options=[]))
        self.refused("train", "--resume", checkpoint, "--out", self.path("other"),
                     words=[checkpoint, "state.json is not that of a training run"])

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


class ResumeMore(Case):
    """Ends and starts that are rarer."""

    ARGS = Resume.ARGS

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


if __name__ == "__main__":
    unittest.main(verbosity=1)
