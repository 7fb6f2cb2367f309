"""--engine takes what LOCKSTEP_ENGINE takes, and beats it."""
import json
import os
import re
import unittest

from train_case import MLP, PROGRAM, Case

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
RUN = [*MLP, "--lanes", 3, "--steps", 2, "--eval-every", 0, "-n", 2]
WORDS = "auto, shm, tcp, mpi, gloo, ipc, nccl, shm+tcp, shm+mpi, shm+gloo, tcp+tcp, tcp+gloo"


class Engines(Case):
    def refusal(self, *args, **variables):
        done = self.run_program(*args, env=dict(self.environment, **variables))
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def built(self):
        """Without what this build says that it lacks."""
        message = self.refusal("train", *RUN, "--engine", "none")
        self.assertIn(f"--engine 'none' is not understood; accepted: {WORDS}", message)
        missing = re.search(r"not in this build: ([^)]*)", message)
        there = [word for word in WORDS.split(", ") if not missing or word not in missing.group(1).split(", ")]
        if "BUILT_ENGINES" in os.environ:  # ctest says what was built, not the program
            self.assertEqual([word for word in there if word in ("shm", "tcp", "mpi", "gloo")],
                             os.environ["BUILT_ENGINES"].split(","))
        return there

    def test_every_word(self):
        hashes = set()
        for engine in self.built():
            if engine.endswith("mpi"):
                continue  # for workers that mpirun started
            # On one machine a mixture is shared memory alone, unless it is taken for two, with two workers and one.
            summary = self.train(engine, *RUN, "-n", 3, "--engine", engine,
                                 env=dict(self.environment, LOCKSTEP_NODE_SIZE="2"))
            self.assertEqual(summary["engine"], "shm" if engine == "auto" else engine)
            hashes.add(summary["params_sha256"])
        self.assertEqual(len(hashes), 1)
        if "mpi" in self.built():
            done = self.run_program("train", *RUN, "--engine", "mpi", "--out", self.path("mpi"))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("start the job with mpirun", done.stderr)

    def test_the_flag_beats_the_variable(self):
        wires = dict(self.environment, LOCKSTEP_ENGINE="tcp")
        self.assertEqual(self.train("variable", *RUN, env=wires)["engine"], "tcp")
        self.assertEqual(self.train("flag", *RUN, "--engine", "shm", env=wires)["engine"], "shm")
        self.assertEqual(self.train("auto", *RUN, "--engine", "auto", env=wires)["engine"], "shm")
        unknown = dict(self.environment, LOCKSTEP_ENGINE="none")
        self.assertEqual(self.train("known", *RUN, "--engine", "tcp", env=unknown)["engine"], "tcp")
        # A recipe says which engine only where its run was told.
        done = self.run_program("train", "--config", self.path("variable", "config.json"), "--out", self.path("again"),
                                env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("again")["engine"], "shm")

    def test_under_a_launcher(self):
        done = self.run_program("run", "-n", 2, "--", PROGRAM, "train", *RUN[:-2], "--engine", "tcp", "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("run")["engine"], "tcp")

    def test_the_other_commands(self):
        done = self.run_program("bench", "step", "-n", 2, "--model", "mlp", "--width", 64, "--layers", 1, "--steps", 4,
                                "--engine", "tcp", "--json")
        self.assertEqual(json.loads(done.stdout)["engine"], "tcp", done.stderr)
        done = self.run_program("sweep", "engine", "--values", "shm,tcp", *RUN, "--out", self.path("sweep"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for engine in ("shm", "tcp"):
            self.assertEqual(self.summary(f"sweep/engine-{engine}")["engine"], engine)
        done = self.run_program("bench", "all_reduce", "-n", 3, "--sizes", "4K", "--engine", "shm+tcp,tcp", "--iterations",
                                3, "--json", env=dict(self.environment, LOCKSTEP_ENGINE="tcp", LOCKSTEP_NODE_SIZE="2"))
        self.assertEqual({json.loads(line)["engine"] for line in done.stdout.splitlines()}, {"shm+tcp", "tcp"}, done.stderr)

    def test_a_wrong_one_is_told_at_once(self):
        for command in (["train", *RUN], ["sweep", "lr", "--values", "1", *RUN], ["bench", "step"], ["bench", "all_reduce"]):
            message = self.refusal(*command, "--engine", "shm+tpc")
            self.assertIn(f"'shm+tpc' is not understood; accepted: {WORDS}", message)
            self.assertIn("Did you mean 'shm+tcp'?", message)
            message = self.refusal(*command, LOCKSTEP_ENGINE="tpc")
            self.assertIn(f"LOCKSTEP_ENGINE 'tpc' is not understood; accepted: {WORDS}", message)
        self.assertFalse(os.path.exists(self.path("runs")))

    def test_the_help_and_the_table_agree(self):
        with open(os.path.join(ROOT, "docs", "variables.md")) as file:
            self.assertIn(f"| `LOCKSTEP_ENGINE` | what carries the collectives: {WORDS} |", file.read())
        for command in (["train"], ["sweep"], ["bench", "step"], ["bench"]):
            text = " ".join(self.run_program(*command, "--help").stdout.split())
            self.assertIn(WORDS, text, command)


if __name__ == "__main__":
    unittest.main(verbosity=1)
