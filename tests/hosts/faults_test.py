#!/usr/bin/env python3
"""A worker, an agent, a whole host go in the middle of a run across hosts: every survivor names who it was, nothing
is left behind, and the run goes on from its last checkpoint with the bits of one that was never disturbed.

    faults_test.py PATH_TO_LOCKSTEP [TEST_CLASS]
"""
import os
import re
import shutil
import signal
import sys

sys.dont_write_bytecode = True
from cluster import FREE, MODEL, Case
from harness import hosts, main, say_repeated

EVERY = 2             # steps between checkpoints
SILENCE = "does not answer"  # what is said of somebody who was given up after a time of silence


class Fault(Case):
    """Two hosts with two workers each: ranks 0 and 1 on host1, 2 and 3 on host2."""

    def begin_run(self):
        shutil.rmtree(self.path("run"), ignore_errors=True)
        self.process = self.job(2, "run", *MODEL, "--checkpoint-every", EVERY, *FREE)
        self.wait_for_checkpoint(self.process, "run", EVERY)
        self.assertEqual(len(self.workers_of("run")), 4)

    def end_run(self, silence, status=1):
        """Waits for the end of all agents. The status is host1's agent's. `silence`: somebody had to be given up; else
        the kernel told, and nobody may have waited for silence. How long it takes depends on the machine; by which of
        the two ways it was noticed does not."""
        self.assertEqual(self.process.wait(120), status, self.said("run"))
        self.assertEqual(SILENCE in self.said("run"), silence, self.said("run"))
        self.check_nothing_is_left()

    def check_survivor(self, rank, gone):
        """Its last word is the name of a rank that is gone."""
        told = [match[1] for match in (re.search(r"lockstep train: rank (\d+) of group \S+ died", line)
                                       for line in self.lines_of("run", rank)) if match]
        self.assertEqual(len(told), 1, self.said("run"))
        self.assertIn(int(told[0]), gone, self.said("run"))

    def check_agent(self, host, first):
        """Its report begins with the failure that came first."""
        prefix = "" if host == 1 else f"host{host}| "
        reports = [line for line in self.said("run").splitlines()
                   if line.startswith(f"{prefix}lockstep run: ") and "failed first" in line]
        self.assertEqual(len(reports), 1, self.said("run"))
        self.assertRegex(reports[0], rf"^{re.escape(prefix)}lockstep run: {first}")

    def go_on(self, per_host, workers_alone):
        """The rest of the run across the hosts, then a little more by other workers on one machine."""
        kept = [int(name[5:]) for name in os.listdir(self.path("run", "checkpoints")) if name.startswith("step-")]
        saved = max(kept)
        self.assertGreaterEqual(saved, EVERY)
        process = self.job(per_host, "run", "--resume", self.path("run"), "--steps", saved + 2)
        self.assertEqual(process.wait(120), 0, self.said("run"))
        self.assertEqual(self.bits("run"), self.alone(saved + 2))
        self.train("run", "-n", workers_alone, "--resume", self.path("run"), "--steps", saved + 4)
        self.assertEqual(self.bits("run"), self.alone(saved + 4))

    def test_a_worker(self):
        for victim in (0, 3):
            with self.subTest(victim=victim):
                self.begin_run()
                os.kill(self.worker(victim), signal.SIGKILL)
                self.end_run(silence=False)
                for rank in {0, 1, 2, 3} - {victim}:
                    self.check_survivor(rank, {victim})
                node = victim // 2
                first = rf"rank {victim} \(node {node}, host{node + 1}\) failed first: it was killed by SIGKILL"
                for host in (1, 2):
                    self.check_agent(host, first)
                self.go_on(per_host=1, workers_alone=3)

    def test_a_worker_inside_a_gather(self):
        """Parameters that are gathered across a slow link, where a step is mostly that."""
        hosts("rate", "--link", "1-2=100mbit", "--name", self.set)
        self.addCleanup(hosts, "rate", "--link", "1-2=10gbit", "--name", self.set)
        for _ in range(5):  # of a few moments in a step somebody is elsewhere
            shutil.rmtree(self.path("run"), ignore_errors=True)
            wide = [*MODEL, "--width", 512]
            self.process = self.job(1, "run", *wide, "--strategy", "zero3", *FREE)
            self.wait_until(self.process, lambda: len(self.rows("run", "steps.csv")) > 2)
            os.kill(self.worker(1), signal.SIGKILL)
            self.end_run(silence=False)
            self.check_survivor(0, {1})
            if any("the parameters of unit" in line for line in self.lines_of("run", 0)):
                return
            say_repeated(self.id(), "no worker was inside of a gather")
        self.fail(f"no worker was inside of a gather: {self.said('run')}")

    def test_an_agent(self):
        for victim in (1, 2):
            with self.subTest(victim=f"host{victim}"):
                self.begin_run()
                os.kill(self.agent(victim), signal.SIGKILL)
                self.end_run(silence=False, status=137 if victim == 1 else 1)
                other = 3 - victim
                self.check_agent(other, rf"node {victim - 1} \(host{victim}\) failed first: its agent closed the "
                                        "connection")
                for rank in (2 * other - 2, 2 * other - 1):
                    self.check_survivor(rank, {2 * victim - 2, 2 * victim - 1})
        self.go_on(per_host=2, workers_alone=1)

    def test_a_hosts_network(self):
        for victim in (1, 2):
            with self.subTest(victim=f"host{victim}"):
                self.begin_run()
                hosts("fail", victim, "--name", self.set)
                self.end_run(silence=True)
                # Each side lost the other, and says so.
                for host, other in ((1, 2), (2, 1)):
                    self.check_agent(host, rf"node {other - 1} \(host{other}\) failed first: its agent does not answer")
                    for rank in (2 * host - 2, 2 * host - 1):
                        self.check_survivor(rank, {2 * other - 2, 2 * other - 1})
                hosts("heal", victim, "--name", self.set)
        self.go_on(per_host=1, workers_alone=4)

    def test_a_hosts_power(self):
        self.begin_run()
        hosts("fail", 2, "--kill", "--name", self.set)
        self.end_run(silence=True)
        self.check_agent(1, r"node 1 \(host2\) failed first: its agent does not answer")
        for rank in (0, 1):
            self.check_survivor(rank, {2, 3})
        hosts("heal", 2, "--name", self.set)
        self.go_on(per_host=2, workers_alone=2)

    def test_started_again_by_the_agents(self):
        process = self.job(2, "run", *MODEL, "--checkpoint-every", EVERY, "--steps", 400,
                           flags=["--max-restarts", "1"])
        self.wait_for_checkpoint(process, "run", EVERY)
        os.kill(self.worker(2), signal.SIGKILL)
        self.assertEqual(process.wait(240), 0, self.said("run"))
        self.assertIn("going on after step", self.said("run"))
        self.assertEqual(self.bits("run"), self.alone(400))
        self.check_nothing_is_left()


if __name__ == "__main__":
    main()
