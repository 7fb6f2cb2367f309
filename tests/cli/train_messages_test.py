#!/usr/bin/env python3
"""What a run says, and to whom: train_messages_test.py PATH_TO_LOCKSTEP [TEST_CLASS]

DISK_SHIM is the library that makes disks fail (disk_shim.cc)."""
import os
import re
import signal
import subprocess
import unittest

from train_case import LANES, MLP, PROGRAM, Case


class Messages(Case):
    def test_what_one_worker_is_refused_all_are(self):
        """None takes another for lost, and no flight recorder is left."""
        os.mkdir(self.path("tmp"))
        self.train("run", *LANES, "--steps", 1)
        done = self.run_program("run", "-n", 2, PROGRAM, "train", *LANES, "--steps", 1, "--out", self.path("run"),
                                env=dict(self.environment, TMPDIR=self.path("tmp")))
        self.assertEqual(done.returncode, 1, done.stderr)
        for rank in (0, 1):
            self.assertRegex(done.stderr, rf"\[rank {rank}\] lockstep train: --out .* is not empty")
        self.assertNotIn("left group", done.stderr)
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_output_that_is_lost_is_no_success(self):
        self.train("run", *LANES, "--steps", 1)
        worker = dict(self.environment, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT="29575")
        for args, env in ((["infer", "--resume", self.path("run")], self.environment),
                          (["train", *LANES, "--steps", "1", "--json", "--out", self.path("lost")], worker)):
            with self.subTest(command=args[0]), open("/dev/full", "w") as full:
                done = subprocess.run([PROGRAM, *args], env=env, stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("standard output can't be written", done.stderr)

    def test_the_log_is_there_for_who_asks_for_it(self):
        for level, there in (("info", True), ("", False)):
            done = self.run_program("train", "--out", self.path("run"), "--overwrite", "-n", 2, *LANES, "--steps", 2, "--engine", "tcp",
                                    env=dict(self.environment, LOCKSTEP_LOG=level))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("rank 1 info: rank 1 listens on" in done.stderr, there, done.stderr)

    def test_flags_that_mean_nothing(self):
        for args, words in [(["--steps", "0"], ["--steps '0'", "1 or more"]),
                            (["--epochs", "0"], ["--epochs '0'", "1 or more"]),
                            (["--seed", "-1"], ["--seed", "'-1'", "0 to 18446744073709551615"])]:
            with self.subTest(args=args):
                self.refused("train", *MLP, *args, "--out", self.path("none"), words=words)
        self.assertFalse(os.path.exists(self.path("none")))

    def test_the_hint_can_be_pasted(self):
        name = "it's $HOME `here` \"x\" (1) & 2"
        process = self.start(name, *LANES, "--steps", "100000")
        self.wait_for_steps(process, name, 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        hint = re.search(r"to resume: lockstep (.*)", err).group(1)
        steps = len(self.rows(name, "steps.csv"))
        done = subprocess.run(["sh", "-c", f"{PROGRAM} {hint} --steps {steps + 1}"], env=self.environment,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary(name)["steps"], steps + 1)

    def test_names_that_are_not_utf8(self):
        bad = b"\xff\xfe".decode(errors="surrogateescape")
        for flag in ("--out", "--data", "--resume"):
            with self.subTest(flag=flag):
                self.refused("train", *MLP, "--steps", 1, flag, self.path(bad), words=[flag, "not UTF-8"])
        self.refused("infer", "--resume", self.path(bad), words=["--resume", "not UTF-8"])
        os.mkdir(self.path(bad))
        self.refused("train", *MLP, "--steps", 1, "--out", "run", cwd=self.path(bad), words=["current folder", "not UTF-8"])

    def test_cifar10_without_its_test_file(self):
        os.mkdir(self.path("data"))
        for i in range(1, 6):
            with open(self.path("data", f"data_batch_{i}.bin"), "wb") as file:
                file.write(bytes(3073))
        self.refused("train", "--data", self.path("data"), "--out", self.path("none"), words=["no file", "test_batch.bin"])

    def test_a_malformed_line_does_not_keep_a_run_from_going_on(self):
        self.train("run", *LANES, "--steps", 3)
        with open(self.path("run", "steps.csv")) as file:
            lines = file.read().splitlines()
        lines[2] = "2,what,is,this"
        with open(self.path("run", "steps.csv"), "w") as file:
            file.write("\n".join(lines) + "\n")
        done = self.run_program("train", "--resume", self.path("run"), "--steps", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row["step"] for row in self.rows("run", "steps.csv")], ["1", "3", "4"])

    def test_a_checkpoint_of_a_newer_version(self):
        self.train("run", *LANES, "--steps", 1)
        checkpoint = self.path("run", "checkpoints", "step-00000001")
        self.change_state(checkpoint, lambda state: state.update(format=2))
        for command in ("train", "infer"):
            self.refused(command, "--resume", self.path("run"), words=["state.json has format 2", "accepted: 1"])

    def test_reading_beside_a_run_that_prunes(self):
        process = self.start("run", *LANES, "--steps", "100000", "--checkpoint-every", "1", "--keep", "1", "--eval-every", "0")
        self.wait_for_steps(process, "run", 3)
        found = [self.run_program("infer", "--resume", self.path("run"), "--examples", 2) for _ in range(3)]
        slow = dict(self.environment, LD_PRELOAD=os.environ["DISK_SHIM"],
                    DISK_FAULTS="open /model.safetensors@1 delay_ms=1500")
        found.append(self.run_program("train", "--init", self.path("run"), "--data", "synthetic", "--steps", 1, "--out",
                                      self.path("new"), env=slow))
        process.send_signal(signal.SIGINT)  # and its workers end before it does
        process.communicate(timeout=60)
        self.assertEqual([(done.returncode, done.stderr) for done in found], [(0, "")] * 4)


if __name__ == "__main__":
    unittest.main(verbosity=1)
