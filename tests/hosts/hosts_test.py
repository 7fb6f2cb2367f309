#!/usr/bin/env python3
"""tools/hosts itself: what it makes is a network, and nothing of it stays behind."""
import concurrent.futures
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
from harness import TOOL, Case, hosts, left, main, say_repeated

LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
server.settimeout(20)
print("listening", flush=True)
connection, peer = server.accept()
print("from", peer[0], flush=True)
connection.settimeout(float(sys.argv[2]))
while True:
    try:
        print("got", connection.recv(100).decode() or "the end", flush=True)
    except TimeoutError:
        print("got nothing", flush=True)
"""
# Says each line of its input to the other side.
TALK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 5000), timeout=10)
print("connected", flush=True)
for line in sys.stdin:
    connection.sendall(line.strip().encode())
"""


def links():
    """Of the machine itself."""
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def rates(text):
    """The figures of `measure`, row by row."""
    return [[float(word) for word in line.split()[2:] if word != "–"] for line in text.splitlines()[1:]]


class Sleepers(Case):
    def begin_sleeper(self, name, host):
        """A command on a host that has begun and does not end by itself."""
        process = self.begin(name, host, "sh", "-c", "echo there; exec sleep 60")
        self.assertEqual(process.stdout.readline(), "there\n")
        return process


class Network(Sleepers):
    def test_hosts_have_names_and_addresses(self):
        before = links(), socket.gethostname()
        name = self.up(3)
        for i in (1, 2, 3):
            script = "hostname; getent hosts host1; ip -o -4 address show eth0; ip -o link show lo"
            said = self.exec(name, f"host{i}", "sh", "-c", script).stdout.splitlines()
            self.assertEqual(said[0], f"host{i}")
            self.assertEqual(said[1].split()[:2], ["10.77.0.1", "host1"])
            self.assertIn(f"10.77.0.{i}/24", said[2])
            self.assertIn("UP", said[3])
        self.assertEqual((links(), socket.gethostname()), before)

    def test_status_and_output_are_the_commands(self):
        name = self.up(2)
        done = self.exec(name, "1", "sh", "-c", "echo out; echo err >&2; exit 5", check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (5, "out\n", "err\n"))

    def check_rates(self, name, expected):
        """Much less than the rate is a busy machine's, and so is more: what lay in a socket when the time began is counted.
        Then it is measured again, and for longer, until each pair was at half of its rate once and none is above it since."""
        unsure = {(a, b) for a, row in enumerate(expected) for b in range(len(row))}
        for attempt in range(20):
            found = rates(hosts("measure", "--name", name, "--seconds", 0.3 + 0.1 * attempt).stdout)
            for a, (row, most_of_row) in enumerate(zip(found, expected, strict=True)):
                for b, (rate, most) in enumerate(zip(row, most_of_row, strict=True)):
                    if rate > most:
                        unsure.add((a, b))
                    elif rate >= most / 2:
                        unsure.discard((a, b))
            if not unsure:
                if attempt > 0:
                    say_repeated(self.id(), f"{attempt} looks found pairs above the rate or below half of it")
                return
        self.fail(f"never between half of the rate and the rate: {unsure} of {expected}, last {found}")

    def test_rates(self):
        name = self.up(3, "--rate", "200mbit", "--link", "1-3=40mbit")
        self.check_rates(name, [[200, 40], [200, 200], [40, 200]])
        hosts("rate", "--name", name, "--rate", "100mbit", "--link", "2-3=20mbit", "--link", "1-3=100mbit")
        self.check_rates(name, [[100, 100], [100, 20], [100, 20]])

    def test_fail_is_silent_and_heal_brings_everything(self):
        name = self.up(2)
        taker = self.begin(name, "2", sys.executable, "-c", LISTEN, "10.77.0.2", "0.7")
        self.assertEqual(taker.stdout.readline(), "listening\n")
        giver = self.begin(name, "1", sys.executable, "-c", TALK, "10.77.0.2", stdin=subprocess.PIPE)
        self.assertEqual(giver.stdout.readline(), "connected\n")
        self.assertEqual(taker.stdout.readline(), "from 10.77.0.1\n")

        def say(word):
            giver.stdin.write(word + "\n")
            giver.stdin.flush()

        def hear(word, most=60):
            """Waits for it, through silence and nothing else."""
            for _ in range(most):
                line = taker.stdout.readline()
                if line == f"got {word}\n":
                    return
                self.assertEqual(line, "got nothing\n")
            self.fail(f"no '{word}'")

        say("one")
        hear("one")
        hosts("fail", "host1", "--name", name)
        self.assertRegex(hosts("list", "--name", name).stdout, r"host1 +10\.77\.0\.1 +failed")
        say("two")
        for _ in range(2):
            self.assertEqual(taker.stdout.readline(), "got nothing\n")  # and no end: the connection stays
        hosts("heal", "host1", "--name", name)
        hear("two")

    def test_fail_with_kill_ends_what_runs_there(self):
        name = self.up(2)
        sleepers = {host: self.begin_sleeper(name, host) for host in ("1", "2")}
        hosts("fail", "1", "--kill", "--name", name)
        self.assertEqual(sleepers["1"].wait(5), -signal.SIGKILL)
        self.assertIsNone(sleepers["2"].poll())

    def test_two_sets_do_not_meet(self):
        one, two = self.name("-1"), self.name("-2")
        for name in (one, two):
            hosts("up", 2, "--name", name)
        first = self.begin(one, "2", sys.executable, "-c", LISTEN, "10.77.0.2", "5")
        self.assertEqual(first.stdout.readline(), "listening\n")
        # The same address, and nobody is there.
        refused = self.exec(two, "1", sys.executable, "-c", TALK, "10.77.0.2", check=False)
        self.assertIn("ConnectionRefusedError", refused.stderr)
        second = self.begin(two, "2", sys.executable, "-c", LISTEN, "10.77.0.2", "5")
        self.assertEqual(second.stdout.readline(), "listening\n")
        hosts("down", "--name", one)
        self.assertEqual(left(one), [])
        giver = self.begin(two, "1", sys.executable, "-c", TALK, "10.77.0.2", stdin=subprocess.DEVNULL)
        self.assertEqual(giver.stdout.readline(), "connected\n")


