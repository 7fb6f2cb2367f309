#!/usr/bin/env python3
"""`lockstep bench` and `lockstep tune` of a program with one algorithm more: added_algorithm_test.py PATH_TO_PROGRAM"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
TEMPORARY = tempfile.TemporaryDirectory(prefix="lockstep-added-")
os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY.name
os.environ["LOCKSTEP_CACHE_DIR"] = TEMPORARY.name


def rows(*args, **variables):
    done = subprocess.run([PROGRAM, *args, "--json"], capture_output=True, text=True, timeout=120, env=dict(os.environ, **variables))
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


class AddedAlgorithm(unittest.TestCase):
    def test_bench_measures_it_on_every_engine(self):
        found = rows("bench", "all_reduce", "-n", "2", "--sizes", "4K", "--engines", "shm,tcp", "--algorithms", "all",
                     "--iterations", "5", "--warmup", "1", LOCKSTEP_CACHE_DIR="off")  # every algorithm is asked for: none is chosen
        by = {(row["engine"], row["algorithm"]): row for row in found}
        for engine in ("shm", "tcp"):
            self.assertIn((engine, "star"), by)
            self.assertTrue(by[engine, "star"]["checked"])
        self.assertIn(("shm", "shared-star"), by)
        self.assertNotIn(("tcp", "shared-star"), by)

    def test_tune_times_and_predicts_it(self):
        found = [row for row in rows("tune", "-n", "2", "--sizes", "4K", "--memory", "comm", "--min-time", "0.002")
                 if row.get("algorithm") == "star"]
        self.assertEqual(len(found), 1, found)
        self.assertGreater(found[0]["us"], 0)
        self.assertGreater(found[0]["predicted_us"], 0)
        self.assertTrue(found[0]["canonical"])


if __name__ == "__main__":
    unittest.main()
