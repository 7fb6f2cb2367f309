"""examples/03_stock_libtorch: what was changed, and that two workers train as a single process does.

stock_libtorch_test.py LOCKSTEP FOLDER_OF_PROGRAMS SOURCES
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, PROGRAMS, SOURCES = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
# In f64 the two differ by how a sum over 64 examples is rounded, 1e-16 a step, which a thousand steps make 1e-14.
# A mean that is divided wrongly, an example that is lost or seen twice, a step of one worker alone make 1e-2.
ROUNDING = 1e-12


class StockLibtorch(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)

    def run_in_folder(self, program, workers=0):
        """Runs it in a folder of its own, which is returned, with what it printed."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.temporary.name))
        start = [LOCKSTEP, "run", "-n", str(workers), "--"] if workers else []
        # One thread, as the launcher gives its workers: sums of several have other bits.
        done = subprocess.run([*start, PROGRAMS / f"example_{program}"], cwd=folder, capture_output=True, text=True,
                              timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return folder, done.stdout.replace("[rank 0] ", "")

    def difference(self, a, b):
        done = subprocess.run([PROGRAMS / "example_compare", a, b], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{a} and {b} have different forms\n{done.stderr}")
        kind, number = done.stdout.split()
        self.assertEqual(kind, "Double" if "f64" in self.kind else "Float")
        return float(number)

    def test_five_lines_are_changed(self):
        stock, parallel = ((SOURCES / name).read_text().splitlines() for name in ("stock.cc", "data_parallel.cc"))
        changed = sum(max(b - a, d - c) for what, a, b, c, d in difflib.SequenceMatcher(None, stock, parallel, False)
                      .get_opcodes() if what != "equal")
        self.assertTrue(0 < changed <= 5, f"{changed} lines")

    def test_one_worker_has_the_bits_of_the_stock_program(self):
        self.kind = "f32"
        stock, said = self.run_in_folder("stock")
        parallel, said_too = self.run_in_folder("data_parallel", 1)
        self.assertEqual(said, said_too)
        self.assertEqual(self.difference(stock / "parameters.pt", parallel / "parameters.pt"), 0)

    def test_several_workers_train_as_the_stock_program_does(self):
        self.kind = "f64"
        stock, said = self.run_in_folder("stock_f64")
        self.assertLess(float(re.fullmatch(r"loss ([\d.]+)\n", said)[1]), 1)  # it learns: untrained it is above 7
        for workers in (2, 4):
            parallel, said_too = self.run_in_folder("data_parallel_f64", workers)
            self.assertEqual(said, said_too)
            self.assertLess(self.difference(stock / "parameters.pt", parallel / "parameters.pt"), ROUNDING)

    def test_two_models_train_against_each_other(self):
        self.kind = "f64"
        alone, said = self.run_in_folder("gan_f64")
        together, said_too = self.run_in_folder("gan_f64", 2)
        self.assertEqual(said, said_too)
        for file in ("generator.pt", "critic.pt"):
            self.assertLess(self.difference(alone / file, together / file), ROUNDING)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
