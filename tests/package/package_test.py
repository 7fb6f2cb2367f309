#!/usr/bin/env python3
"""The installed package where there is no libtorch, and this tree there: package_test.py BUILD TREE GENERATOR COMPILER COMPONENTS

COMPONENTS: those that this build has, with commas between. Installs BUILD into a folder of its own."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD, TREE, GENERATOR, COMPILER, COMPONENTS = sys.argv[1:6]
NO_TORCH = "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON"
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(p LANGUAGES CXX)
find_package(lockstep REQUIRED {})
message(STATUS "found: {}")
"""


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = pathlib.Path(cls.folder.name)
        cls.prefix = cls.root / "prefix"
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)

    def configure(self, source, *flags):
        build = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        done = subprocess.run(["cmake", "-S", source, "-B", build, "-G", GENERATOR, f"-DCMAKE_CXX_COMPILER={COMPILER}",
                               f"-DCMAKE_PREFIX_PATH={self.prefix}", *flags], capture_output=True, text=True)
        return build, done.returncode, " ".join((done.stdout + done.stderr).split())

    def project(self, *components):
        source = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        asked = ("COMPONENTS " + " ".join(components)) if components else ""
        (source / "CMakeLists.txt").write_text(PROJECT.format(asked, asked))
        return source

    def test_comm_needs_no_libtorch(self):
        build, status, said = self.configure(pathlib.Path(__file__).parent / "comm_only", NO_TORCH, "-DCMAKE_BUILD_TYPE=Release")
        self.assertEqual(status, 0, said)
        done = subprocess.run(["cmake", "--build", build], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        libraries = subprocess.run(["ldd", build / "comm_only"], capture_output=True, text=True).stdout
        self.assertNotIn("torch", libraries)
        for workers, expected in ((1, "1 ranks, mean 0, last text x"), (2, "[rank 0] 2 ranks, mean 2, last text xx")):
            done = subprocess.run([self.prefix / "bin/lockstep", "run", "-n", str(workers), "--", build / "comm_only"],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, expected), done.stderr)

    def test_a_component_that_is_not_there_is_refused_with_those_that_are(self):
        _, status, said = self.configure(self.project("comm", "tensors"), NO_TORCH)
        self.assertNotEqual(status, 0)
        self.assertIn("lockstep has no component 'tensors' here; accepted: " + COMPONENTS.replace(",", ", "), said)

    def test_a_build_folder_says_how_to_install_it(self):
        _, status, said = self.configure(self.project("comm"), f"-Dlockstep_DIR={BUILD}")
        self.assertNotEqual(status, 0)
        self.assertIn("is where lockstep is built, not where it is installed: cmake --install", said)

    def test_everything_needs_libtorch_where_it_was_built_with_it(self):
        trains = "training" in COMPONENTS.split(",")
        for components in ((), ("training",), ("comm", "training")):
            _, status, said = self.configure(self.project(*components), NO_TORCH)
            if trains:
                self.assertNotEqual(status, 0, components)
                self.assertIn("lockstep was built with libtorch, which is not found here", said)
                self.assertIn("find_package(lockstep COMPONENTS comm)", said)
            else:
                self.assertEqual(status != 0, "training" in components, said)

    def test_the_tree_itself_does_without_libtorch_and_says_so(self):
        build, status, said = self.configure(TREE, NO_TORCH, "-DLOCKSTEP_TESTS=OFF", "-DLOCKSTEP_BENCHMARKS=OFF")
        self.assertEqual(status, 0, said)
        self.assertIn("Training: off (no libtorch found", said)
        targets = subprocess.run(["cmake", "--build", build, "--target", "help"], capture_output=True, text=True).stdout
        self.assertIn("liblockstep_comm.a", targets)
        self.assertNotIn("liblockstep.a", targets)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
