#!/usr/bin/env python3
"""Who may write into a run's folder, and what is never lost there: train_folder_test.py PATH_TO_LOCKSTEP [TEST_CLASS]

DISK_SHIM is the library that makes disks fail (disk_shim.cc)."""
import array
import json
import math
import os
import re
import shutil
import signal
import subprocess
import unittest

from train_case import LANES, MLP, PROGRAM, Case

ARGS = [*LANES, "--checkpoint-every", "2", "--eval-every", "0"]


class Folders(Case):
    """A folder has one run and one writer."""

    def faults(self, rules, **variables):
        return dict(self.environment, LD_PRELOAD=os.environ["DISK_SHIM"], DISK_FAULTS=rules, **variables)

    def hidden(self, name):
        return sorted(file for folder, folders, files in os.walk(self.path(name)) for file in files + folders
                      if file.startswith("."))

    def restarted(self, *args, shim_at, faults, **kwargs):
        """A job of one worker that its launcher starts twice; the disk fails at one of the starts."""
        script = f'if [ "$TORCHELASTIC_RESTART_COUNT" = {shim_at} ]; then export LD_PRELOAD="$DISK_SHIM"; fi; ' + \
                 kwargs.pop("script", 'exec "$@"')
        env = dict(self.environment, DISK_SHIM=os.environ["DISK_SHIM"], DISK_FAULTS=faults)
        return self.run_program("run", "-n", 1, "--max-restarts", 1, "sh", "-c", script, "sh", PROGRAM, "train", *args,
                                "--out", self.path("run"), env=env)

    def test_a_failed_listing_at_a_restart_deletes_nothing(self):
        """The first start trains four steps; at the second its checkpoints can't be listed, or can."""
        script = 'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then "$@" --steps 4; exit 1; fi; exec "$@" --steps 6'
        done = self.restarted(*ARGS, shim_at=1, faults=f"opendir {self.path('run', 'checkpoints')} errno=5", script=script)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("cannot list the checkpoints in", done.stderr)
        self.assertIn("Input/output error", done.stderr)
        self.assertEqual(sorted(os.listdir(self.path("run", "checkpoints"))), ["step-00000002", "step-00000004"])
        shutil.rmtree(self.path("run"))
        done = self.restarted(*ARGS, shim_at=1, faults="", script=script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("going on after step 4", done.stdout)
        self.refused("train", "--resume", self.path("run"), "--steps", 8, status=1,
                     env=self.faults(f"opendir {self.path('run', 'checkpoints')} errno=13"),
                     words=["cannot list the checkpoints in", "Permission denied"])

    def test_a_restart_never_overwrites(self):
        """Not its own run, when it can't read whose that is; and no other, which the first start did not get to."""
        script = 'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then "$@" --steps 4; exit 1; fi; exec "$@" --steps 6'
        done = self.restarted(*ARGS, "--overwrite", shim_at=1, faults=f"open {self.path('run', 'job.txt')}@1 errno=5",
                              script=script)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("job.txt: Input/output error", done.stderr)
        self.assertEqual(sorted(os.listdir(self.path("run", "checkpoints"))), ["step-00000002", "step-00000004"])
        before = self.files_of("run")
        done = self.restarted(*ARGS, "--overwrite", "--steps", 2, shim_at=2, faults="",
                              script='test "$TORCHELASTIC_RESTART_COUNT" = 1 && exec "$@"')
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("a restart removes none", done.stderr)
        self.assertEqual(self.files_of("run"), before)

    def test_torchruns_name_for_all_runs(self):
        """Another run lies there, begun by a job of the same name: refused at the first start and at the second."""
        self.train("run", *ARGS, "--steps", 2)
        with open(self.path("run", "job.txt"), "w") as file:
            file.write("none\n")
        before = self.files_of("run")
        torchrun = dict(self.environment, TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="1", RANK="0", WORLD_SIZE="1",
                        LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29573")
        self.refused("train", "--out", self.path("run"), *ARGS, "--steps", 4, env=torchrun, words=["is not empty"])
        self.assertEqual(self.files_of("run"), before)
        # Its own folder it knows again: this process is the agent of both starts.
        for count, said in (("0", "4 steps"), ("1", "through")):
            torchrun["TORCHELASTIC_RESTART_COUNT"] = count
            done = self.run_program("train", "--out", self.path("own"), *ARGS, "--steps", 4, env=torchrun)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(said, done.stdout)

    def test_a_resumed_run_in_the_folder_of_another(self):
        self.train("a", *ARGS, "--steps", 2)
        self.train("b", *ARGS, "--steps", 4, "--seed", 1)
        before = self.files_of("b")
        resume = ["train", "--resume", self.path("a"), "--steps", 6]
        self.refused(*resume, "--out", self.path("b"), words=[self.path("b"), "not empty", "does not lie in its checkpoints", "another folder"])
        self.refused(*resume, "--out", self.path("b"), "--overwrite", words=["--overwrite", "--resume", "one of them"])
        self.assertEqual(self.files_of("b"), before)
        # Its own folder by another name is its own.
        os.symlink(self.path("a"), self.path("link"))
        done = self.run_program(*resume, "--out", self.path("link"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("a")["steps"], 6)

    def test_one_writer_at_a_time(self):
        first = self.start("run", *ARGS, "--steps", 100000)
        self.wait_for_checkpoint(first, "run", 2)
        owner = self.workers_of("run")[0]
        words = [self.path("run"), f"is being written by process {owner} on {os.uname().nodename}"]
        self.refused("train", "--resume", self.path("run"), words=words)
        self.refused("train", *ARGS, "--steps", 1, "--out", self.path("run"), "--overwrite", words=words)
        self.assertIsNone(first.poll())
        # It dies with its process.
        os.kill(owner, signal.SIGKILL)
        first.communicate(timeout=60)
        self.assertIn(".lock", self.hidden("run"))
        done = self.run_program("train", "--resume", self.path("run"), "--steps", max(self.saved_steps("run")) + 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.hidden("run"), [])

    def test_overwriting_removes_only_what_a_run_wrote(self):
        os.makedirs(self.path("mine", "checkpoints"))
        for name, text in {"checkpoints/model.pt": "weights", "notes.txt": "mine"}.items():
            with open(self.path("mine", name), "w") as file:
                file.write(text)
        self.train("mine", *ARGS, "--steps", 2, "--overwrite")
        with open(self.path("mine", "index.html"), "w") as file:
            file.write("<h1>home</h1>")
        before = self.files_of("mine")
        self.refused("train", *ARGS, "--steps", 2, "--out", self.path("mine"), "--overwrite",
                     words=["--overwrite", self.path("mine", "index.html"), "no run of lockstep train wrote"])
        self.assertEqual(self.files_of("mine"), before)
        os.remove(self.path("mine", "index.html"))
        with open(self.path("mine", "job.txt"), "w") as file:
            file.write("none\n")  # as earlier versions wrote it under torchrun
        self.train("mine", *ARGS, "--steps", 2, "--overwrite")
        self.assertEqual(sorted(os.listdir(self.path("mine", "checkpoints"))), ["model.pt", "step-00000002"])
        with open(self.path("mine", "notes.txt")) as file:
            self.assertEqual(file.read(), "mine")

    def test_killed_around_job_txt(self):
        """Before it is there, and right after: the restart begins anew, or goes on."""
        for fault in ("link job.txt kill", "link steps.csv kill"):
            with self.subTest(fault=fault):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                done = self.restarted(*ARGS, "--steps", 2, shim_at=0, faults=fault)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("restart 1 of 1", done.stderr)
                self.assertEqual(self.hidden("run"), [])
        done = self.run_program("run", "-n", 1, PROGRAM, "train", *ARGS, "--steps", 2, "--out", self.path("full"),
                                env=self.faults("link job.txt errno=28"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("job.txt: No space left on device", done.stderr)

    def test_what_killed_processes_left_is_swept(self):
        self.train("run", *ARGS, "--steps", 2)
        left = [".steps.csv.4711", ".index.html.99", "checkpoints/.removed-step-00000001/model.safetensors",
                "checkpoints/.staging/state.json"]
        kept = [".steps.csv.old", ".notes", "checkpoints/.mine"]
        for steps in (4, 4):  # once it goes on, once it is through
            for name in left + kept:
                os.makedirs(os.path.dirname(self.path("run", name)), exist_ok=True)
                with open(self.path("run", name), "w") as file:
                    file.write("x")
            done = self.run_program("train", "--resume", self.path("run"), "--steps", steps)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.hidden("run"), [".mine", ".notes", ".steps.csv.old"])

    def test_what_may_not_be_read_is_not_damaged(self):
        self.train("run", *ARGS, "--steps", 2)
        for command in ("train", "infer"):
            self.refused(command, "--resume", self.path("run"), status=1, words=["model.safetensors: Permission denied"],
                         env=self.faults("open step-00000002/model.safetensors errno=13"))

    def test_going_back_to_an_older_checkpoint(self):
        """Later ones are no longer the run's, whole or damaged: they are set aside, and the run goes on from where it is."""
        self.train("run", *ARGS, "--steps", 4)
        with open(self.path("run", "checkpoints", "step-00000004", "state.json"), "a") as file:
            file.write(" ")
        self.refused("train", "--resume", self.path("run"), "--steps", 5, words=["step-00000004 is damaged", "step-00000002"])
        done = self.run_program("train", "--resume", self.path("run", "checkpoints", "step-00000002"), "--steps", 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"step-00000004 is later than step 2: it is now in {self.path('run', 'checkpoints', 'set-aside')}",
                      done.stderr)
        self.assertEqual(sorted(os.listdir(self.path("run", "checkpoints"))), ["set-aside", "step-00000002", "step-00000003"])
        self.assertEqual(os.listdir(self.path("run", "checkpoints", "set-aside")), ["step-00000004"])
        done = self.run_program("train", "--resume", self.path("run"), "--steps", 5)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.losses("run"), (self.train("whole", *ARGS, "--steps", 5), self.losses("whole"))[1])

    def test_a_run_in_parts_has_one_line_an_epoch(self):
        """Eight steps an epoch: stopped in the middle of the first, gone on with as it was begun."""
        self.train("run", "-n", 2, *ARGS, "--steps", 3)
        done = self.run_program("train", "--resume", self.path("run"), "--steps", 10)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 workers", done.stdout)
        whole = self.train("whole", *ARGS, "--steps", 10)
        for column in ("epoch", "step", "train_loss"):
            self.assertEqual(*([row[column] for row in self.rows(name, "epochs.csv")] for name in ("run", "whole")), column)
        # Its config.json is a recipe.
        again = self.train("again", "--config", self.path("run", "config.json"))
        self.assertEqual(again["params_sha256"], whole["params_sha256"])


class Finite(Case):
    """Numbers that are not finite are told, and never push out those that are."""

    WILD = [*MLP, "--lanes", "4", "--checkpoint-every", "1", "--eval-every", "0", "--optimizer", "sgd", "--lr", "1e6",
            "--steps", "40"]

    def weights(self, name):
        """Whether the weights of each checkpoint are finite."""
        found = []
        for step in sorted(os.listdir(self.path(name, "checkpoints"))):
            with open(self.path(name, "checkpoints", step, "model.safetensors"), "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                data = file.read()
            values = array.array("f")
            for key, tensor in header.items():
                if key != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    values.frombytes(data[begin:end])
            found.append(all(map(math.isfinite, values)))
        return found

    def test_it_stops(self):
        done = self.run_program("train", "-n", 2, *self.WILD, "--out", self.path("run"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertRegex(done.stderr, r"step (\d+): (the loss is -?(nan|inf) \(lanes? [\d, ]+\)|the first weight that is "
                                      r"not finite is [\w.]+).*stopped.*--on-nan.*the newest checkpoint is .*step-")
        self.assertIn(True, self.weights("run"))
        self.assertNotIn(False, self.weights("run"))
        # What helps is another rate.
        hint = re.search(r"to go on with a smaller rate: lockstep (.*)", done.stderr).group(1)
        self.assertNotIn("to resume", done.stderr)
        again = subprocess.run(["sh", "-c", f"{PROGRAM} {hint} --lr 1e-4 --steps 2"], env=self.environment, text=True,
                               capture_output=True)
        # (These are beyond help: what counts is that the run begins.)
        self.assertIn("with the weights of", again.stdout, again.stderr)
        rows = self.rows("run", "steps.csv")
        self.assertLess(len(rows), 40)
        self.assertTrue(os.path.exists(self.path("run", "index.html")))

    def test_it_goes_on_where_it_is_asked_to(self):
        done = self.run_program("train", *self.WILD, "--on-nan", "go-on", "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("going on", done.stderr)
        self.assertIn("no checkpoint is written", done.stderr)
        self.assertEqual(len(self.losses("run")), 40)
        self.assertIn("nan", self.losses("run"))
        self.assertGreater(self.summary("run")["steps_not_finite"], 0)
        self.assertEqual(set(self.weights("run")), {True})

    def test_it_skips(self):
        """A run whose first rates are wild and whose weights stay finite, because the steps that would harm are left out."""
        done = self.run_program("train", "-n", 2, *self.WILD, "--on-nan", "skip", "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"step \d+: (the loss is|a gradient).*all weights are finite; the step is skipped")
        skipped = self.summary("run")["steps_not_finite"]
        self.assertRegex(done.stdout, rf"not finite +{skipped} of 40 steps.*left out")
        self.assertEqual(len(self.losses("run")), 40)
        self.assertGreater(self.summary("run")["steps_not_finite"], 0)
        self.assertEqual(set(self.weights("run")), {True})
        one = self.train("one", *self.WILD, "--on-nan", "skip")
        self.assertEqual(one["params_sha256"], self.summary("run")["params_sha256"])

    def test_an_ordinary_run_does_not_feel_it(self):
        hashes = {self.train(mode, *LANES, "--steps", 3, "--on-nan", mode)["params_sha256"]
                  for mode in ("stop", "skip")}
        self.assertEqual(len(hashes), 1)
        self.refused("train", "--on-nan", "never", words=["--on-nan", "never", "stop", "skip", "go-on"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
