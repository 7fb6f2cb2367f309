"""Gives tools/test_loaded a tree whose tests are known: test_loaded_test.py TOOLS"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(sys.argv.pop(1))
# A test's parent is ctest, whose parent is the tool: its other children are the busy loops.
LOOPS = """
import os, pathlib, time
def stat(process):
    return (pathlib.Path("/proc") / str(process) / "stat").read_text()
tool = stat(os.getppid()).rpartition(")")[2].split()[1]
def children():
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, _, rest = stat(process).partition("(")[2].rpartition(")")
        except OSError:
            continue
        if rest.split()[1] == tool:
            yield name
while {"setpriv", "taskset"} & set(names := list(children())):  # on their way to become loops
    time.sleep(0.01)
assert names.count("sh") == 3, names
"""


class Loaded(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.out = pathlib.Path(folder.name) / "tree", pathlib.Path(folder.name) / "out"
        (self.root / "tools").mkdir(parents=True)
        for tool in ("test_loaded", "test_report"):
            shutil.copy(TOOLS / tool, self.root / "tools")

    def plant(self, **commands):
        (self.root / "build/release").mkdir(parents=True)
        (self.root / "build/release/CTestTestfile.cmake").write_text(
            "".join(f'add_test({name} "sh" "-c" [==[{command}]==])\n' for name, command in commands.items()))

    def loaded(self, *flags):
        done = subprocess.run([sys.executable, self.root / "tools/test_loaded", "--cores", "1", "--out", self.out, *flags],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def test_every_run_has_its_loops(self):
        script = self.root / "loops.py"
        script.write_text(LOOPS)
        self.plant(beside=f"exec '{sys.executable}' '{script}'")
        status, output = self.loaded("--runs", "2", "--load", "3")
        self.assertEqual(status, 0, output)
        self.assertEqual(len(re.findall(r"^run [12]: 1 tests, 0 failed, 0 skipped, ", output, re.MULTILINE)), 2, output)
        self.assertTrue(output.endswith("2 of 2 runs came to their end, 0 tests failed in one or more\n"), output)
        status, output = self.loaded("--runs", "1", "--load", "2", "--out", self.out / "fewer")
        self.assertEqual(status, 1, output)

    def test_what_fails_now_and_then_is_named(self):
        self.plant(good="true", moody=f"echo x >>{self.out}/seen; test $(wc -l <{self.out}/seen) != 2")
        status, output = self.loaded("--runs", "3", "--load", "0")
        self.assertEqual(status, 1, output)
        self.assertIn("\nfailed: moody in run 2\n3 of 3 runs came to their end, 1 tests failed in one or more\n", output)
        self.assertNotIn("good in", output)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two cores are needed")
    @unittest.skipIf(shutil.which("ip") is None, "ip (iproute2) is needed")
    def test_runs_at_a_time_are_apart(self):
        # The second of two that share a tree, a network or shared memory would find what the first left.
        mark = "test ! -e {0} && touch {0} && sleep 1"
        self.plant(tree=mark.format(self.root / "build/mark"), memory=mark.format("/dev/shm/test_loaded_mark"),
                   network="test \"$(ls /sys/class/net | tr '\\n' ' ')\" = 'card lo loose '")
        status, output = self.loaded("--runs", "2", "--load", "1", "--at-once", "2")
        self.assertEqual(status, 0, output)
        self.assertFalse((self.root / "build/mark").exists())
        self.assertFalse(pathlib.Path("/dev/shm/test_loaded_mark").exists())

    @unittest.skipIf(shutil.which("ip") is None, "ip (iproute2) is needed")
    def test_runs_together_share_their_cores(self):
        seen = self.root.parent / "seen"
        self.plant(meets=f"grep Cpus_allowed_list /proc/self/status >>{seen}; n=0; "
                         f"until test $(wc -l <{seen}) = 2; do n=$((n + 1)); test $n -lt 600 || exit 1; sleep 0.1; done")
        status, output = self.loaded("--runs", "2", "--load", "0", "--at-once", "2", "--together")
        self.assertEqual(status, 0, output)
        cores = seen.read_text().splitlines()
        self.assertEqual((len(cores), len(set(cores))), (2, 1), cores)

    def test_no_test_is_no_success(self):
        self.plant(good="true")
        status, output = self.loaded("--runs", "1", "--load", "0", "--", "-R", "nothing")
        self.assertEqual(status, 1, output)
        self.assertIn("0 of 1 runs came to their end", output)

    def test_refusals(self):
        status, output = self.loaded("--runs", "1")
        self.assertEqual(status, 2, output)
        self.assertIn("run tools/build release first", output)
        self.plant(good="true")
        for flags, said in ((["--runs", "0"], "at least 1"), (["--at-once", "9999"], "cores; "),
                            (["--at-once", "2", "--out", self.root / "out"], "outside of the tree")):
            status, output = self.loaded(*flags)
            self.assertEqual(status, 2, output)
            self.assertIn(said, output)


if __name__ == "__main__":
    unittest.main()
