"""Plants includes in a small tree and checks what tools/check_arrows says: check_arrows_test.py TOOL"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TABLE = """
| room | target | what lives there | may use |
|---|---|---|---|
| `base` | `lockstep_base` | the ground | – |
| `observe` | `lockstep_observe` | watching | `base` |
| `comm` | `lockstep_comm` | groups | `base` |
| `comm/call` | 〃 | words | `base`, `comm` |
| `comm/algo` | 〃 | algorithms | `base`, `comm/call/call.h`, `comm/channel` |
| `comm/channel` | 〃 | channels | `base` |
| `comm/engine` | 〃 | engines | `base`, `comm/*` |
| `comm/world` | 〃 | all of it | `base`, `observe`, `comm/*` |
| `launch` | `lockstep_launch` | workers | `base`, `observe` |
| `grad`, `optim` | `lockstep` | above | `base`, `comm/*` |
| `cli` | `lockstep` (program) | subcommands | everything |
"""

CLEAN = {
    "src/base/a.cc": '#include "lockstep/base/a.h"\n#include <vector>\n',
    "include/lockstep/base/a.h": "#pragma once\n",
    "include/lockstep/lockstep.h": '#include "lockstep/comm/group.h"\n',
    "include/lockstep/comm/group.h": '#include "lockstep/base/a.h"\n',
    "src/observe/o.cc": '#include <lockstep/base/a.h>\n#include "o.h"\n',
    "src/observe/o.h": "",
    "src/comm/call/call.h": '#include "lockstep/comm/group.h"\n',
    "src/comm/call/secret.h": "",
    "src/comm/world/group.cc": '#include "comm/call/call.h"\n#include "comm/engine/engine.h"\n#include "observe/o.h"\n',
    "src/comm/channel/c.h": '#include "lockstep/base/a.h"\n',
    "src/comm/algo/ring.cc": '#include "comm/call/call.h"\n#include "comm/channel/c.h"\n',
    "src/comm/engine/engine.h": '#include "comm/call/secret.h"\n#include "comm/algo/ring.h"\n',
    "src/comm/algo/ring.h": "",
    "src/grad/g.cc": '#include "comm/engine/engine.h"\n#include <torch/torch.h>\n',
    "src/cli/main.h": "",
    "src/cli/main.cc": '#include "cli/main.h"\n#include "comm/algo/ring.h"\n#include <torch/torch.h>\n',
    "tests/t.cc": '#include "cli/main.h"\n',
}

# file, a line added to it, and what the report must contain
PLANTED = [
    ("src/base/a.cc", '#include "observe/o.h"', "src/base/a.cc:3: base includes observe/o.h"),
    ("include/lockstep/base/a.h", "#  include <lockstep/comm/group.h>", "include/lockstep/base/a.h:2: base includes"),
    ("src/launch/l.cc", '#include "lockstep/comm/group.h"', "src/launch/l.cc:1: launch includes"),
    ("src/comm/algo/ring.cc", '#include "comm/engine/engine.h"', "it may use: base, comm/call/call.h, comm/channel"),
    ("src/comm/algo/ring.cc", '#include "comm/call/secret.h"', "src/comm/algo/ring.cc:3: comm/algo includes"),
    ("src/comm/algo/ring.cc", '#include "../engine/engine.h"', "src/comm/algo/ring.cc:3: comm/algo includes"),
    ("src/comm/channel/c.h", '#include "comm/algo/ring.h"', "src/comm/channel/c.h:2: comm/channel includes"),
    ("src/grad/g.cc", '#include "cli/main.h"', "nothing may use cli"),
    ("src/grad/g.cc", '#include "lockstep/lockstep.h"', "which is for users"),
    ("src/comm/world/group.cc", "#include <torch/torch.h>", "only lockstep and lockstep_task use libtorch"),
    ("src/grad/g.cc", 'x = std::getenv("X");', "src/grad/g.cc:3: reads the environment"),
    ("src/attic/old.cc", "", "src/attic/old.cc:1: lies in no room"),
]


class CheckArrows(unittest.TestCase):
    def check(self, changes, table=TABLE):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = dict(CLEAN, **{"docs/architecture.md": table})
            for name, line in changes:
                files[name] = files.get(name, "") + line + "\n"
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            done = subprocess.run([sys.executable, TOOL, folder], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            return done.returncode, done.stdout

    def test_clean_tree_passes(self):
        self.assertEqual(self.check([]), (0, ""))

    def test_each_planted_include_is_found(self):
        for name, line, report in PLANTED:
            with self.subTest(name=name, line=line):
                status, output = self.check([(name, line)])
                self.assertEqual(status, 1, output)
                self.assertIn(report, output)
                self.assertEqual(len(output.splitlines()), 1, output)

    def test_rooms_that_use_each_other_are_found(self):
        """Where the table lets both, directly or by way of a third."""
        for name, line, report in [
                ("src/comm/engine/engine.h", '#include "comm/world/world.h"',
                 "rooms use each other: comm/engine uses comm/world (src/comm/engine/engine.h:3), "
                 "comm/world uses comm/engine (src/comm/world/group.cc:2)"),
                ("src/comm/channel/c.h", '#include "comm/engine/engine.h"',
                 "comm/channel uses comm/engine (src/comm/channel/c.h:2), comm/engine uses comm/algo (")]:
            with self.subTest(name=name):
                status, output = self.check([(name, line), ("src/comm/world/world.h", "")],
                                            table=TABLE.replace("channels | `base` |", "channels | `base`, `comm/*` |"))
                self.assertEqual(status, 1, output)
                self.assertIn(report, output)
                self.assertEqual(len(output.splitlines()), 1, output)

    def test_all_are_reported_at_once(self):
        status, output = self.check([(name, line) for name, line, _ in PLANTED])
        self.assertEqual(status, 1)
        self.assertEqual(len(output.splitlines()), len(PLANTED))

    def test_lost_table_is_no_pass(self):
        status, output = self.check([], table="no table here\n")
        self.assertNotEqual(status, 0)
        self.assertIn("no table", output)


TOOL = sys.argv.pop(1)
unittest.main()
