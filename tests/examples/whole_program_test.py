"""examples/02_whole_program, killed and told to stop in the middle: it ends with the bits of a run that nobody disturbed.

whole_program_test.py LOCKSTEP PROGRAM
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "base"))
from repeated import say_repeated

LOCKSTEP, PROGRAM = sys.argv[1:3]
EPOCHS = 16  # a signal comes a quarter of a second later than it was sent, and must find it at work
STEPS = 36 * EPOCHS  # 4500 examples in steps of 4 lanes × 32


def workers_of(folder):
    """{rank: pid} of the running workers whose folder it is."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            if command[0] != PROGRAM.encode() or os.fsencode(folder) not in command:
                continue
            environment = dict(entry.partition(b"=")[::2] for entry in (process / "environ").read_bytes().split(b"\0"))
            found[int(environment[b"RANK"])] = int(process.name)
        except (OSError, KeyError):
            continue  # it has just ended, or just begun
    return found


def last(folder):
    """The step of its newest checkpoint."""
    return max(int(path.name.removeprefix("step-")) for path in pathlib.Path(folder).glob("step-*"))


class WholeProgram(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.expected = cls.run_whole(cls.new_folder(), 1)

    @classmethod
    def new_folder(cls):
        return tempfile.mkdtemp(dir=cls.temporary.name)

    @staticmethod
    def command(folder, workers, *flags):
        start = [LOCKSTEP, "run", "-n", str(workers), *flags, "--"] if workers else []
        return [*start, PROGRAM, folder, str(EPOCHS)]

    @classmethod
    def run_whole(cls, folder, workers):
        """Runs to the end; the parameters' hash."""
        done = subprocess.run(cls.command(folder, workers), capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return re.search(r"parameters ([0-9a-f]{16})$", done.stdout.strip())[1]

    def disturb(self, folder, workers, *flags, how):
        """Starts it, calls how(process) when the first epoch is over, and returns status, standard output, standard error."""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(self.command(folder, workers, *flags), stdout=subprocess.PIPE, stderr=errors, text=True)
            said = ""
            for line in process.stdout:
                said += line
                if re.search(r"epoch +1 ", line):
                    how(process)
                    break
            said += process.stdout.read()
            status = process.wait(timeout=120)
            errors.seek(0)
            return status, said, errors.read()

    def killed(self, workers, rank, *flags, at_work):
        """Kills a rank behind the first epoch; again where the run was over before this script heard of it."""
        def kill(folder):
            if pid := workers_of(folder).get(rank):
                os.kill(pid, signal.SIGKILL)
        for _ in range(5):
            folder = self.new_folder()
            status, said, errors = self.disturb(folder, workers, *flags, how=lambda _: kill(folder))
            if at_work(said, errors):
                break
            say_repeated(self.id(), "the run was over before its signal")
        return folder, status, said, errors

    def test_the_number_of_workers_makes_no_difference(self):
        for workers in (2, 3):
            self.assertEqual(self.run_whole(self.new_folder(), workers), self.expected)

    def test_a_finished_run_is_finished(self):
        folder = self.new_folder()
        self.run_whole(folder, 2)
        self.assertEqual(last(folder), STEPS)
        self.assertEqual(self.run_whole(folder, 1), self.expected)

    def test_killed_it_goes_on_with_another_number_of_workers(self):
        for workers, then in ((2, 1), (1, 2)):
            folder, status, said, errors = self.killed(workers, workers - 1, at_work=lambda said, _: "parameters" not in said)
            self.assertEqual(status, 1, said + errors)
            self.assertIn("SIGKILL", errors)
            self.assertNotIn("parameters", said)
            self.assertTrue(0 < last(folder) < STEPS)
            self.assertEqual(self.run_whole(folder, then), self.expected)

    def test_a_restart_goes_on_by_itself(self):
        _, status, said, errors = self.killed(2, 0, "--max-restarts", "1", at_work=lambda _, errors: "SIGKILL" in errors)
        self.assertEqual(status, 0, said + errors)
        self.assertRegex(said, r"goes on from step [1-9]")
        self.assertIn("parameters " + self.expected, said)

    def test_told_to_stop_it_leaves_a_checkpoint_of_that_step(self):
        for workers, sent in ((2, signal.SIGINT), (2, signal.SIGTERM), (0, signal.SIGINT)):
            for _ in range(5):  # on a busy machine a run may be over before this script hears of its first epoch
                folder = self.new_folder()
                status, said, errors = self.disturb(folder, workers, how=lambda process: process.send_signal(sent))
                if "parameters" not in said:
                    break
                say_repeated(self.id(), "the run was over before its signal")
            self.assertEqual(status, 128 + sent, said + errors)
            step = int(re.search(r"stopped after step (\d+)", said)[1])
            self.assertTrue(36 <= step < STEPS, said)
            self.assertEqual(last(folder), step)
            self.assertEqual(self.run_whole(folder, 2), self.expected)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
