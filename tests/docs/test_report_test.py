"""Gives tools/test_report what ctest would have written, with planted mistakes: test_report_test.py TOOL"""
import pathlib
import subprocess
import sys
import tempfile
import unittest
from xml.sax.saxutils import escape

TOOL = sys.argv.pop(1)
RULES = """# a comment
must release 2 mpi\\.\\d
must release,asan 1 kernel
must-all release 1 large
skip asan Gate\\.Descriptors it needs pipes
"""
GOOD = [("mpi.1", 2.5), ("mpi.2", 1), ("kernel", 3)]


def case(name, seconds=1.0, status="run", output="", message=None):
    skipped = "" if message is None else f'<skipped message="{message}"/>'
    return (f'<testcase name="{name}" classname="{name}" time="{seconds}" status="{status}">{skipped}'
            f"<system-out>{escape(output)}</system-out></testcase>")


def cases(*more):
    return [case(name, seconds) for name, seconds in GOOD] + list(more)


class Report(unittest.TestCase):
    def report(self, release, asan=None, flags=(), rules=RULES, build_log=None):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tests").mkdir()
            (root / "tests/full_machine.txt").write_text(rules)
            presets = {"release": release, **({"asan": asan} if asan is not None else {})}
            for preset, tests in presets.items():
                (root / "build" / preset).mkdir(parents=True)
                if tests != "nothing":
                    (root / "build" / preset / "tests.xml").write_text(f"<testsuite>{''.join(tests)}</testsuite>")
            (root / "build/test_parts.tsv").write_text("install\t6\nbuild release\t90\n")
            if build_log:
                (root / "build/release/build.log").write_text(build_log)
            done = subprocess.run([sys.executable, TOOL, "--root", folder, *flags, *presets],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            return done.returncode, done.stdout

    def wrong(self, said, *arguments, **options):
        status, output = self.report(*arguments, **options)
        self.assertEqual(status, 1, output)
        self.assertIn(said, output)

    def test_a_whole_run_passes_and_shows_times(self):
        status, output = self.report(cases(*[case(f"small{i}", 0.01) for i in range(30)]))
        self.assertEqual(status, 0, output)
        self.assertIn("     3.0 s  release  kernel\n     2.5 s  release  mpi.1\n", output)
        self.assertEqual(output.count(" s  release "), 20)
        self.assertIn("1.5 min  build release\n     1.6 min  in all", output)
        self.assertTrue(output.endswith("release: 33 of 33 tests did not fail, 0 skipped, 7 s of tests\n"), output)

    def test_failures_fail(self):
        self.wrong("release: 3 of 4 tests did not fail, 0 skipped, 8 s of tests; failed: broken",
                   cases(case("broken", status="fail")))
        self.wrong("failed: gone", cases(case("gone", status="notrun", message="Unable to find executable: gone")))
        self.wrong("release: not tested (ctest did not finish, or never began)", "nothing")
        self.wrong("release: 0 of 0", [])

    def test_a_failed_build_is_repeated_at_the_end(self):
        log = ("[1/3] Building a.o\n[2/3] Building run.o\nFAILED: src/run.o \nc++ -c run.cc\nrun.cc:3: error: no such name\n"
               + "note\n" * 100 + "ninja: build stopped: subcommand failed.\n")
        status, output = self.report("nothing", [case("kernel")], build_log=log)
        self.assertEqual(status, 1, output)
        self.assertIn("== what the build of release said\nFAILED: src/run.o \nc++ -c run.cc\nrun.cc:3: error: no such name\n",
                      output)
        self.assertEqual(output.count("note\n"), 37)
        self.assertIn("\nrelease: not tested (its build failed: FAILED: src/run.o)\nasan: 1 of 1", output)

    def test_a_skip_fails_unless_it_is_listed(self):
        skip = case("hosts", status="notrun", message="SKIP_RETURN_CODE=77", output="no root here\n")
        self.wrong("release: hosts skipped: no root here (not listed", cases(skip))
        listed = case("Gate.Descriptors", status="notrun", message="SKIP_REGULAR_EXPRESSION_MATCHED",
                      output="gate_test.cc:3: Skipped\nno pipes\n\n[  SKIPPED ] Gate.Descriptors (0 ms)\n")
        self.wrong("release: Gate.Descriptors skipped: no pipes", cases(listed))
        status, output = self.report(cases(), [case("kernel"), listed])
        self.assertEqual(status, 0, output)
        self.assertIn("asan: Gate.Descriptors skipped as expected: it needs pipes", output)
        self.assertIn("asan: 2 of 2 tests did not fail, 1 skipped", output)

    def test_a_skipped_case_inside_a_passing_program_is_seen(self):
        program = case("optim_test", output="[ RUN      ] Crew.Two\na.cc:1: Skipped\none core\n"
                       "[  SKIPPED ] Crew.Two (0 ms)\n[  PASSED  ] 3 tests.\n[  SKIPPED ] 1 test, listed below:\n"
                       "[  SKIPPED ] Crew.Two\n")
        self.wrong("release: Crew.Two skipped: one core", cases(program))
        self.wrong("script (2 of its cases) skipped", cases(case("script", output="Ran 4 tests\n\nOK (skipped=2)\n")))

    def test_what_must_run_and_is_missing_fails(self):
        self.wrong("release: 1 tests match 'mpi\\.\\d', 2 must run", [case("mpi.1"), case("kernel")])
        self.wrong("release: 0 tests match 'large', 1 must run", cases(), flags=["--mode", "all"])
        self.assertEqual(self.report([case("mpi.1")], flags=["--mode", "fast"])[0], 0)

    def test_a_partial_machine_is_told_and_passes(self):
        status, output = self.report([case("kernel")], flags=["--partial"])
        self.assertEqual(status, 0, output)
        self.assertIn("2 must run\nno failure, since --partial was given", output)

    def test_repeated_attempts_are_listed_and_too_many_fail(self):
        again = "[ RUN      ] Wait.Long\n[ REPEATED ] Wait.Long: [\"1 2\"] with 100 ms\n[       OK ] Wait.Long (3 ms)\n"
        status, output = self.report(cases(case("comm_test", output=again * 30)))
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count('release: Wait.Long: ["1 2"] with 100 ms\n'), 30)
        self.assertIn("4 of 4 tests did not fail, 0 skipped, 30 attempts repeated, 8 s of tests", output)
        # Of all its tests together, and of each preset alone.
        status, output = self.report(cases(case("comm_test", output=again * 20)), [case("kernel", output=again * 20)])
        self.assertEqual(status, 0, output)
        self.wrong("release: 31 attempts were repeated, 30 may be",
                   cases(case("comm_test", output=again * 30), case("net_test", status="fail", output=again)))
        self.wrong("asan: 31 attempts were repeated", cases(), [case("kernel", output=again * 31)])
        self.wrong("31 attempts were repeated", cases(case("comm_test", output=again * 31)), flags=["--partial"])
        self.assertNotIn("repeated", self.report(cases())[1])

    def test_a_bad_rule_is_refused(self):
        self.wrong("full_machine.txt:1: 'must release many x'", cases(), rules="must release many x\n")
        self.wrong("accepted: must|must-all", cases(), rules="should release x\n")


unittest.main()
