"""Training runs across hosts: what the tests of jobs share."""
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from train_case import PROGRAM, Case as TrainCase  # takes the program's path out of sys.argv
import harness
from harness import TOOL, hosts

# An epoch ends with a step in which some lanes carry less, or nothing; two buckets.
MODEL = ["--model", "mlp", "--data", "synthetic", "--width", "32", "--layers", "2", "--examples", "60",
         "--eval-examples", "40", "--eval-batch", "9", "--lane-batch", "3", "--lanes", "8", "--optimizer", "sgd",
         "--lr", "0.01", "--seed", "1", "--bucket-cap-mb", "0.1", "--first-bucket-mb", "0.05"]
FREE = ["--steps", "1000000"]  # until something ends it
JOIN = ["--rdzv-conf", "join_timeout=60"]


class Case(harness.Case, TrainCase):
    """HOSTS hosts for all tests of a class, and runs across them."""

    HOSTS = 2

    @classmethod
    def setUpClass(cls):
        cls.set = f"{cls.__name__.lower()}-{os.getpid()}"
        cls.addClassCleanup(hosts, "down", "--name", cls.set)
        hosts("up", cls.HOSTS, "--name", cls.set)

    def setUp(self):
        super().setUp()
        self.environment |= {"HOSTS_SET": self.set, "TMPDIR": self.folder,  # where flight records go
                             "LOCKSTEP_LOG": "info"}
        self.addCleanup(self.calm)

    def calm(self):
        """No test sees what the one before it did."""
        for i in range(1, self.HOSTS + 1):
            hosts("heal", i, "--name", self.set)

    def job(self, per_host, name, *args, flags=(), **variables):
        """Starts a run on all hosts; its output, every line of every host, goes to the file NAME.txt."""
        words = [sys.executable, TOOL, "run", "-n", str(per_host), "--lockstep", PROGRAM, *JOIN, *flags, "--", PROGRAM,
                 "train", "--out", self.path(name), *map(str, args)]
        with open(self.path(f"{name}.txt"), "w") as output:
            process = subprocess.Popen(words, env=self.environment | variables, stdout=output, stderr=output,
                                       stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def said(self, name):
        return pathlib.Path(self.path(f"{name}.txt")).read_text()

    def trained(self, per_host, *args, **options):
        """A run to its end; gives its bits."""
        process = self.job(per_host, "run", *MODEL, "--steps", 5, "--overwrite", *args, **options)
        self.assertEqual(process.wait(120), 0, self.said("run"))
        return self.bits("run")

    def alone(self, steps=5):
        """What one worker gets on the machine itself."""
        self.train("alone", "-n", 1, *MODEL, "--steps", steps, "--overwrite")
        return self.bits("alone")

    def bits(self, name):
        summary = self.summary(name)
        return {"params_sha256": summary["params_sha256"], "validation_loss": summary["validation_loss"],
                "losses": self.losses(name), "steps": summary["steps"]}

    def check_job(self, workers, engine):
        """What the last run was: so many workers, over this engine and no other."""
        summary = self.summary("run")
        self.assertEqual((summary["workers"], summary["engine"]), (workers, engine))

    # What runs

    def processes(self):
        """Of the set's jobs: process → its words, its environment, its host."""
        spaces = {os.stat(f"/run/netns/lockstep.{self.set}.host{i}").st_ino: i for i in range(1, self.HOSTS + 1)}
        found = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                host = spaces.get(os.stat(f"/proc/{pid}/ns/net").st_ino)
                if host is None:
                    continue
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            except OSError:
                continue  # it is gone
            found[pid] = (words, dict(entry.split("=", 1) for entry in entries if "=" in entry), host)
        return found

    def worker(self, rank):
        return next(pid for pid, (words, environment, _) in self.processes().items()
                    if words[0].endswith("/lockstep-train") and environment.get("RANK") == str(rank))

    def agent(self, host):
        """The first of a host: its guardian, which it started, comes after it."""
        return min(pid for pid, (words, _, at) in self.processes().items() if at == host and "--node-rank" in words)

    def listening(self):
        """host → addresses on which something listens there."""
        shown = {i: self.exec(self.set, i, "ss", "-Hltn").stdout for i in range(1, self.HOSTS + 1)}
        return {i: [line.split()[3] for line in text.splitlines()] for i, text in shown.items()}

    def check_nothing_is_left(self):
        until = time.monotonic() + 20  # in which those that were killed, and guardians, come to their end
        while self.processes() and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(self.processes(), {})
        for i, addresses in self.listening().items():
            self.assertEqual(addresses, [])
            self.assertEqual(self.exec(self.set, i, "ss", "-Hxl").stdout, "", "sockets of the abstract namespace")
        self.assertEqual([name for name in os.listdir("/dev/shm") if "lockstep" in name], [])

    def lines_of(self, name, rank):
        return [line for line in self.said(name).splitlines() if re.match(rf"(host\d\| )?\[rank {rank}\] ", line)]
