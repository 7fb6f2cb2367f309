"""A worker that dies in the middle of backward, seen through the public classes.

peer_death_test.py LOCKSTEP PROGRAM ENGINE …
"""
import os
import subprocess
import sys
import unittest

LOCKSTEP, PROGRAM, *ENGINES = sys.argv[1:]


class PeerDeath(unittest.TestCase):
    def test_backward_throws_and_names_the_dead(self):
        self.assertIn("shm", ENGINES)
        for engine in ENGINES:
            with self.subTest(engine=engine):
                self.check(engine=engine)

    def test_inside_a_compressed_exchange(self):
        # All-gathers, two all-reduces one behind the other, an all-to-all and an all-gather, and workers that share a subtree,
        # of which one dies.
        for method, groups in (("topk:0.1:min=0", 4), ("powersgd:rank=1:min=0", 4), ("int8:form=scattered:min=0", 4),
                               ("onebit-adam:min=0", 2)):
            with self.subTest(method=method):
                self.check(method, str(groups))

    def check(self, *args, engine="shm"):
        done = subprocess.run([LOCKSTEP, "run", "-n", "3", "--", PROGRAM, *args], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, LOCKSTEP_ENGINE=engine))
        self.assertNotEqual(done.returncode, 0)
        for rank in (0, 2):
            said = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith(f"[rank {rank}]")]
            self.assertEqual(len(said), 2, done.stdout + done.stderr)
            # The step after it throws the same: once failed, a group stays so.
            for what, line in zip(("backward", "step"), said):
                self.assertRegex(line, f"^{what}: PeerError after [0-9.]+ s: .*rank 1", done.stdout + done.stderr)
                self.assertLess(float(line.split()[3]), 10)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
