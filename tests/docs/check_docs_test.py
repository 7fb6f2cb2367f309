"""Checks pages with planted mistakes, each of which must be found: check_docs_test.py TOOL BUILD"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = "#include <lockstep/lockstep.h>\n#include <cstdio>\nint main() { %s }\n"


def block(info, text):
    return f"```{info}\n{text}\n```\n"


GOOD = {
    "a program": block("cpp", PROGRAM % 'std::puts(lockstep::format_bytes(4096).c_str());')
    + block("text expect", "4 KiB"),
    "a program not run": block("cpp norun", PROGRAM % "return 1;"),
    "a fragment": block("cpp", "std::vector<float> x(8);\nworld.all_reduce(buffer(x));"),
    "a command": block("sh", "echo one; echo '12.5 us   3 |'") + "\nprints\n\n" + block("text expect", "one\n9 us 3 |"),
    "measurements": block("sh", "echo '3.25 ms, 7 samples/s (12 %) on 2 of 1.5 K, 10 s'")
    + block("text expect", "18 ms, 11.5 samples/s (3.5 %) on 2 of 1.5 K, 44 s"),
    "numbers side by side": block("sh", "echo 'p95 1114.6 ms'") + block("text expect", "p95 859.7 ms"),
    "a form": "<!-- run: echo step 7 of 9, loss 1.25 -->\n" + block("text form", "step 237 of 4, loss 0.4540"),
    "a form with a sign": "<!-- run: echo off by +7 %, -n 2 -->\n" + block("text form", "off by -20 %, -n 3"),
    "wildcards": block("sh", "seq 5; echo '-------'; echo end of it")
    + block("text expect", "1\n…\n5\n---\nend … it"),
    "not run": block("sh norun", "exit 1"),
    "slow is left out": block("sh slow", "exit 1") + block("text expect", "nothing"),
    "plain text": block("text", "anything { at all"),
    "json": block("json", '{"a": [1, 2]}'),
    "tables": "| a | b |\n|---|---|\n| `x \\| y` | |\n\n| a |\n|---|\n| 1 |\n",
    "no blocks": "only prose, and a [link](page.md), and [another](https://example.org/x)\n",
}

BAD = {
    "a program that does not compile": (block("cpp", PROGRAM % "return lockstep::no_such_thing();"), "no_such_thing"),
    "a program that does not link": (block("cpp", "int elsewhere();\nint main() { return elsewhere(); }"), "linking failed"),
    "a program that fails": (block("cpp", PROGRAM % "return 3;"), "failed with status 3"),
    "a program not run that does not compile": (block("cpp norun", PROGRAM % "return nope;"), "nope"),
    "a fragment that does not compile": (block("cpp", "world.all_reduce_everything();"), "all_reduce_everything"),
    "a command that fails": (block("sh", "true\nfalse\ntrue"), "failed with status 1"),
    "a pipe that fails": (block("sh", "false | cat"), "failed with status 1"),
    "an unknown command": (block("sh", "lockstep_no_such_program"), "status 127"),
    "bad syntax, not run": (block("sh norun", "if then"), "bash -n failed"),
    "other output": (block("sh", "echo one") + block("text expect", "two"), "expected 'two', got 'one'"),
    "less output": (block("sh", "echo 1") + block("text expect", "1\n2"), "(the output ended)"),
    "more output": (block("sh", "echo a; echo b") + block("text expect", "a"), "the output has more: 'b'"),
    "a word for a number": (block("sh", "echo x us") + block("text expect", "5 us"), "expected '5 us'"),
    "another count": (block("sh", "echo 3 workers") + block("text expect", "2 workers"), "expected '2 workers'"),
    "another count that begins the same": (block("sh", "echo 23 workers") + block("text expect", "2 workers"), "got '23"),
    "another fraction": (block("sh", "echo 2.5") + block("text expect", "2"), "got '2.5'"),
    "another unit": (block("sh", "echo 3 ms") + block("text expect", "3 us"), "expected '3 us'"),
    "a form with another label": ("<!-- run: echo steps 7 -->\n" + block("text form", "step 7"), "expected 'step 7'"),
    "a form without its sign": ("<!-- run: echo off by 7 % -->\n" + block("text form", "off by -20 %"), "expected 'off"),
    "a form of a run that fails": ("<!-- run: false -->\n" + block("text form", "step 7"), "the shorter run failed"),
    "a form of nothing": (block("text form", "step 7"), "must follow a line <!-- run: COMMAND -->"),
    "nothing to expect from": (block("text expect", "one"), "must follow a block that is run"),
    "output of a fragment": (block("cpp", "world.barrier();") + block("text expect", "one"), "must follow a block that is run"),
    "no kind": (block("", "make"), "accepted: cpp, sh, text, json, toml"),
    "an unknown kind": (block("c++", "int x;"), "block of kind 'c++'"),
    "an unknown mode": (block("sh fast", "true"), "accepted after sh: '', 'slow', 'norun'"),
    "an open block": ("```sh\ntrue\n", "never closed"),
    "bad json": (block("json", "{'a': 1}"), "page.md:1: "),
    "a row with too many cells": ("| a | b |\n|---|---|\n| 1 | 2 | 3 |\n", "page.md:3: a row of 3 cells in a table of 2"),
    "a row with too few cells": ("| a | b |\n|---|---|\n| 1 |\n", "page.md:3: a row of 1 cells in a table of 2"),
    "a dead link": ("see [there](no/such/file.md)\n", "page.md:1: link to no/such/file.md"),
}


class CheckDocs(unittest.TestCase):
    def check(self, text, *flags):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text(text)
            done = subprocess.run([sys.executable, TOOL, "--build", BUILD, "--root", folder, *flags, str(page)],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            return done.returncode, done.stdout

    def test_true_pages_pass(self):
        for name, text in GOOD.items():
            with self.subTest(name):
                self.assertEqual(self.check(text), (0, ""))

    def test_each_mistake_is_found(self):
        for name, (text, report) in BAD.items():
            with self.subTest(name):
                status, output = self.check(text)
                self.assertEqual(status, 1, output)
                self.assertIn(report, output)

    def test_the_place_is_named(self):
        _, output = self.check("a\n\n" + block("sh", "true") + block("sh", "exit 4"))
        self.assertIn("page.md:6: the block failed with status 4", output)

    def test_slow_blocks_run_when_asked(self):
        text = block("sh slow", "echo it ran") + block("text expect", "it ran") + block("sh", "exit 9")
        self.assertEqual(self.check(text, "--only-slow"), (0, ""))
        status, output = self.check(text, "--slow")
        self.assertEqual(status, 1)
        self.assertIn("status 9", output)
        status, output = self.check(block("sh slow", "exit 8"), "--only-slow")
        self.assertEqual(status, 1)
        self.assertIn("status 8", output)
        self.assertEqual(self.check(block("sh", "true"), "--only-slow"), (1, "no page has a slow block\n"))

    def test_slow_blocks_may_say_that_they_cannot_run_here(self):
        unable = block("sh slow", "(echo no hosts here; exit 77)\nfalse") + block("text expect", "what it would print")
        self.assertEqual(self.check(unable, "--only-slow"), (77, "page.md:1: skipped: no hosts here\n"))
        status, output = self.check(unable + block("sh slow", "exit 6"), "--only-slow")
        self.assertEqual(status, 1)
        self.assertIn("status 6", output)
        self.assertIn("skipped: no hosts here", output)
        status, output = self.check(block("sh", "exit 77"))  # others run everywhere
        self.assertEqual(status, 1)
        self.assertIn("status 77", output)


TOOL, BUILD = sys.argv.pop(1), sys.argv.pop(1)
unittest.main()
