#!/usr/bin/env python3
"""Strangers at every port of a running job get nothing and disturb nothing.

    wire_strangers_test.py LOCKSTEP WIRE_LOOP WIRE_STRANGER

Two workers all-reduce over TCP, plain and in TLS, while others connect to whatever the job's processes listen on:
with no, wrong and replayed credentials, random bytes, half-open and very slow connections, a thousand at once, and
the right secret in the wrong dress. The job goes on meanwhile, in most seconds, and ends with status 0 and the right sums; it
listens on the address that was asked for and no other; and its secret is in no argument list, output, log or dump.
"""
import os
import pathlib
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "base"))
from open_files import open_files

STRANGER = sys.argv.pop()
LOOP = sys.argv.pop()
LOCKSTEP = sys.argv.pop()

# The most that a gate says to somebody who has proven nothing: in plaintext a magic, a nonce and a code; in TLS its
# side of a handshake that began with somebody's recorded hello.
MOST_SAID = {"plaintext": 72, "tls": 400}


def descendants(pid):
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def listening(pids):
    """(address, port) of every TCP socket on which these processes listen."""
    inodes = set()
    for pid in pids:
        inodes.update(link[8:-1] for link in open_files(pid) if link.startswith("socket:["))
    found = set()
    for table in ["/proc/net/tcp", "/proc/net/tcp6"]:
        with open(table) as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    if len(address) == 8:
                        address = socket.inet_ntoa(bytes.fromhex(address)[::-1])
                    found.add((address, int(port, 16)))
    return found


def environment_of(pid, name):
    with open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            if entry.startswith(name.encode() + b"="):
                return entry.split(b"=", 1)[1].decode()
    return None


def heard(sock, seconds):
    """What comes until the other side closes, or for so long."""
    sock.settimeout(seconds)
    got = b""
    try:
        while True:
            piece = sock.recv(65536)
            if not piece:
                return got, True
            got += piece
    except socket.timeout:
        return got, False
    except OSError:
        return got, True