class End(Sleepers):
    def test_down_removes_everything_and_may_be_called_again(self):
        before = links()
        name = self.up(4)
        sleeper = self.begin_sleeper(name, "3")
        self.assertEqual(len(left(name)), 5 + 1 + 1)  # hosts and switch, folder, the sleeper
        for _ in range(2):
            hosts("down", "--name", name)
            self.assertEqual(sleeper.wait(5), -signal.SIGKILL)
            self.assertEqual(left(name), [])
        self.assertEqual(links(), before)

    def test_with_gives_the_commands_status_and_leaves_nothing(self):
        script = f'echo "set $HOSTS_SET"; {TOOL} exec 2 -- hostname; exit 9'
        done = hosts("with", 2, "--", "sh", "-c", script, check=False)
        self.assertEqual(done.returncode, 9, done.stderr)
        name, host = re.fullmatch(r"set (\S+)\n(\S+)\n", done.stdout).groups()
        self.assertEqual(host, "host2")
        self.assertEqual(left(name), [])
        missing = hosts("with", 2, "--name", self.name(), "--", "/nonesuch", check=False)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("/nonesuch", missing.stderr)
        self.assertEqual(left(self.name()), [])

    def begin_with(self, name):
        script = f"{TOOL} exec 1 -- sh -c 'echo there; exec sleep 60' & wait"
        process = subprocess.Popen([sys.executable, TOOL, "with", "2", "--name", name, "--", "sh", "-c", script],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "there\n")
        return process

    def test_a_stopped_with_cleans_up(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number):
                name = self.name(f"-{number}")
                process = self.begin_with(name)
                process.send_signal(number)
                self.assertEqual(process.wait(20), 128 + number)
                self.assertEqual(left(name), [])

    def test_down_removes_what_a_killed_with_left(self):
        name = self.name()
        process = self.begin_with(name)
        process.kill()
        process.wait()
        self.assertNotEqual(left(name), [])
        hosts("down", "--name", name)
        self.assertEqual(left(name), [])

    def test_up_that_fails_leaves_nothing(self):
        name = self.name()
        refused = hosts("up", 2, "--name", name, "--link", "1-3=10mbit", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("accepted: host1, host2", refused.stderr)
        self.assertEqual(left(name), [])


class Job(Case):
    """`run`, with a program in lockstep's place that says how it was started."""

    AGENT = """#!/bin/sh
echo "$(hostname) $*"
echo "secret $(printf %s "$LOCKSTEP_SECRET" | wc -c) $(printf %s "$LOCKSTEP_SECRET" | sha256sum)" >&2
[ "$(hostname)" = host2 ] && exit ${STATUS:-0}
exit 0
"""

    def setUp(self):
        super().setUp()
        with open(self.path("agent"), "w") as file:
            file.write(self.AGENT)
        os.chmod(self.path("agent"), 0o755)

    def run_job(self, name, *words, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")} | variables
        return hosts("run", "--name", name, "--lockstep", self.path("agent"), *words, check=False, env=environment)

    def test_an_agent_on_every_host_with_one_secret(self):
        name = self.up(3)
        done = self.run_job(name, "-n", 2, "--plaintext", "--", "program", "--flag")
        self.assertEqual(done.returncode, 0, done.stderr)
        said = "run --nnodes 3 --rdzv-endpoint 10.77.0.1:29400 -n 2 --plaintext --node-rank {} -- program --flag"
        self.assertEqual(sorted(done.stdout.splitlines()),
                         sorted([f"host1 {said.format(0)}", f"host2| host2 {said.format(1)}",
                                 f"host3| host3 {said.format(2)}"]))
        told = re.findall(r"secret 64 ([0-9a-f]{64})", done.stderr)
        self.assertEqual((len(told), len(set(told))), (3, 1), done.stderr)
        again = self.run_job(name, "--", "program")
        self.assertNotIn(told[0], again.stderr, "a secret a job")

    def test_the_jobs_status(self):
        name = self.up(2)
        self.assertEqual(self.run_job(name, "--", "program", STATUS="3").returncode, 3)
        self.assertEqual(self.run_job(name, "--hosts", 1, "--", "program", STATUS="3").returncode, 0)  # not on host2

    def test_a_stopped_run_stops_its_agents(self):
        name = self.up(2)
        with open(self.path("agent"), "w") as file:
            file.write("#!/bin/sh\necho there\nexec sleep 60\n")
        for number, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            process = subprocess.Popen([sys.executable, TOOL, "run", "--name", name, "--lockstep", self.path("agent"),
                                        "--", "program"], stdout=subprocess.PIPE, text=True)
            self.addCleanup(process.communicate)
            self.assertEqual({process.stdout.readline(), process.stdout.readline()}, {"there\n", "host2| there\n"})
            process.send_signal(number)
            self.assertEqual(process.wait(20), status)
            for _ in range(100):
                if not [what for what in left(name) if what.startswith("process")]:
                    break
                time.sleep(0.05)
            else:
                self.fail(f"left: {left(name)}")


class State(Case):
    def test_sets_come_and_go_at_once(self):
        """The folder of all goes with the last of them, also while another one begins."""
        loader = importlib.machinery.SourceFileLoader("hosts_tool", TOOL)
        tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("hosts_tool", loader))
        loader.exec_module(tool)
        tool.STATE = pathlib.Path(self.path("state"))

        def come_and_go(name):
            for _ in range(500):
                one = tool.Set(name)
                one.state = {"name": name}
                one.save()
                self.assertEqual(tool.Set(name).load().state, one.state)
                one.forget()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for done in pool.map(come_and_go, "abcd"):
                self.assertIsNone(done)
        self.assertFalse(tool.STATE.exists())


class Usage(unittest.TestCase):
    def test_mistakes_are_named(self):
        for words, status, said in [
            (["up", "1"], 2, "accepted: 2 to 8"),
            (["up", "2", "--rate", "fast"], 2, "1.5gbit"),
            (["up", "2", "--link", "1-1=1mbit"], 2, "1-2=200mbit"),
            (["up", "2", "--queue", "5"], 2, "1ms"),
            (["up", "2", "--name", "a/b"], 2, "letters"),
            (["exec", "1", "--name", "nobody", "--", "true"], 1, "no hosts named 'nobody'"),
            (["exec", "1", "true"], 2, "-- COMMAND"),
            (["run"], 2, "-- COMMAND"),
            (["rate", "--name", "nobody"], 1, "no hosts named 'nobody'"),
        ]:
            with self.subTest(words=words):
                done = hosts(*words, check=False)
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)
                self.assertIn(said, done.stderr)

    def test_a_set_that_is_up_stays(self):
        name = f"stays-{os.getpid()}"
        self.addCleanup(hosts, "down", "--name", name)
        hosts("up", 2, "--name", name)
        refused = hosts("up", 2, "--name", name, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("up already", refused.stderr)
        self.assertEqual(hosts("exec", "host2", "--name", name, "--", "hostname").stdout, "host2\n")
        unknown = hosts("fail", "host3", "--name", name, check=False)
        self.assertIn("accepted: host1, host2", unknown.stderr)
        nothing = hosts("rate", "--name", name, check=False)
        self.assertIn("accepted: --rate", nothing.stderr)


if __name__ == "__main__":
    main()
