"""What the ranks of an MPI job report when one of them misbehaves, comes late, leaves or dies.

faults_test.py MPIEXEC WORKER
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "base"))
from repeated import say_repeated

MPIEXEC, WORKER = sys.argv[1:3]


def run(name, ranks=3, flags=(), patience_ms=1000):
    """What each rank printed, by rank."""
    # Each mpirun has a folder of its own: two that begin at once in one may both make Open MPI's, and one of them gives up.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([MPIEXEC, *flags, "-n", str(ranks), WORKER, "fault", name],
                              env=dict(os.environ, FAULT_MS=str(patience_ms), TMPDIR=folder),
                              capture_output=True, text=True, timeout=60)
    said = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"rank (\d+): (.*)", line):
            said.setdefault(int(match[1]), []).append(match[2])
    return said, done


def run_without_the_last(name, flags=()):
    """What each rank printed while it waited for rank 2, and for how many seconds. One that is late itself on a
    busy machine is missing too: then again with four times the patience."""
    for patience_ms in (1000, 4000, 16000):
        said, _ = run(name, flags=flags, patience_ms=patience_ms)
        if not any("missing: rank 0" in line or "missing: rank 1" in line for lines in said.values() for line in lines):
            break
        say_repeated(f"faults_test.{name}", f"rank 0 or 1 was late itself, with {patience_ms} ms of patience")
    return said, patience_ms // 1000


# They mostly wait, so they wait together.
POOL = concurrent.futures.ThreadPoolExecutor(4)
RUNS = {name: POOL.submit(run, name, 2 if name == "message" else 3)
        for name in ("killed", "leave", "count", "large", "count-native", "native",
                     "operation", "divisor", "message", "freed-native", "freed-ours", "broken-part", "no-memory")}
RUNS |= {name: POOL.submit(run_without_the_last, name) for name in ("late", "late-native")}


def outcome(name):
    return RUNS[name].result()


class Faults(unittest.TestCase):
    def every_rank(self, said, ranks, *patterns):
        self.assertEqual(sorted(said), list(range(ranks)), said)
        for rank, lines in said.items():
            self.assertEqual(len(lines), 1, said)  # one error, and the same again
            for pattern in patterns:
                self.assertRegex(lines[0], pattern)

    def test_different_counts_are_told_to_every_rank(self):
        for name in ("count", "large"):
            said, _ = outcome(name)
            self.every_rank(said, 3, "^mismatch error: operation 2 of group world: ranks called different things",
                            r"rank \d called all_reduce\(f32 × 8", "rank 2 called all_reduce")

    def test_native_calls_name_everybody(self):
        said, _ = outcome("count-native")
        self.every_rank(said, 3, r"rank 0, 1 called all_reduce\(f32 × 8, sum, by native\); "
                                 r"rank 2 called all_reduce\(f32 × 9, sum, by native\)")

    def test_different_algorithms_and_operations(self):
        said, _ = outcome("native")
        self.every_rank(said, 3, "^mismatch error", "by tree", "by native")
        said, _ = outcome("operation")
        self.every_rank(said, 3, "^mismatch error", "rank 2 called barrier", "called all_reduce")
        said, _ = outcome("divisor")
        self.every_rank(said, 3, "^mismatch error", "over 2", "rank 2 called .* over 3")

    def test_a_message_of_another_length(self):
        said, _ = outcome("message")
        self.every_rank(said, 2, "^mismatch error: group world: rank 0 called recv.*× 8.* but rank 1 called send.*× 7")

    def test_a_late_rank_is_named(self):
        for name in ("late", "late-native"):
            said, seconds = outcome(name)
            self.every_rank(said, 3, rf"^timeout error: .*no answer within {seconds} s on rank [01]; missing: rank 2$")

    def test_memory_that_was_freed_after_a_failure_is_left_alone(self):
        for name in ("freed-native", "freed-ours"):
            with self.subTest(name):
                said, done = outcome(name)
                self.every_rank(said, 3, r"^timeout error: .*no answer within 0.5 s on rank [01]; missing: ")
                self.assertNotRegex(done.stderr, "Segmentation fault|errno = 14")

    def test_a_message_that_mpi_fails_names_the_rank_as_in_the_world(self):
        said, _ = outcome("broken-part")
        self.every_rank(said, 3, r"^system error: receiving from rank 2 \(0 in world/0\.0\): ")

    def test_a_lack_of_memory_leaves_no_request_with_mpi(self):
        said, _ = outcome("no-memory")
        self.every_rank(said, 3, r"^system error: rank 0 is out of memory in all_reduce")

    def test_a_rank_that_leaves_is_named_at_once(self):
        said, _ = outcome("leave")  # whose time would be ten minutes
        self.assertEqual(said.pop(2), ["no error"])
        self.every_rank(said, 2, "^peer error: rank 2 left group world while rank [01] waits for it")

    def test_mpirun_ends_all_when_one_dies(self):
        said, done = outcome("killed")  # whose time would be ten minutes
        self.assertEqual(said.get(2), ["dies"], done.stderr)  # it was there
        self.assertNotEqual(done.returncode, 0)

    def test_survivors_report_when_mpirun_lets_them_live(self):
        version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True).stdout
        if "Open MPI" not in version and "OpenRTE" not in version:
            self.fail(f"{version.splitlines()[0]} has no --enable-recovery; this test is for Open MPI")
        said, seconds = run_without_the_last("killed-alone", flags=["--enable-recovery"])
        self.assertEqual(said.pop(2), ["dies"])
        self.every_rank(said, 2, rf"^timeout error: .*no answer within {seconds} s on rank [01]; missing: rank 2$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
