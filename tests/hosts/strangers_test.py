#!/usr/bin/env python3
"""Strangers on the network of a run: they get nothing and disturb nothing, and there is little for them to reach.

    strangers_test.py PATH_TO_LOCKSTEP [TEST_CLASS]
"""
import os
import pathlib
import secrets
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True
from cluster import FREE, JOIN, MODEL, PROGRAM, Case
from harness import main

# On host3: bothers each of the given addresses with what a scanner, a broken program and an attacker would send.
# Prints every answer that is longer than a handshake may be, and goodbye at the end.
STRANGER = r"""
import os, random, socket, sys, time
random.seed(1)
most = int(sys.argv[1])
places = [(host, int(port)) for host, port in (word.rsplit(":", 1) for word in sys.argv[2:])]
texts = [b"", b"\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + os.urandom(300), b"\xff" * 4096,
         b"\0" * 65536, *(random.randbytes(random.randrange(1, 2000)) for _ in range(30))]
def call(place, say=None):
    line = socket.create_connection(place, timeout=10)
    line.settimeout(0.01)
    try:
        if say is not None:
            line.sendall(say)
        if say == b"":
            line.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    return line
def answers(lines):
    time.sleep(0.5)
    heard = []
    for line in lines:
        got = b""
        try:
            while len(got) <= most and (more := line.recv(65536)):
                got += more
        except OSError:
            pass
        if len(got) > most:
            print("answered with", len(got), "bytes")
        heard.append(got)
        line.close()
    return heard
for place in places:
    heard = answers([call(place, say) for say in texts])
    answers([call(place, said) for said in {text + text for text in heard if text}])  # said back to it
# A thousand that say nothing, and stay.
held = []
for i in range(1000):
    line = socket.socket()
    line.setblocking(False)
    line.connect_ex(places[i % len(places)])
    held.append(line)
# And slow ones: a byte now and then.
slow = [call(place) for place in places]
for _ in range(20):
    for line in slow:
        try:
            line.send(b"\x16")
        except OSError:
            pass
    time.sleep(0.1)
print("goodbye")
"""
# In bytes, to somebody who has proven nothing: in plaintext a magic, a nonce and a code; in TLS a side of a handshake.
MOST_ANSWER = {"plaintext": 72, "tls": 400}


class Strangers(Case):
    HOSTS = 3  # the third is the strangers'

    def begin_run(self, *flags, **variables):
        shutil.rmtree(self.path("run"), ignore_errors=True)
        process = self.job(2, "run", *MODEL, "--checkpoint-every", 2, *FREE, flags=["--hosts", "2", *flags],
                           **variables)
        self.wait_for_steps(process, "run", 3)
        return process

    def bother(self, places, security="tls"):
        most = MOST_ANSWER[security]
        said = self.exec(self.set, 3, sys.executable, "-c", STRANGER, most, *places, timeout=240)
        self.assertEqual(said.stdout, "goodbye\n", said.stderr)

    def test_a_run_is_not_disturbed(self):
        for security, flags in (("tls", []), ("plaintext", ["--plaintext"])):
            with self.subTest(security=security):
                process = self.begin_run(*flags)
                places = [address for host in (1, 2) for address in self.listening()[host]]
                self.assertGreaterEqual(len(places), 4)  # a worker each
                self.bother(places, security)
                self.wait_for_steps(process, "run", len(self.losses("run")) + 5)
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(60), 130, self.said("run"))
                steps = len(self.losses("run")) + 2
                self.train("run", "-n", 2, "--resume", self.path("run"), "--steps", steps)
                self.assertEqual(self.bits("run"), self.alone(steps))

    def test_a_meeting_is_not_disturbed(self):
        secret = {"LOCKSTEP_SECRET": secrets.token_hex(32)}

        def agent(host, node, variables):
            return self.begin(self.set, host, PROGRAM, "run", "--nnodes", "2", "--node-rank", node, "--rdzv-endpoint",
                              "10.77.0.1:29400", *JOIN, "--", "true", env=self.environment | variables)

        first = agent("1", "0", secret)
        for _ in range(200):
            if self.listening()[1]:
                break
            time.sleep(0.05)
        self.bother(["10.77.0.1:29400"])
        for variables, status in (({"LOCKSTEP_SECRET": secrets.token_hex(32)}, 1), ({"LOCKSTEP_SECRET": ""}, 2)):
            refused = agent("3", "1", variables)
            said = refused.communicate(timeout=30)[0]
            self.assertEqual(refused.returncode, status, said)
            self.assertIn("secret", said)
        self.assertIsNone(first.poll())
        second = agent("2", "1", secret)
        for joined in (second, first):
            said = joined.communicate(timeout=60)[0]
            self.assertEqual(joined.returncode, 0, said)

    def test_nothing_listens_that_was_not_asked_for(self):
        self.begin_run()
        for host in (1, 2):
            addresses = self.listening()[host]
            self.assertEqual({address.rsplit(":", 1)[0] for address in addresses}, {f"10.77.0.{host}"}, addresses)

    def test_the_secret_is_nowhere(self):
        secret = secrets.token_hex(32)
        self.environment["LOCKSTEP_LOG"] = "trace"
        process = self.begin_run(LOCKSTEP_SECRET=secret)
        running = self.processes()
        hidden = {secret} | {env["LOCKSTEP_SECRET"] for _, env, _ in running.values() if "LOCKSTEP_SECRET" in env}
        self.assertGreater(len(running), 4)
        for words, _, _ in running.values():
            for one in hidden:
                self.assertNotIn(one, " ".join(words))
        os.kill(self.worker(3), signal.SIGKILL)  # so that there are flight records
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
