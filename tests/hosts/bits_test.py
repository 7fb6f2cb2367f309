#!/usr/bin/env python3
"""One run, the same bits: on one machine, and across hosts. bits_test.py PATH_TO_LOCKSTEP [TEST_CLASS]"""
import subprocess
import sys

sys.dont_write_bytecode = True
from cluster import MODEL, PROGRAM, Case
from harness import TOOL, main


class Tcp(Case):
    HOSTS = 4

    def test_two_and_four_hosts_with_tls(self):
        alone = self.alone()
        for count in (2, 4):
            with self.subTest(hosts=count):
                self.assertEqual(self.trained(1, flags=["--hosts", str(count)]), alone)
                self.check_job(count, "tcp")
                for rank in range(count):
                    self.assertRegex(self.said("run"), rf"rank {rank} listens on 10\.77\.0\.{rank + 1}:\d+, TLS 1\.3")

    def test_two_workers_on_each_of_two_hosts(self):
        alone = self.alone()
        for engine, used in (("auto", "shm+tcp"), ("tcp", "tcp")):
            with self.subTest(engine=engine):
                self.assertEqual(self.trained(2, flags=["--hosts", "2"], LOCKSTEP_ENGINE=engine), alone)
                self.check_job(4, used)
                algorithms = {row["algorithm"] for row in self.rows("run", "buckets.csv")}
                self.assertEqual(algorithms == {"by-node"}, engine == "auto", algorithms)

    def test_plaintext(self):
        self.assertEqual(self.trained(1, flags=["--hosts", "2", "--plaintext"]), self.alone())
        self.check_job(2, "tcp")
        self.assertRegex(self.said("run"), r"rank 0 listens on 10\.77\.0\.1:\d+, plaintext")

    def test_several_streams_between_two_workers(self):
        self.assertEqual(self.trained(1, flags=["--hosts", "2"], LOCKSTEP_TCP_STREAMS="3"), self.alone())
        self.check_job(2, "tcp")

    def test_every_canonical_algorithm(self):
        alone = self.alone()
        for algorithm in ("tree", "halving-doubling", "pairwise"):
            with self.subTest(algorithm=algorithm):
                found = self.trained(1, "--algorithm", algorithm, LOCKSTEP_ENGINE="tcp")
                self.check_job(4, "tcp")
                self.assertEqual({row["algorithm"] for row in self.rows("run", "buckets.csv")}, {algorithm})
                self.assertEqual(found, alone)


class Shards(Case):
    """Parameters in shards across hosts: gathered, one copy a host, and inside of hosts alone."""

    def test_two_workers_on_each_of_two_hosts(self):
        alone = self.alone()
        for strategy, engine, used in (("hybrid-shard", "auto", "shm+tcp"), ("hybrid-shard", "tcp", "tcp"),
                                       ("zero3", "auto", "shm+tcp"), ("zero3", "tcp", "tcp")):
            with self.subTest(strategy=strategy, engine=engine):
                self.assertEqual(self.trained(2, "--strategy", strategy, LOCKSTEP_ENGINE=engine), alone)
                self.check_job(4, used)
                gathered = self.summary("run")["memory"]["gathered_bytes"]
                self.assertEqual(gathered > 0, engine == "tcp", gathered)  # one copy a host needs none

    def test_one_worker_a_host_gathers(self):
        alone = self.alone()
        for more in ([], ["--offload", self.folder, "--offload-what", "state,params"]):
            with self.subTest(more=more):
                self.assertEqual(self.trained(1, "--strategy", "zero3", *more), alone)
                self.check_job(2, "tcp")
                self.assertGreater(self.summary("run")["memory"]["gathered_bytes"], 0)


class Mpi(Case):
    """Started by mpirun, which reaches the other host through tools/hosts as it would through ssh."""

    def mpirun(self, engine, per_host):
        command = [sys.executable, TOOL, "exec", "1", "--name", self.set, "--", "mpirun", "--allow-run-as-root",
                   "--oversubscribe", "--mca", "plm_rsh_agent", f"{TOOL} rsh", "-H",
                   f"host1:{per_host},host2:{per_host}"]
        for name in ("LOCKSTEP_ENGINE", "LOCKSTEP_CACHE_DIR", "LOCKSTEP_ALGORITHM", "TMPDIR"):
            command += ["-x", name]
        command += [PROGRAM, "train", "--out", self.path("run"), *MODEL, "--steps", "5", "--overwrite"]
        variables = {"LOCKSTEP_ENGINE": engine, "LOCKSTEP_ALGORITHM": ""}
        done = subprocess.run(command, env=self.environment | variables, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return self.bits("run")

    def test_mpirun_with_our_algorithms(self):
        alone = self.alone()
        for engine, per_host, used in (("auto", 2, "shm+mpi"), ("mpi", 2, "mpi"), ("auto", 1, "mpi")):
            with self.subTest(engine=engine, per_host=per_host):
                self.assertEqual(self.mpirun(engine, per_host), alone)
                self.check_job(2 * per_host, used)


class Gloo(Case):
    """Our sums over Gloo's messages: the same bits, idle workers in the last step too."""

    def test_the_same_bits(self):
        alone = self.alone()
        for engine in ("gloo", "shm+gloo"):
            with self.subTest(engine=engine):
                self.assertEqual(self.trained(2, LOCKSTEP_ENGINE=engine), alone)
                self.check_job(4, engine)


if __name__ == "__main__":
    main()
