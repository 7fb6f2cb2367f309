#!/usr/bin/env python3
"""`lockstep bench` as people and scripts run it: bench_program_test.py PATH_TO_LOCKSTEP"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM = os.path.abspath(sys.argv.pop(1))
FAST = ["--iterations", "5", "--warmup", "1"]
FIELDS = {
    "op": str, "engine": str, "algorithm": str, "workers": int, "bytes": int, "memory": str, "us": float,
    "algbw_gbs": float, "busbw_gbs": float, "us_min": float, "us_p25": float, "us_p75": float, "us_max": float,
    "iterations": int, "dtype": str, "reduction": str, "checked": bool,
}
PEERS = ("mpi", "gloo")  # what others wrote; tcp is ours and may be faster than they are
OPS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
       "barrier", "send_recv"]


def run(*args, **kwargs):
    return subprocess.run([PROGRAM, "bench", *args], capture_output=True, text=True, timeout=120, **kwargs)


def built_engines():
    """What this build has, from the refusal of what no build has."""
    message = run("all_reduce", "--engines", "none").stderr
    return [w for w in ("shm", "tcp", "mpi", "gloo") if w in message.split("accepted:")[1]]


class Bench(unittest.TestCase):
    def rows(self, *args):
        done = run(*args, *FAST, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        for row in rows:
            for name, kind in FIELDS.items():
                self.assertIsInstance(row[name], (int, float) if kind is float else kind, name)
            self.assertTrue(row["checked"], row)
            self.assertLessEqual(row["us_min"], row["us_p25"])
            self.assertLessEqual(row["us_p25"], row["us"])
            self.assertLessEqual(row["us"], row["us_p75"])
            self.assertLessEqual(row["us_p75"], row["us_max"])
        return rows

    def test_all_engines_side_by_side(self):
        for workers in (2, 3):
            with self.subTest(workers=workers):
                rows = self.rows("all_reduce", "-n", str(workers), "--sizes", "4K,96K", "--memory", "comm,private")
                self.assertEqual({r["engine"] for r in rows}, set(built_engines()))
                self.assertEqual({r["bytes"] for r in rows}, {4096, 98304})
                self.assertEqual({r["memory"] for r in rows if r["engine"] == "shm"}, {"comm", "private"})
                for r in rows:
                    self.assertEqual((r["op"], r["workers"], r["iterations"]), ("all_reduce", workers, 5))
                    self.assertAlmostEqual(r["busbw_gbs"], r["algbw_gbs"] * 2 * (workers - 1) / workers)
                    self.assertAlmostEqual(r["algbw_gbs"], r["bytes"] / r["us"] / 1e3)
                    self.assertAlmostEqual(r["floor_ratio"], r["us"] / r["floor_us"])
                peers = [r for r in rows if r["engine"] in PEERS and r["bytes"] == 4096]
                if peers:
                    best = min(r["us"] for r in peers)
                    for r in rows:
                        if r["bytes"] == 4096:
                            self.assertAlmostEqual(r["peer_ratio"], r["us"] / best)

    def test_every_collective_by_our_launcher(self):
        for op in OPS:
            with self.subTest(op=op):
                rows = self.rows(op, "-n", "2", "--sizes", "4K", "--engines", "shm", "--algorithms", "all")
                self.assertIn("auto", {r["algorithm"] for r in rows})
                if op not in ("barrier", "send_recv"):  # which have one way only
                    self.assertGreater(len(rows), 1)

    def test_one_worker_and_other_types(self):
        self.rows("all_reduce", "-n", "1", "--sizes", "4K", "--engines", "shm")
        rows = self.rows("all_reduce", "--sizes", "4K", "--engines", "shm", "--dtype", "bf16", "--op", "avg")
        self.assertEqual((rows[0]["dtype"], rows[0]["reduction"]), ("bf16", "avg"))

    def test_table_and_plot(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = os.path.join(folder, "plot.svg")
            done = run("all_reduce", "--sizes", "4K,64K", "--engines", "shm", "--plot", plot, *FAST)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("\033", done.stdout)
            self.assertIn("busbw GB/s", done.stdout)
            self.assertRegex(done.stdout, r"Fastest: .*shm auto \(comm memory\)")
            root = xml.etree.ElementTree.parse(plot).getroot()
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            self.assertEqual(len(root.findall("{*}polyline")), 2)  # the variant and the floor

    def test_bad_usage_is_one_line_and_status_2(self):
        for args, words in [
            (["all_reduse"], ["all_reduse", "all_reduce"]),
            (["all_reduce", "--engines", "shm,tpc"], ["--engines", "tpc", "tcp"]),
            (["all_reduce", "--sizes", "4Q"], ["--sizes", "4Q"]),
            (["all_reduce", "-n", "0"], ["-n"]),
            (["all_reduce", "--memory", "gpu"], ["--memory", "comm"]),
            (["all_reduce", "--dtype", "f31"], ["--dtype", "f31"]),
            (["all_reduce", "--engines", "shm", "--algorithms", "rign"], ["--algorithms", "rign", "ring"]),
            (["all_reduce", "--plot", "/nonexistent/plot.svg"], ["--plot", "/nonexistent/plot.svg"]),
            (["all_reduce", "--bogus"], ["--bogus"]),
            ([], ["collective"]),
        ]:
            with self.subTest(args=args):
                done = run(*args)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                lines = [l for l in done.stderr.splitlines() if l]
                self.assertEqual(len(lines), 1, done.stderr)
                for word in words:
                    self.assertIn(word, lines[0])

    def test_mpi_without_mpirun_says_so(self):
        if "mpi" not in built_engines():
            return
        empty = dict(os.environ, PATH="/nonexistent")
        done = run("all_reduce", "--engines", "mpi", "--sizes", "4K", env=empty)
        self.assertEqual(done.returncode, 1)
        self.assertIn("mpirun", done.stderr)
        # By default it is left out with a word.
        done = run("all_reduce", "--sizes", "4K", *FAST, "--json", env=empty)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("mpirun", done.stderr)
        self.assertNotIn('"mpi"', done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=1)
