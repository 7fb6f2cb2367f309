#!/usr/bin/env python3
"""Strangers on the network of a run: they get nothing and disturb nothing, and there is little for them to reach.

    strangers_test.py PATH_TO_LOCKSTEP [TEST_CLASS]
"""
import os
import pathlib
import secrets
import sys

sys.dont_write_bytecode = True
from cluster import FREE, JOIN, MODEL, PROGRAM, Case
from harness import main

# On host3: bothers each of the given addresses with what a scanner, a broken program and an attacker would send.
# Prints every answer that is longer than a fixed handshake may be. Ends when it has said goodbye.
STRANGER = r"""
import os, random, socket, sys, time
random.seed(1)
most = int(sys.argv[1])
places = [(host, int(port)) for host, port in (word.rsplit(":", 1) for word in sys.argv[2:])]
def call(place):
    line = socket.create_connection(place, timeout=5)
    line.settimeout(0.3)
    return line
def answer(line):
    got = b""
    try:
        while len(got) <= most and (more := line.recv(65536)):
            got += more
    except OSError:
        pass
    if len(got) > most:
        print("answered with", len(got), "bytes")
    return got
held = []
for place in places:
    for said in (b"", b"\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + os.urandom(300),
                 b"\xff" * 4096, b"\0" * 65536, *(random.randbytes(random.randrange(1, 2000)) for _ in range(30))):
        try:
            line = call(place)
            line.sendall(said)
            if said == b"":
                line.shutdown(socket.SHUT_WR)
            answer(line)
            line.close()
        except OSError:
            pass
    # What the other side says first, said back to it later.
    try:
        line = call(place)
        heard = answer(line)
        line.close()
        line = call(place)
        line.sendall(heard + heard)
        answer(line)
    except OSError:
        pass
    # Very many that say nothing, and stay.
    for _ in range(1000 // len(places) + 1):
        try:
            line = socket.socket()
            line.setblocking(False)
            line.connect_ex(place)
            held.append(line)
        except OSError:
            break
# And slow ones: a byte now and then.
slow = []
for place in places:
    try:
        slow.append(call(place))
    except OSError:
        pass
for _ in range(20):
    for line in slow:
        try:
            line.send(b"\x16")
        except OSError:
            pass
    time.sleep(0.1)
print("goodbye")
"""
MOST_ANSWER = 4096  # bytes


class Strangers(Case):
    HOSTS = 3  # the third is the strangers'

    def run_job(self, *args, **variables):
        return self.job(2, "run", *MODEL, *args, flags=["--hosts", "2", *self.flags], **variables)

    flags = []

    def places(self):
        return [address for host in (1, 2) for address in self.listening()[host]]

    def check_undisturbed(self, process):
        before = len(self.losses("run"))
        self.wait_for_steps(process, "run", before + 5)

    def test_nobody_is_disturbed(self):
        for flags in ([], ["--plaintext"]):
            with self.subTest(flags=flags):
                self.flags = flags
                process = self.run_job("--overwrite", "--steps", 3000)
                self.wait_for_steps(process, "run", 3)
                places = self.places()
                self.assertTrue(places)
                said = self.exec(self.set, 3, sys.executable, "-c", STRANGER, MOST_ANSWER, *places, timeout=240)
                self.assertEqual(said.stdout, "goodbye\n", said.stderr)
                self.assertIsNone(process.poll(), "the run ended before the strangers did\n" + self.said("run"))
                self.assertEqual(process.wait(240), 0, self.said("run"))
                self.assertEqual(self.bits("run"), self.alone(3000))

    def test_another_secret_is_refused(self):
        process = self.run_job(*FREE)
        self.wait_for_steps(process, "run", 3)
        meeting = next(place for place in self.places() if place.endswith(":29400"))
        for variables, status in (({"LOCKSTEP_SECRET": secrets.token_hex(32)}, 1), ({}, 2)):
            environment = {name: value for name, value in self.environment.items() if name != "LOCKSTEP_SECRET"}
            refused = self.exec(self.set, 3, PROGRAM, "run", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint",
                                meeting, *JOIN, "--", "true", check=False, env=environment | variables)
            self.assertEqual(refused.returncode, status, refused.stdout + refused.stderr)
            self.assertIn("secret", refused.stderr)
        self.check_undisturbed(process)

    def test_nothing_listens_that_was_not_asked_for(self):
        process = self.run_job(*FREE)
        self.wait_for_steps(process, "run", 3)
        for host in (1, 2):
            addresses = self.listening()[host]
            self.assertEqual({address.rsplit(":", 1)[0] for address in addresses}, {f"10.77.0.{host}"}, addresses)

    def test_the_secret_is_nowhere(self):
        secret = secrets.token_hex(32)
        self.environment["LOCKSTEP_LOG"] = "trace"
        process = self.run_job(*FREE, "--checkpoint-every", 2, LOCKSTEP_SECRET=secret)
        self.wait_for_steps(process, "run", 3)
        running = self.processes()
        hidden = {secret} | {env["LOCKSTEP_SECRET"] for _, env, _ in running.values() if "LOCKSTEP_SECRET" in env}
        self.assertGreater(len(running), 4)
        for words, _, _ in running.values():
            for one in hidden:
                self.assertNotIn(one, " ".join(words))
        os.kill(self.worker(3), 6)  # so that there are flight records
        self.assertEqual(process.wait(60), 1)
        files = [path for path in pathlib.Path(self.folder).rglob("*") if path.is_file()]
        self.assertTrue([path for path in files if path.name.startswith("flight-")], "no flight record")
        for path in files:
            content = path.read_bytes()
            for one in hidden:
                for form in (one.encode(), one.upper().encode(), bytes.fromhex(one)):
                    self.assertNotIn(form, content, path)


if __name__ == "__main__":
    main()
