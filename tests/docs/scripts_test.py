"""Every test script has tests and runs them: a file that was emptied would pass. Every fuzz target is one of those that
tools/fuzz runs. scripts_test.py TESTS"""
import pathlib
import re
import sys
import unittest

TESTS = pathlib.Path(sys.argv.pop(1))


class Scripts(unittest.TestCase):
    def test_each_has_tests_and_runs_them(self):
        scripts = sorted(TESTS.rglob("*_test.py"))
        self.assertGreater(len(scripts), 10)
        for script in scripts:
            with self.subTest(script.relative_to(TESTS)):
                text = script.read_text()
                self.assertRegex(text, re.compile(r"^ *(unittest\.|sys\.exit\()?main\(", re.MULTILINE))
                if "unittest" in text or "Case)" in text:
                    self.assertRegex(text, re.compile(r"^    def test_", re.MULTILINE))

    def test_every_fuzz_target_is_run_for_long(self):
        targets = {source.stem for source in TESTS.rglob("*_fuzz.cc")}
        self.assertGreater(len(targets), 10)
        listed = re.search(r"^all=\(([^)]*)\)", (TESTS.parent / "tools" / "fuzz").read_text(), re.MULTILINE)
        self.assertEqual(set(listed[1].split()), targets)


unittest.main()
