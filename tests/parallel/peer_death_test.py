"""A worker that dies in the middle of backward, seen through the public classes.

peer_death_test.py LOCKSTEP PROGRAM
"""
import subprocess
import sys
import unittest

LOCKSTEP, PROGRAM = sys.argv[1:3]


class PeerDeath(unittest.TestCase):
    def test_backward_throws_and_names_the_dead(self):
        done = subprocess.run([LOCKSTEP, "run", "-n", "3", "--", PROGRAM], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        for rank in (0, 2):
            said = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith(f"[rank {rank}]")]
            self.assertEqual(len(said), 2, done.stdout + done.stderr)
            # The step after it throws the same: once failed, a group stays so.
            for what, line in zip(("backward", "step"), said):
                self.assertRegex(line, f"^{what}: PeerError: .*rank 1", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
