"""The attacks: waiting for their moment, and what they send to whom."""
import os
import random
import signal
import subprocess
import time

from .job import send


class Moment:
    """Whether an attack's moment has come; asked again and again while the job runs."""

    def __init__(self, moment, job, folder, steps):
        """`steps`: of the whole run, of which some are done."""
        self.kind, self.value = moment
        self.job, self.folder = job, folder
        done = folder.newest_checkpoint()
        self.step = done + 1 + self.value * (steps - done - 1)
        self.seen, self.writing = 0, False

    def has_come(self):
        if self.kind == "seconds":
            return self.job.seconds() >= self.value
        if self.kind == "part":
            return self.folder.last_step() >= self.step
        writing = self.folder.writes_checkpoint()
        self.seen += writing and not self.writing
        self.writing = writing
        return writing and self.seen >= self.value


def strike(attack, job, rng):
    """Sends what the attack sends; gives how many processes got it."""
    everybody = job.processes()
    workers = job.processes("worker")
    one_worker = [rng.choice(workers)] if workers else []
    kind = attack.kind
    if kind in ("kill-worker", "stop-worker", "restart-error"):
        return send(one_worker, attack.signal)
    if kind == "kill-launcher":
        return send(job.processes("launcher")[:1] or [job.pid], attack.signal)
    if kind in ("kill-starter", "stop-starter"):
        return send([job.pid], attack.signal)
    if kind == "kill-group":
        return send_to_group(job, attack.signal)
    if kind in ("kill-all", "stop-all"):
        return send(everybody, attack.signal)
    if kind == "stop-twice":
        got = send([job.pid], attack.signal)
        time.sleep(attack.gap_s)
        if not job.ended():  # else its number is free
            send([job.pid], attack.signal)
        return got
    if kind == "stop-timeout":
        return send([job.pid], attack.signal) + send_to_group(job, attack.signal)
    if kind == "pause":
        chosen = one_worker if rng.random() < 0.5 else everybody
        got = send(chosen, signal.SIGSTOP)
        time.sleep(attack.gap_s)
        send(chosen, signal.SIGCONT)
        return got
    raise ValueError(kind)


def send_to_group(job, number_of_signal):
    try:
        os.killpg(job.pid, number_of_signal)
        return 1
    except ProcessLookupError:
        return 0


def shim_environment(attack, folder, shim, log):
    """What makes file operations fail in a job."""
    if not attack or not attack.fault:
        return {}
    variables = {"LD_PRELOAD": str(shim), "SOAK_FAULT": attack.fault, "SOAK_FAULT_BELOW": str(folder),
                 "SOAK_FAULT_LOG": str(log)}
    if attack.kind == "restart-error":
        variables["SOAK_FAULT_START"] = "1"
    return variables


def mount_small(folder, kib):
    """A file system of its own at the folder; an error's text where that can't be."""
    return call("mount", "-t", "tmpfs", "-o", f"size={kib}k", "soak", str(folder))


def resize(folder, kib):
    return call("mount", "-o", f"remount,size={kib}k", str(folder))


def unmount(folder):
    return call("umount", "-l", str(folder))


def call(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        return f"{words[0]} is not installed"
    return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"


def dice(seed):
    return random.Random(f"strike {seed}")
