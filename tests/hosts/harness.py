"""What the tests of this room share: tools/hosts, and sets of hosts that are gone when the test is."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "base"))
from repeated import say_repeated

TOOL = str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "hosts")
SKIPPED = 77


def hosts(*words, check=True, timeout=60, **options):
    """Runs tools/hosts; gives what it did."""
    done = subprocess.run([sys.executable, TOOL, *map(str, words)], capture_output=True, text=True, timeout=timeout,
                          **options)
    if check and done.returncode != 0:
        raise AssertionError(f"tools/hosts {' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def left(name):
    """What there is of a set: namespaces, folder, processes that know its name."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    found = [space for space in spaces if space.startswith(f"lockstep.{name}.")]
    if os.path.exists(f"/run/lockstep-hosts/{name}"):
        found.append(f"/run/lockstep-hosts/{name}")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"HOSTS_SET={name}".encode() in file.read().split(b"\0"):
                    found.append(f"process {pid}")
        except OSError:
            continue
    return found


def main():
    """Runs the tests of the calling script; where hosts can't be made it says why and is counted as skipped."""
    able = hosts("check", check=False)
    if able.returncode == SKIPPED:
        print(f"skipped: {able.stdout.strip()}")
        sys.exit(SKIPPED)
    assert able.returncode == 0, able.stdout + able.stderr
    unittest.main(verbosity=2)


class Case(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="lockstep-hosts-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def name(self, suffix=""):
        """Of a set for this test; whatever is there of it goes when the test ends."""
        name = f"{self._testMethodName[5:25]}-{os.getpid()}{suffix}"
        self.addCleanup(hosts, "down", "--name", name)
        return name

    def up(self, count, *flags):
        name = self.name()
        hosts("up", count, "--name", name, *flags)
        return name

    def exec(self, name, host, *command, **options):
        return hosts("exec", host, "--name", name, "--", *command, **options)

    def begin(self, name, host, *command, **options):
        """Begins a command on a host and does not wait for it."""
        process = subprocess.Popen([sys.executable, TOOL, "exec", host, "--name", name, "--", *command], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process