class Recorder(threading.Thread):
    """Passes one connection on to `to` and keeps what its dialler said."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to = to
        self.said = b""
        self.answered = b""
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]

    def run(self):
        near, _ = self.door.accept()
        far = socket.create_connection(self.to)
        open_ends = {near: far, far: near}
        while open_ends:
            for one in select.select(list(open_ends), [], [], 5)[0]:
                other = far if one is near else near
                piece = b""
                try:
                    piece = one.recv(65536)
                    if piece:
                        other.sendall(piece)
                except OSError:
                    pass
                if not piece:
                    near.close()
                    far.close()
                    self.door.close()
                    return
                if one is near:
                    self.said += piece
                else:
                    self.answered += piece


class Job:
    def __init__(self, security, folder):
        self.given = os.urandom(32).hex()
        self.security = security
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
        environment.update(LOCKSTEP_ENGINE="tcp", LOCKSTEP_TLS="on" if security == "tls" else "off",
                           LOCKSTEP_SECRET=self.given, LOCKSTEP_CACHE_DIR="off", LOCKSTEP_LOG="debug")
        self.folder = folder
        self.enough = os.path.join(folder, "enough")
        self.process = subprocess.Popen(
            [LOCKSTEP, "run", "-n", "2", "--log-dir", folder, "--", LOOP, self.enough],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True)
        self.lines = []
        self.begun = threading.Semaphore(0)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        for _ in range(2):
            assert self.begun.acquire(timeout=60), "\n".join(self.lines)
        self.pids = descendants(self.process.pid)
        self.ports = listening(self.pids)
        worker = next(pid for pid in self.pids[1:] if environment_of(pid, "RANK") == "0")
        self.job = environment_of(worker, "LOCKSTEP_JOB") + "." + (environment_of(worker, "LOCKSTEP_RESTART") or "0")
        self.secret = environment_of(worker, "LOCKSTEP_SECRET")

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if " begins" in line:
                self.begun.release()

    def end(self):
        with open(self.enough, "w"):
            pass
        status = self.process.wait(timeout=120)
        self.reader.join(timeout=30)
        self.process.stdout.close()
        return status

    def rates(self):
        return [int(line.split()[-1]) for line in self.lines if "] rate " in line]

    def text(self):
        """Everything that the job wrote anywhere."""
        text = "".join(self.lines).encode()
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    text += file.read()
        return text


class Strangers(unittest.TestCase):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def knock(self, port):
        return socket.create_connection(port, timeout=10)

    def expect_little(self, job, got, what):
        self.assertLessEqual(len(got), MOST_SAID[job.security], what)

    def dial(self, job, security, known, through=None):
        environment = dict(os.environ)
        environment.pop("LOCKSTEP_SECRET", None)
        if known:
            environment.update(LOCKSTEP_SECRET=job.secret, LOCKSTEP_JOB=job.job)
        done = subprocess.run([STRANGER, "127.0.0.1:%d" % through, security, "30"], env=environment,
                              capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    def goes_on(self, job, what):
        """Waits until a call has ended in some second from now on; on a busy machine one may pass without."""
        seen, until = len(job.rates()), time.monotonic() + 30
        while not any(job.rates()[seen:]):
            self.assertLess(time.monotonic(), until, f"it stands still beside {what}")
            time.sleep(0.05)

    def attack(self, job):
        dice = random.Random(7)
        for port in sorted(job.ports):
            with self.subTest("nothing and random bytes", port=port):
                for length in [0, 1, 8, 40, 500, 70_000]:
                    with self.knock(port) as stranger:
                        try:
                            stranger.sendall(dice.randbytes(length))
                        except OSError:
                            pass  # hung up already
                        got, _ = heard(stranger, 0.1)
                        self.expect_little(job, got, length)
            with self.subTest("the beginning of the real thing", port=port):
                with self.knock(port) as stranger:
                    stranger.sendall(b"LOCKSTP1" + dice.randbytes(32))
                    stranger.settimeout(0.2)
                    try:
                        stranger.sendall(dice.randbytes(34))
                    except OSError:
                        pass
                    got, _ = heard(stranger, 0.2)
                    self.expect_little(job, got, "half a handshake")
            with self.subTest("wrong credentials", port=port):
                said = self.dial(job, job.security, False, port[1])
                self.assertIn("does not know this job's secret", said)
                self.assertNotIn("let in", said)
            with self.subTest("the right secret in the wrong dress", port=port):
                other = "plaintext" if job.security == "tls" else "tls"
                said = self.dial(job, other, True, port[1])
                self.assertIn("refused", said)
                self.assertIn("LOCKSTEP_TLS", said)
            with self.subTest("a replay", port=port):
                recorder = Recorder(port)
                recorder.start()
                self.assertIn("let in", self.dial(job, job.security, True, recorder.port))
                recorder.join(timeout=10)
                self.assertGreater(len(recorder.said), 60)
                with self.knock(port) as stranger:
                    stranger.sendall(recorder.said)
                    got, closed = heard(stranger, 30)  # until it is hung up on
                self.expect_little(job, got, "a replay")
                self.assertTrue(closed, "the replay was let in")  # who is let in may stay
                self.assertNotEqual(got, recorder.answered)
            self.goes_on(job, "strangers")
        kept = []
        with self.subTest("half-open and slow ones"):
            for port in sorted(job.ports):
                kept += [self.knock(port) for _ in range(40)]
            for turn in range(5):
                for one in kept:
                    try:
                        one.send(b"LOCKSTP1"[turn:turn + 1])
                    except OSError:
                        pass
                time.sleep(0.1)
            self.goes_on(job, "slow ones")
        with self.subTest("a thousand at once"):
            crowd = []
            for port in sorted(job.ports):
                for _ in range(1000 // len(job.ports)):
                    one = socket.socket()
                    one.setblocking(False)
                    one.connect_ex(port)
                    crowd.append(one)
            self.goes_on(job, "a thousand")
            for one in crowd:
                try:
                    one.setblocking(False)
                    self.expect_little(job, one.recv(65536), "one of a thousand")
                except OSError:
                    pass
            for one in crowd + kept:
                one.close()

    def expect_secret_kept(self, job):
        text = job.text()
        for secret in [job.given, job.secret]:
            for form in [secret.encode(), secret.upper().encode(), bytes.fromhex(secret)]:
                self.assertFalse(form in text, "the secret stands in the job's output")

    def expect_no_argument(self, job):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read()
            except OSError:
                continue
            for secret in [job.given, job.secret]:
                self.assertFalse(secret.encode() in words or bytes.fromhex(secret) in words,
                                 "the secret stands in an argument list")

    def disturb(self, security):
        job = Job(security, self.folder.name)
        try:
            self.assertTrue(job.ports, "the job listens nowhere")
            for address, _ in job.ports:
                self.assertEqual(address, "127.0.0.1")
            self.attack(job)
            self.expect_no_argument(job)
            self.assertEqual(listening(job.pids), job.ports, "it listens elsewhere now")
            seen = len(job.rates())
            until = time.monotonic() + 30
            while len(job.rates()) < seen + 2 and time.monotonic() < until:  # it goes on afterwards
                time.sleep(0.1)
            self.assertIsNone(job.process.poll(), "the job ended early")
        finally:
            if sys.exc_info()[0]:
                job.process.kill()
        self.assertEqual(job.end(), 0, "".join(job.lines[-20:]))
        results = [line for line in job.lines if " wrong" in line]
        self.assertEqual(len(results), 2, results)
        for line in results:
            self.assertIn(" 0 wrong", line)
        self.assertGreaterEqual(len(job.rates()), seen + 2)
        self.assertLess(job.rates().count(0), len(job.rates()) / 2, "it stood still for most of the time")
        self.expect_secret_kept(job)
        for pid in job.pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "a process is left")
        for port in job.ports:
            with self.assertRaises(OSError):
                self.knock(port)
        print(security, "calls in each second:", job.rates())

    def test_plaintext(self):
        self.disturb("plaintext")

    def test_tls(self):
        self.disturb("tls")

    def test_dump_of_a_job_that_failed_keeps_the_secret(self):
        job = Job("tls", self.folder.name)
        victim = next(pid for pid in job.pids[1:] if environment_of(pid, "RANK") == "1"
                      and os.readlink(f"/proc/{pid}/exe") == os.path.realpath(LOOP))
        os.kill(victim, signal.SIGKILL)
        job.process.wait(timeout=120)  # by itself: the survivor is not told that it is enough
        self.assertEqual(job.end(), 1, "".join(job.lines[-20:]))
        dumps = [name for _, _, names in os.walk(self.folder.name) for name in names if name.startswith("flight-")]
        self.assertTrue(dumps, "no dump to look into")
        self.expect_secret_kept(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
