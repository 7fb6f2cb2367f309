"""What the tests of `lockstep train` share: one run of the program in a folder of its own."""
import atexit
import csv
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "base"))
from open_files import open_files  # noqa: F401 (for the tests)
from repeated import say_repeated

PROGRAM = os.path.abspath(sys.argv.pop(1))
MLP = ["--model", "mlp", "--data", "synthetic", "--width", "32", "--layers", "2", "--examples", "230",
       "--eval-examples", "60", "--eval-batch", "16", "--lane-batch", "4", "--bucket-cap-mb", "0.05",
       "--first-bucket-mb", "0.01"]
LANES = [*MLP, "--lanes", "8"]
# The machine is measured once for all programs of a run of ctest (tools/test begins with an empty folder), or for all cases
# of a program that is started by hand: measuring takes longer than most runs here.
CACHE = os.environ.get("MEASURED_FOLDER")
if not CACHE:
    CACHE = tempfile.mkdtemp(prefix="lockstep-train-cache-")
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)


def peak_of(pid):
    """The most addresses that a process has had, in bytes; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmPeak:")), 0)
    except OSError:
        return 0


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lockstep-train-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        # Dumps of jobs that fail lie in the temporary folder: they go with the case.
        self.environment = dict(os.environ, LOCKSTEP_CACHE_DIR=CACHE, TMPDIR=self.folder)
        for name in ("RANK", "WORLD_SIZE"):
            self.environment.pop(name, None)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run_program(self, *args, **kwargs):
        kwargs.setdefault("env", self.environment)
        return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=240, **kwargs)

    def train(self, name, *args, **kwargs):
        """Trains into the folder `name`; gives its summary."""
        done = self.run_program("train", "--out", self.path(name), *args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return self.summary(name)

    def summary(self, name):
        with open(self.path(name, "summary.json")) as file:
            return json.load(file)

    def rows(self, name, file):
        with open(self.path(name, file), newline="") as text:
            return list(csv.DictReader(text))

    def losses(self, name):
        return [row["loss"] for row in self.rows(name, "steps.csv")]

    def start(self, name, *args):
        return subprocess.Popen([PROGRAM, "train", "--out", self.path(name), *map(str, args)], env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_until(self, process, holds):
        """Until `holds()` gives something: that. What it looks for may not be there yet."""
        for _ in range(1200):
            try:
                found = holds()
                if found:
                    return found
            except FileNotFoundError:
                pass
            self.assertIsNone(process.poll(), "ended before it was stopped")
            time.sleep(0.05)
        self.fail("no progress")

    def wait_for_steps(self, process, name, count):
        self.wait_until(process, lambda: len(self.rows(name, "steps.csv")) >= count)

    def wait_for_checkpoint(self, process, name, step):
        """Until one of `step` or later is published, and a step is done behind it: there is something to lose. Checkpoints
        are written beside the training, so that the rows of steps.csv say nothing of them."""
        saved = self.wait_until(process, lambda: max((n for n in self.saved_steps(name) if n >= step), default=None))
        self.wait_for_steps(process, name, saved + 1)

    def saved_steps(self, name):
        return [int(n[5:]) for n in os.listdir(self.path(name, "checkpoints")) if n.startswith("step-")]

    def workers_of(self, name):
        """Their process numbers, in the order in which they were started."""
        found = []
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/lockstep-train") and self.path(name).encode() in words[2]:
                found.append(pid)
        return found

    def files_of(self, name):
        """Every file of a run's folder: what is in it, and when it was written."""
        found = {}
        for folder, _, files in os.walk(self.path(name)):
            for file in files:
                path = os.path.join(folder, file)
                with open(path, "rb") as text:
                    found[path] = hashlib.sha256(text.read()).hexdigest(), os.stat(path).st_mtime_ns
        return found

    def change_state(self, checkpoint, change):
        """Edits state.json of a checkpoint, and its manifest, so that it is whole again: as another version wrote it."""
        with open(os.path.join(checkpoint, "state.json")) as file:
            state = json.load(file)
        change(state)
        text = json.dumps(state).encode()
        with open(os.path.join(checkpoint, "state.json"), "wb") as file:
            file.write(text)
        with open(os.path.join(checkpoint, "manifest.json")) as file:
            manifest = json.load(file)
        manifest["files"]["state.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        del manifest["sha256"]
        plain = json.dumps(manifest, separators=(",", ":"), sort_keys=True)
        manifest["sha256"] = hashlib.sha256(plain.encode()).hexdigest()
        with open(os.path.join(checkpoint, "manifest.json"), "w") as file:
            file.write(json.dumps(manifest, indent=1, sort_keys=True) + "\n")

    def refused(self, *args, words=(), status=2, **kwargs):
        done = self.run_program(*args, **kwargs)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        lines = [line for line in done.stderr.splitlines() if line]
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])
