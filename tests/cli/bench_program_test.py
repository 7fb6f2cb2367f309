#!/usr/bin/env python3
"""`lockstep bench` as people and scripts run it: bench_program_test.py PATH_TO_LOCKSTEP"""
import json
import os
import re
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


# Dumps of jobs that fail lie in the temporary folder: they go with these tests.
TEMPORARY = tempfile.TemporaryDirectory(prefix="lockstep-bench-")
os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY.name


def run(*args, **kwargs):
    return subprocess.run([PROGRAM, "bench", *args], capture_output=True, text=True, timeout=120, **kwargs)


def built_engines():
    """What this build has: ctest says so, else the program does."""
    return os.environ["BUILT_ENGINES"].split(",") if "BUILT_ENGINES" in os.environ else engines_by_refusal()


def engines_by_refusal():
    """What the program says, when it refuses what no build has."""
    message = run("all_reduce", "--engines", "none").stderr
    accepted, _, missing = message.split("accepted: ")[1].partition(" (not in this build: ")
    missing = missing.split(")")[0].split(", ")
    return [w for w in ("shm", "tcp", "mpi", "gloo") if w in accepted.split(", ") and w not in missing]


class Bench(unittest.TestCase):
    def rows(self, *args):
        done = run(*args, *FAST, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertTrue(rows)
        for row in rows:
            for name, kind in FIELDS.items():
                self.assertIsInstance(row[name], (int, float) if kind is float else kind, name)
            self.assertTrue(row["checked"], row)
            self.assertLessEqual(row["us_min"], row["us_p25"])
            self.assertLessEqual(row["us_p25"], row["us"])
            self.assertLessEqual(row["us"], row["us_p75"])
            self.assertLessEqual(row["us_p75"], row["us_max"])
        return rows

    def test_has_the_engines_that_were_built(self):
        self.assertEqual(engines_by_refusal(), built_engines())

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
            (["all_reduce", "--engines", "shm,shm+tcp"], ["--engines shm and shm+tcp", "one at a time"]),
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


class Job(unittest.TestCase):
    """The benchmark inside a job that a launcher started: its workers speak for themselves."""

    def job(self, *command):
        return subprocess.run([PROGRAM, "run", "-n", "2", "--", *command], capture_output=True, text=True, timeout=120)

    def test_leaves_out_an_mpi_that_knows_nothing_of_these_workers(self):
        done = self.job(PROGRAM, "bench", "all_reduce", "--sizes", "4K", *FAST)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("WRONG", done.stdout)
        self.assertIn(" shm ", done.stdout)
        self.assertNotIn(" mpi ", done.stdout)
        if "mpi" not in built_engines():
            return
        self.assertIn("left out: mpi", done.stderr)
        done = self.job(PROGRAM, "bench", "all_reduce", "--sizes", "4K", "--engines", "mpi", *FAST)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("--engines mpi: MPI knows 1 of these 2 workers; start them with mpirun", done.stderr)

    def test_says_why_it_failed(self):
        done = self.job("sh", "-c", f'exec {PROGRAM} bench all_reduce --engines shm --iterations 3 '
                        '--sizes $((65536 * (RANK + 1)))')
        self.assertEqual(done.returncode, 1)
        self.assertIn("lockstep bench: operation", done.stderr)
        self.assertIn("ranks called different things", done.stderr)


class Tune(unittest.TestCase):
    SIZES = ["--sizes", "4K,64K", "--min-time", "0.005"]  # and 16 KiB between them

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = folder.name

    def tune(self, *args, launcher=(), cache=None):
        environment = dict(os.environ, LOCKSTEP_CACHE_DIR=cache or self.cache)
        return subprocess.run([*launcher, PROGRAM, "tune", *args], capture_output=True, text=True, timeout=120,
                              env=environment)

    def test_table(self):
        done = self.tune(*self.SIZES)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^all_reduce, f32 sum, 2 workers\. Measured on this machine:\n  α meeting ")
        blocks = re.findall(r"^ *(\d+ KiB)  (comm|private) .*?(?=^\n)", done.stdout, re.MULTILINE | re.DOTALL)
        self.assertEqual(blocks, [(size, memory) for size in ("4 KiB", "16 KiB", "64 KiB")
                                  for memory in ("comm", "private")])
        self.assertEqual(len(re.findall("◀ chosen$", done.stdout, re.MULTILINE)), len(blocks))
        self.assertRegex(done.stdout, r"\n6 choices, measured again after they were made: at worst [\d.]+ of the best")
        self.assertNotIn("\033", done.stdout + done.stderr)
        kept = re.search(r"\nKept in (.*)\n$", done.stdout).group(1)
        self.assertEqual([os.path.join(self.cache, name) for name in os.listdir(self.cache)], [kept])
        with open(kept) as file:
            self.assertTrue(json.load(file))

    def test_json(self):
        done = self.tune(*self.SIZES, "--collective", "all_gather", "--memory", "comm", "--json", cache="off")
        self.assertEqual(done.returncode, 0, done.stderr)
        costs, *rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertGreater(costs["barrier_us"], 0)
        self.assertEqual(costs["cache"], "")
        self.assertEqual({r["bytes"] for r in rows}, {4096, 16384, 65536})
        for size in (4096, 16384, 65536):
            of_size = [r for r in rows if r["bytes"] == size]
            self.assertGreater(len(of_size), 2)
            self.assertEqual(len([r for r in of_size if r["chosen"]]), 1)
            best = min(r["us"] for r in of_size)
            for r in of_size:
                self.assertEqual((r["op"], r["workers"], r["memory"]), ("all_gather", 2, "comm"))
                self.assertAlmostEqual(r["over_best"], r["us"] / best)
                self.assertGreater(r["predicted_us"], 0)

    def test_in_a_job(self):
        done = self.tune("--json", launcher=[PROGRAM, "run", "-n", "2"])
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines()]
        self.assertEqual([(r["engine"], r["workers"], r["nodes"], r["bytes"]) for r in rows],
                         [("shm", 2, 1, size) for size in (64 << 10, 1 << 20, 25 << 20)])
        for r in rows:
            self.assertGreater(r["expected_us"], 0)

        done = self.tune("--json", "--sizes", "4K", "--collective", "all_gather", launcher=[PROGRAM, "run", "-n", "2"])
        self.assertEqual([json.loads(line[line.index("{"):])["bytes"] for line in done.stdout.splitlines()], [4096])
        done = self.tune("--memory", "comm", launcher=[PROGRAM, "run", "-n", "2"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("--memory: these workers were started as a job", done.stderr)

    def test_what_engines_can_do(self):
        done = self.tune("--engines", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["engine"]: row for row in map(json.loads, done.stdout.splitlines())}
        self.assertEqual(list(rows)[:4], ["shm", "tcp", "mpi", "gloo"])
        for engine in ("shm", "tcp", "mpi", "gloo"):
            row = rows[engine]
            self.assertEqual(row["here"], engine in built_engines(), row)
            self.assertEqual("missing" in row, not row["here"], row)
        names = {algorithm["name"] for algorithm in rows["shm"]["algorithms"]}
        self.assertLessEqual({"eager", "direct", "ring", "tree"}, names)
        self.assertNotIn("direct", {algorithm["name"] for algorithm in rows["tcp"]["algorithms"]})
        self.assertTrue(rows["shm"]["reachable_memory"] and not rows["tcp"]["reachable_memory"])
        self.assertEqual((rows["shm+tcp"]["inside"], rows["shm+tcp"]["across"]), ("shm", "tcp"))
        text = self.tune("--engines").stdout
        self.assertRegex(text, r"(?m)^  eager +all_reduce, .*; at most 256 KiB a rank$")
        self.assertRegex(text, r"(?m)^  ring +all_reduce, .*; sums in an order of its own$")
        self.assertEqual(len(re.findall("not in this build: install lib", text)),
                         len([e for e in ("mpi", "gloo", "nccl") if not rows[e]["here"]]))
        done = self.tune("--engines", "-n", "3", "--sizes", "4K")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--engines and --workers, --sizes: nothing is measured; accepted with --engines: --json", done.stderr)

    def test_a_table_that_cannot_be_kept(self):
        done = self.tune(*self.SIZES, "--memory", "comm", cache="/proc/none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("can't write /proc/none/costs-", done.stderr)
        self.assertNotIn("Kept", done.stdout)

    def test_bad_usage_is_one_line_and_status_2(self):
        for args, words in [(["-n", "1"], ["-n", "1", "2 and more"]), (["--collective", "barrier"], ["barrier"]),
                            (["--sizes", "4Q"], ["--sizes", "4Q"]), (["--memory", "gpu"], ["--memory", "comm"])]:
            with self.subTest(args=args):
                done = self.tune(*args)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)


class BenchCompress(unittest.TestCase):
    FAST = ("--min-time", "0.001")
    # Off by how much of normal numbers: int8 and fp8 by their roundings, a sign by sqrt(1 - 2 / pi), the largest 1 %
    # leave 1 - (what they hold, 8.5 % of the squares), QSGD by its variance.
    ERRORS = {"int8": (0.005, 0.01), "fp8": (0.02, 0.03), "qsgd:16": (0.5, 0.65), "terngrad": (1.3, 2.2),
              "onebit": (0.58, 0.63), "topk:0.01": (0.95, 0.965),
              # Rounded at random to 63 levels of the largest of 65,536 numbers: (4 to 4.7) / 63 / sqrt(6). Four of 256
              # directions, of which one product with the matrix finds somewhat better ones than any.
              "intsgd": (0.025, 0.032), "powersgd:rank=4": (0.95, 0.99)}
    SUMS = ("intsgd", "powersgd:rank=4")  # which are added up on the way, and decoded once

    def rows(self, *args):
        done = run("compress", *args, *self.FAST, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_a_row_a_method_and_size(self):
        rows = self.rows("--sizes", "256K,4K", "--methods", ",".join(self.ERRORS))
        self.assertEqual([(row["bytes"], row["method"]) for row in rows],
                         [(size, method) for size in (4096, 262144) for method in self.ERRORS])
        for row in rows:
            self.assertAlmostEqual(row["ratio"], row["bytes"] / row["payload_bytes"])
            self.assertAlmostEqual(row["encode_gbs"], row["bytes"] / row["encode_us"] / 1e3)
            self.assertAlmostEqual(row["decode_gbs"], row["bytes"] / row["decode_us"] / 1e3)
            self.assertEqual(row["decodes"], 1 if row["method"] in self.SUMS else 2)
            # encode + 1 or 2 decode + payload / link = bytes / link
            link = row["pays_below_gbits"] / 8 * 1e3  # bytes a microsecond
            work = row["encode_us"] + row["decodes"] * row["decode_us"]
            self.assertAlmostEqual((work + row["payload_bytes"] / link) / (row["bytes"] / link), 1)
            self.assertGreater(min(row["encode_of_copy"], row["decode_of_copy"]), 0)
            if row["bytes"] == 262144:
                low, high = self.ERRORS[row["method"]]
                self.assertTrue(low < row["relative_error"] < high, row)
                self.assertGreater(row["ratio"], 3.9)

    def test_every_method_unless_told_otherwise(self):
        rows = self.rows("--sizes", "4K")
        self.assertEqual({row["method"] for row in rows}, set(self.ERRORS) | {"fp8:e5m2"})
        # A prime number of elements is no matrix.
        self.assertEqual(self.rows("--sizes", str(4 * 1021), "--methods", "powersgd")[0]["pays_below_gbits"], 0)

    def test_what_saves_nothing_never_pays(self):
        self.assertEqual(self.rows("--sizes", "4K", "--methods", "topk:0.5")[0]["pays_below_gbits"], 0)
        done = run("compress", "--sizes", "4K", "--methods", "topk:0.5,int8", *self.FAST)
        self.assertRegex(done.stdout, r"(?m)^ *4 KiB +topk:0.5 .* never$")
        self.assertRegex(done.stdout, r"(?m)^ +int8 .* Gbit/s$")

    def test_bad_usage_is_one_line_and_status_2(self):
        for args, words in [(["--methods", "topk:0"], ["--methods", "topk:0", "above 0"]),
                            (["--methods", "int9"], ["--methods", "'int9'", "int8", "intsgd"]),
                            (["--methods", "powersgd:rank=0"], ["--methods", "rank=0", "accepted"]),
                            (["--sizes", "3"], ["--sizes", "4 bytes"]), (["--sizes", "4K,"], ["--sizes", "64K"]),
                            (["--min-time", "-1"], ["--min-time", "-1", "3600"])]:
            with self.subTest(args=args):
                done = run("compress", *args)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
