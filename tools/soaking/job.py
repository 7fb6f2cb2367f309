"""A started program and all its processes, which are found by a mark in their environment, whoever their parent is."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

MARK = "SOAK_MARK"


def marked(mark):
    """The processes that carry the mark: {number: role}."""
    needle = f"{MARK}={mark}\0".encode()
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            environment = pathlib.Path(entry.path, "environ").read_bytes()
            if needle not in environment:
                continue
            name = pathlib.Path(entry.path, "comm").read_text().strip()
        except OSError:
            continue  # it has ended, or is another user's
        found[int(entry.name)] = {"lockstep-guard": "guardian", "lockstep-train": "worker"}.get(name, "launcher")
    return found


def send(numbers, number_of_signal):
    """How many of them got it."""
    got = 0
    for number in numbers:
        try:
            os.kill(number, number_of_signal)
            got += 1
        except ProcessLookupError:
            pass
    return got


class Job:
    def __init__(self, words, environment, mark, output):
        """Its standard output and error go to `output`.out and `output`.err."""
        self.mark = mark
        self.out_file, self.err_file = pathlib.Path(f"{output}.out"), pathlib.Path(f"{output}.err")
        with open(self.out_file, "wb") as out, open(self.err_file, "wb") as err:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            env=dict(environment, **{MARK: mark}), start_new_session=True)
        self.began = time.monotonic()

    @property
    def pid(self):
        return self.process.pid

    def seconds(self):
        return time.monotonic() - self.began

    def processes(self, role=None):
        """Those of a role. The starter is the process that was started here; under `lockstep run` it launches too."""
        found = marked(self.mark)
        found[self.pid] = "starter"
        return [number for number, is_role in sorted(found.items()) if role in (None, is_role)]

    def ended(self):
        return self.process.poll() is not None

    def output(self):
        return self.out_file.read_text(errors="replace")

    def errors(self):
        return self.err_file.read_text(errors="replace")

    def end(self):
        """Ends whatever still runs; gives how many processes that were."""
        send([number for number in marked(self.mark)], signal.SIGCONT)
        got = 0
        for _ in range(20):
            left = marked(self.mark)
            if not left and self.ended():
                break
            got = max(got, send(left, signal.SIGKILL))
            if not self.ended():
                self.process.kill()
            time.sleep(0.05)
        self.process.wait()
        return got

    def left_over(self, patience_s):
        """Processes that are still there some time after the starter has ended, in words."""
        deadline = time.monotonic() + patience_s
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [f"{role} {number}" for number, role in left.items()]

    def states(self):
        """What each process is doing, for the log of a round that hangs."""
        text = []
        for number in self.processes():
            place = pathlib.Path("/proc", str(number))
            text.append(f"--- process {number}")
            for name in ("cmdline", "wchan", "syscall", "status"):
                try:
                    content = (place / name).read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError as error:
                    content = str(error)
                if name == "status":
                    content = " ".join(re.findall(r"(?:State|PPid|Threads|SigPnd|SigBlk|SigCgt):\s*[^\n]*", content))
                text.append(f"{name}: {content[:300]}")
            if shutil.which("gdb"):
                text.append(stacks(number))
        return "\n".join(text) + "\n"


def stacks(number):
    words = ["gdb", "-p", str(number), "-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex",
             "thread apply all bt 12"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        return "\n".join(line for line in done.stdout.split("\n") if line.startswith(("#", "Thread")))
    except subprocess.TimeoutExpired:
        return "gdb did not answer"
