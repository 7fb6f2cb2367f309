"""The soak finds each defect it looks for, and none where there is none: soak_test.py SOAK LOCKSTEP [TEST_CLASS]"""
import concurrent.futures
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOAK, PROGRAM = sys.argv.pop(1), sys.argv.pop(1)
FAKE = pathlib.Path(__file__).resolve().parent / "fake_lockstep"
SHIM = pathlib.Path(PROGRAM).resolve().parent.parent / "lib" / "fault_shim.so"

# A defect of the fake, the attacks under which it shows, and what the soak must call it.
DEFECTS = [
    ("hash", "stop-starter", "hash"),
    ("file", "stop-starter", "left in the run's folder"),
    ("temporary", "stop-starter", "left in TMPDIR"),
    ("process", "stop-starter", "left processes"),
    ("silent", "stop-starter", "silent end"),
    ("raw", "stop-starter", "raw exception"),
    ("lost", "stop-starter", "progress lost"),
    ("status", "stop-starter", "exit status"),
    ("hang", "stop-starter", "hang"),
    ("twice", "kill-starter", "steps.csv"),
]


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lockstep-soak-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def soak(self, *flags, program=FAKE, bug="", name="work"):
        """Its status, the summary and its rounds, and what it said."""
        words = [sys.executable, SOAK, "--json", "--program", program, "--shim", SHIM, "--work",
                 os.path.join(self.folder, name), *flags]
        done = subprocess.run([str(word) for word in words], env=dict(os.environ, FAKE_BUG=bug),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, lines[-1] if lines else None, lines[:-1], done.stderr


class Defects(Case):
    def find(self, defect):
        bug, attacks, _ = defect
        # As many rounds as it takes until an attack has met a run at work.
        patience_s = {"hang": "5", "process": "12"}.get(bug, "60")
        return self.soak("--only", attacks, "--rounds", "20", "--stop-at-failure", "--seed", "7", "--hang-s",
                         patience_s, bug=bug, name=bug)

    def test_each_is_found_and_named(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = list(pool.map(self.find, DEFECTS))
        for (bug, _, kind), (status, summary, rounds, said) in zip(DEFECTS, found):
            with self.subTest(bug):
                self.assertEqual(status, 1, said)
                self.assertIn(kind, summary["problems"], said)
                seed = summary["problems"][kind][0]
                self.assertIn(f"tools/soak --seed {seed} --rounds 1", said)
                kept = next(r["folder"] for r in rounds if r["seed"] == seed)
                self.assertIn(f"PROBLEM {kind}", pathlib.Path(kept, "log.txt").read_text())
                if bug == "hang":
                    self.assertIn("--- process", pathlib.Path(kept, "log.txt").read_text())

    def test_a_program_that_keeps_its_promises_passes(self):
        attacks = "kill-starter,kill-all,kill-group,stop-starter,stop-all,stop-twice,stop-timeout,pause"
        status, summary, _, said = self.soak("--only", attacks, "--rounds", "12", "--jobs", "4", "--seed", "20")
        self.assertEqual((status, summary["failed"], summary["rounds"]), (0, 0, 12), said)
        self.assertGreater(sum(summary["attacks"].values()), 3, said)
        kept = [name for name in os.listdir(os.path.join(self.folder, "work")) if name.startswith("round-")]
        self.assertEqual(kept, [])

    def test_usage(self):
        for flags, text in [(("--only", "hammer"), "accepted: kill-worker"), (("--rounds", "0"), "more than 0"),
                            (("--program", "/nowhere"), "is no program")]:
            done = subprocess.run([sys.executable, SOAK, *flags], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)

    def test_two_in_one_folder_are_refused(self):
        work = os.path.join(self.folder, "work")
        os.mkdir(work)
        held = os.open(work, os.O_RDONLY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, _, said = self.soak("--rounds", "1")
        self.assertEqual(status, 2)
        self.assertIn("another one works in", said)

    def test_a_program_that_does_not_even_run_is_no_success(self):
        status, _, _, said = self.soak("--rounds", "1", program="/bin/false")
        self.assertEqual(status, 1)
        self.assertIn("the undisturbed run failed with status 1", said)


class Plans(unittest.TestCase):
    def test_a_seed_is_a_round_and_all_attacks_come(self):
        sys.path.insert(0, os.path.dirname(os.path.abspath(SOAK)))
        sys.dont_write_bytecode = True
        from soaking.plan import ATTACKS, make_plan
        plans = [make_plan(seed, list(ATTACKS)) for seed in range(200)]
        self.assertEqual(plans, [make_plan(seed, list(ATTACKS)) for seed in range(200)])
        kinds = [start.attack.kind for plan in plans for start in plan.starts if start.attack]
        self.assertEqual(set(kinds), set(ATTACKS))
        for plan in plans:
            self.assertIn(len(plan.starts), range(2, 6))
            self.assertIsNone(plan.starts[-1].attack, "the last start is undisturbed")


class Shim(Case):
    """File operations of a plain program fail as they are told to."""

    def run_with(self, fault, script):
        log = os.path.join(self.folder, "faults")
        environment = dict(os.environ, LD_PRELOAD=str(SHIM), SOAK_FAULT=fault, SOAK_FAULT_LOG=log,
                           SOAK_FAULT_BELOW=os.path.join(self.folder, "run"))
        os.makedirs(os.path.join(self.folder, "run"), exist_ok=True)
        done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=self.folder, capture_output=True,
                              text=True)
        faults = pathlib.Path(log).read_text().splitlines() if os.path.exists(log) else []
        return done, faults

    def test_the_nth_operation_below_the_folder_fails(self):
        script = ("import os\n"
                  "for name in ('a', 'b', 'run/c', 'run/d', 'run/e'):\n"
                  "    try: os.mkdir(name); print(name)\n"
                  "    except OSError as e: print(e.errno)\n")
        done, faults = self.run_with("mkdir:2:ENOSPC", script)
        self.assertEqual(done.stdout.split(), ["a", "b", "run/c", "28", "run/e"], done.stderr)
        self.assertEqual(len(faults), 1)

    def test_from_then_on(self):
        script = ("import os\n"
                  "for name in 'abc':\n"
                  "    try:\n"
                  "        fd = os.open('run/' + name, os.O_WRONLY | os.O_CREAT)\n"
                  "        os.write(fd, b'x'); os.fsync(fd); os.rename('run/' + name, 'run/' + name * 2); print('ok')\n"
                  "    except OSError as e: print(e.errno)\n")
        for op in ("write", "fsync", "rename", "open"):
            with self.subTest(op):
                done, _ = self.run_with(f"{op}:2:EIO:on", script)
                self.assertEqual(done.stdout.split(), ["ok", "5", "5"], done.stderr)

    def test_a_kill_comes_before_the_operation(self):
        done, faults = self.run_with("mkdir:1:kill", "import os; os.mkdir('run/x')")
        self.assertEqual(done.returncode, -9)
        self.assertEqual(len(faults), 1)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "run", "x")))


class Program(Case):
    """A few rounds on the program itself."""

    def test_rounds_hold(self):
        # A pause, a stop of one worker of two, and a stop under `lockstep run`.
        status, summary, _, said = self.soak("--only", "stop-starter,stop-worker,pause", "--rounds", "3", "--jobs", "2",
                                             "--seed", "313", program=PROGRAM)
        self.assertEqual((status, summary["failed"], summary["rounds"]), (0, 0, 3), said)
        self.assertGreater(sum(summary["attacks"].values()), 0, said)


unittest.main()
