"""Every test script has tests and runs them: a file that was emptied would pass. scripts_test.py TESTS"""
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


unittest.main()
