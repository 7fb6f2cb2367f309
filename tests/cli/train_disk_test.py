#!/usr/bin/env python3
"""`lockstep train` on disks that are slow, full or broken: train_disk_test.py PATH_TO_LOCKSTEP [TEST_CLASS]

DISK_SHIM is the library that makes them so (disk_shim.cc)."""
import glob
import os
import shutil
import signal
import subprocess
import time
import unittest

from train_case import LANES, PROGRAM, Case, say_repeated


class Disk(Case):
    def faults(self, rules, **variables):
        """The environment in which these go wrong."""
        return dict(self.environment, LD_PRELOAD=os.environ["DISK_SHIM"], DISK_FAULTS=rules, **variables)

    def checkpoints(self, name):
        return sorted(os.listdir(self.path(name, "checkpoints")))

    def test_a_slow_one_is_no_lost_rank(self):
        args = [*LANES, "--checkpoint-every", 2]
        for timeout_s in (2, 8, 32):  # all else has to be quicker than that: where it was not, again with more
            ms = 1000 * timeout_s + 1500
            slow = self.faults(f"fsync .staging/model.safetensors@1 delay_ms={ms}; "
                               f"open step-00000002/model.safetensors@1 delay_ms={ms}", LOCKSTEP_TIMEOUT_S=str(timeout_s))
            shutil.rmtree(self.path("run"), ignore_errors=True)

            def delayed(*words):
                began = time.monotonic()
                done = self.run_program("train", "-n", 2, *words, env=slow)
                if done.returncode == 0:
                    self.assertGreaterEqual(time.monotonic() - began, ms / 1000, "nothing was slow")
                return done

            done = delayed(*args, "--steps", 2, "--out", self.path("run"))
            if done.returncode == 0:
                done = delayed("--resume", self.path("run"), "--steps", 4)
            if done.returncode == 0 or "no answer within" not in done.stderr:
                break
            say_repeated(self.id(), f"within {timeout_s} s: {done.stderr}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("run")["params_sha256"], self.train("whole", *args, "--steps", 4)["params_sha256"])

    def test_a_new_folder_of_a_sweep_is_synced(self):
        """Its runs may have checkpoints, which are as safe as the names above them."""
        broken = self.faults(f"fsync {self.path('new')}@1 errno=5")
        self.refused("sweep", "bucket_cap_mb", "--values", "1", *LANES, "--steps", 1, "--out", self.path("new", "sweep"),
                     env=broken, words=[f"cannot sync the folder {self.path('new')}: "])

    def test_a_dead_writer_is_noticed_at_once(self):
        stuck = self.faults("fsync .staging/model.safetensors delay_ms=600000")
        with subprocess.Popen([PROGRAM, "train", "--out", self.path("run"), "-n", "2", *LANES, "--steps", "4",
                               "--checkpoint-every", "2"], env=stuck, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            while not os.path.exists(self.path("run", "checkpoints", ".staging", "model.safetensors")):
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            os.kill(self.workers_of("run")[0], signal.SIGKILL)
            out, err = process.communicate(timeout=60)  # LOCKSTEP_TIMEOUT_S is ten minutes
        self.assertEqual(process.returncode, 1, out + err)
        self.assertRegex(err, "rank 0 of group world died")

    def test_told_twice_while_it_hangs(self):
        stuck = self.faults("fsync .staging/model.safetensors@2 delay_ms=600000")
        with subprocess.Popen([PROGRAM, "train", "--out", self.path("run"), "-n", "2", *LANES, "--steps", "8",
                               "--checkpoint-every", "2"], env=stuck, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            while not (os.path.exists(self.path("run", "checkpoints", "step-00000002")) and
                       os.path.exists(self.path("run", "checkpoints", ".staging", "model.safetensors"))):
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            self.assertIn("once more, after 3 s, stops at once", process.stderr.readline())
            until = time.monotonic() + 10
            while not glob.glob(self.path("lockstep-*", "stop-*")):
                self.assertLess(time.monotonic(), until, "its launcher has put up no sign")
                time.sleep(0.02)  # until its launcher has heard of it, too
            time.sleep(3)  # until then it would be the same telling
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out + err)
        newest = self.path("run", "checkpoints", "step-00000002")
        self.assertIn(f"SIGINT again: stopping at once; what came after {newest} is lost", err)
        self.assertIn(f"stopped by SIGINT; the newest checkpoint is {newest}; to resume: lockstep train --resume", err)

    def test_a_worker_that_is_killed_while_it_writes_its_part(self):
        args = [*LANES, "--strategy", "zero2", "--checkpoint-every", 2]
        for number, instant in enumerate(("open .staging/optimizer-00001", "fsync .staging/model-00001",
                                          "fsync .staging/model-00000", "fsync .staging/manifest.json")):
            name = f"run{number}"
            done = self.run_program("train", "-n", 2, *args, "--steps", 8, "--out", self.path(name),
                                    env=self.faults(f"{instant}@2 kill"))
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            # The one before it is there, and whole.
            self.assertIn("step-00000002", self.checkpoints(name), instant)
            self.assertEqual(self.run_program("checkpoint", "verify", self.path(name)).returncode, 0, instant)
            done = self.run_program("train", "--resume", self.path(name), "-n", 1, "--strategy", "ddp", "--steps", 8)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(any(entry.startswith(".") for entry in self.checkpoints(name)), self.checkpoints(name))
            if number == 0:
                whole = self.train("whole", *args, "--steps", 8)["params_sha256"]
            self.assertEqual(self.summary(name)["params_sha256"], whole, instant)

    def test_a_full_one(self):
        """A file system of its own, which really has no room left."""
        disk = self.path("disk")
        os.mkdir(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "none", disk], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no small file system can be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        # A checkpoint takes 400 KB: two stay, and there is no room for a third beside them.
        done = self.run_program("train", "-n", 2, *LANES, "--steps", 30, "--checkpoint-every", 4, "--out",
                                self.path("disk/run"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("No space left on device", done.stderr)
        self.assertEqual(self.checkpoints("disk/run"), ["step-00000004", "step-00000008"])
        # Nothing was lost: with more room the run goes on from there.
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        done = self.run_program("train", "--resume", self.path("disk/run"), "--steps", 14)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("disk/run")["params_sha256"],
                         self.train("whole", *LANES, "--steps", 14)["params_sha256"])
        self.assertEqual(self.losses("disk/run"), self.losses("whole"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
