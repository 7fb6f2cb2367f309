#!/usr/bin/env python3
"""`lockstep checkpoint`: train_checkpoint_test.py PATH_TO_LOCKSTEP [TEST_CLASS]

Reads safetensors by hand, as the format says, so that no other library can hide a mistake.
"""
import hashlib
import json
import os
import pty
import shutil
import struct
import subprocess
import unittest

from train_case import LANES, PROGRAM, Case

TORCH_NAMES = {"F32": "Float", "BF16": "BFloat16", "I64": "Long"}


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}, and the metadata."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    metadata = header.pop("__metadata__", {})
    spans = sorted(entry["data_offsets"] for entry in header.values())
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])] and spans[-1][1] == len(data)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}, metadata


def params_sha256(tensors):
    """As include/lockstep/checkpoint/hash.h says, and summary.json has it."""
    found = hashlib.sha256()
    for name, (dtype, shape, data) in sorted(tensors.items()):
        for text in (name.encode(), TORCH_NAMES[dtype].encode()):
            found.update(struct.pack("<q", len(text)) + text)
        found.update(struct.pack(f"<{1 + len(shape)}q", len(shape), *shape))
        found.update(struct.pack("<q", len(data)) + data)
    return found.hexdigest()


def rounded_to_bf16(data):
    words = struct.unpack(f"<{len(data) // 4}I", data)
    return struct.pack(f"<{len(words)}H", *((word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words))


class Checkpoints(Case):
    def lines(self, *args, status=0):
        """What `--json` prints: every line of standard output is an object."""
        done = self.run_program("checkpoint", *args, "--json")
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def flip(self, file, at):
        with open(file, "r+b") as changed:
            changed.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            byte = changed.read(1)[0]
            changed.seek(-1, os.SEEK_CUR)
            changed.write(bytes([byte ^ 1]))

    def test_of_a_run(self):
        summary = self.train("run", *LANES, "--steps", 4, "--checkpoint-every", 2)
        folder = self.path("run", "checkpoints")
        newest = os.path.join(folder, "step-00000004")
        params = 1024 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10
        self.inspect_it(folder, newest, params)
        self.export_it(newest, summary["params_sha256"])
        self.without_libtorch()
        self.damage_it(newest)
        self.usage()

    def inspect_it(self, folder, newest, params):
        for path, steps in ((self.path("run"), [2, 4]), (folder, [2, 4]), (newest, [4])):
            lines = self.lines("inspect", path)
            self.assertEqual([line["step"] for line in lines], steps)
            for line in lines:
                own = line["checkpoint"]
                self.assertEqual(line["bytes"], sum(os.stat(os.path.join(own, f)).st_size for f in os.listdir(own)))
                self.assertRegex(line["written"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            content = lines[-1]["content"]
            self.assertEqual({file["file"] for file in content["files"]}, set(os.listdir(newest)) - {"manifest.json"})
            self.assertEqual(content["totals"]["parameter"], {"tensors": 6, "elements": params, "bytes": 4 * params})
            self.assertNotIn("buffer", content["totals"])
            for tensor in content["tensors"]:
                dtype, shape, data = read_safetensors(os.path.join(newest, tensor["file"]))[0][tensor["name"]]
                self.assertEqual((tensor["dtype"], tensor["shape"], tensor["bytes"]), (dtype, shape, len(data)))
        text = self.run_program("checkpoint", "inspect", "./run", cwd=self.folder).stdout
        self.assertRegex(text, r"(?m)^step-00000002 +2 +3 +[\d.]+ KiB  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$")
        self.assertRegex(text, r"(?m)^run/checkpoints/step-00000004$")
        self.assertRegex(text, r"(?m)^0\.weight +F32 +\[32, 1024\] +128 KiB  parameter$")
        self.assertRegex(text, r"(?m)^model\.safetensors +6 ")

    def export_it(self, newest, sha256):
        out = self.path("weights.safetensors")
        line, = self.lines("export", self.path("run"), "--out", out)
        self.assertEqual((line["step"], line["tensors"], line["bytes"]), (4, 6, os.stat(out).st_size))
        tensors, metadata = read_safetensors(out)
        self.assertEqual(params_sha256(tensors), sha256)
        self.assertEqual((metadata["format"], metadata["step"]), ("pt", "4"))
        # Nothing is written over unless it is asked for, nor into a checkpoint.
        with open(out, "w") as file:
            file.write("mine")
        export = ["checkpoint", "export", self.path("run"), "--out"]
        self.refused(*export, out, words=[out, "--overwrite"])
        with open(out) as file:
            self.assertEqual(file.read(), "mine")
        done = self.run_program(*export, out, "--overwrite", "--master")  # of f32 there are none, nor any need
        self.assertRegex(done.stdout, rf"^{out}: 6 tensors, [\d.]+ KiB, from {newest}\n$")
        self.assertEqual(read_safetensors(out)[0], tensors)
        self.refused(*export, os.path.join(newest, "model.safetensors"), "--overwrite", words=["lies in a checkpoint"])
        self.refused(*export, self.path("none", "x"), words=["no folder", self.path("none")])
        self.refused(*export[:3], words=["--out"])

    def without_libtorch(self):
        os.mkdir(self.path("bin"))
        shutil.copy(PROGRAM, self.path("bin", "lockstep"))  # without lockstep-train beside it
        done = subprocess.run([self.path("bin", "lockstep"), "checkpoint", "verify", self.path("run")],
                              capture_output=True, text=True, env=self.environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^step-00000002  whole    3 files, [\d.]+ KiB\nstep-00000004  whole ")

    def damage_it(self, newest):
        weights = os.path.join(newest, "model.safetensors")
        with open(weights, "rb") as file:
            good = file.read()

        def verify(*words):
            done = self.run_program("checkpoint", "verify", self.path("run"))
            self.assertEqual((done.returncode, done.stderr),
                             (1, "lockstep checkpoint verify: 1 of 2 checkpoints is not whole\n"))
            older, damaged = done.stdout.splitlines()
            self.assertIn("whole", older)
            for word in ("step-00000004  damaged  model.safetensors", *words):
                self.assertIn(word, damaged)

        self.flip(weights, -1)
        verify("was altered", "elements 0 to 320 of 4.weight")
        older, damaged = self.lines("verify", self.path("run"), status=1)
        self.assertEqual((older["condition"], older["faults"]), ("whole", []))
        self.assertEqual((damaged["condition"], damaged["faults"][0]["file"]), ("damaged", "model.safetensors"))
        self.refused("checkpoint", "export", self.path("run"), "--out", self.path("bad"), status=1,
                     words=["step-00000004 is damaged", "step-00000002"])
        self.assertFalse(os.path.exists(self.path("bad")))
        os.truncate(weights, len(good) - 1)
        verify(f"{len(good) - 1} bytes instead of {len(good)}")
        self.refused("checkpoint", "inspect", newest, status=1, words=[weights, "cut off"])
        os.remove(weights)
        verify("is not there")
        with open(weights, "wb") as file:
            file.write(good)
        self.assertEqual(self.run_program("checkpoint", "verify", newest).returncode, 0)

    def usage(self):
        self.refused("checkpoint", words=["accepted: inspect, verify, export"])
        self.refused("checkpoint", "repair", words=["repair", "verify"])
        for command in ("inspect", "verify", "export"):
            more = ["--out", self.path("x")] if command == "export" else []
            self.refused("checkpoint", command, *more, words=["folder is needed"])
            self.refused("checkpoint", command, self.path("none"), *more, words=["none", "no such folder"])
            self.refused("checkpoint", command, self.path("bin"), *more, words=["accepted: a checkpoint"])
            self.assertIn("Examples:", self.run_program("checkpoint", command, "--help").stdout)
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, "checkpoint", "inspect", self.path("run")], stdout=full, text=True,
                                  stderr=subprocess.PIPE, env=self.environment)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output can't be written", done.stderr)

    def test_16_bits_and_their_masters(self):
        summary = self.train("run", *LANES, "--steps", 2, "--precision", "bf16", "--strategy", "zero1", "-n", 2)
        for file, flags in (("narrow", []), ("wide", ["--master"])):
            line, = self.lines("export", self.path("run"), "--out", self.path(file), *flags)
            self.assertEqual(line["masters"], 6 if flags else 0)
        narrow, wide = (read_safetensors(self.path(file))[0] for file in ("narrow", "wide"))
        self.assertEqual(params_sha256(narrow), summary["params_sha256"])
        self.assertEqual(list(narrow), list(wide))
        for name, (dtype, shape, data) in wide.items():
            self.assertEqual((dtype, narrow[name][0], shape), ("F32", "BF16", narrow[name][1]))
            self.assertEqual(rounded_to_bf16(data), narrow[name][2], name)
        totals = self.lines("inspect", self.path("run"))[-1]["content"]["totals"]
        self.assertEqual(totals["master"]["bytes"], 2 * totals["parameter"]["bytes"])

    def test_long_work_shows_how_far_it_is(self):
        folder = self.path("step-00000001")
        os.mkdir(folder)
        size = 1 << 29  # without a block on disk, and for every machine more than the interval between two lines
        with open(os.path.join(folder, "zeros.bin"), "wb") as file:
            file.truncate(size)
        manifest = {"files": {"zeros.bin": {"bytes": size, "sha256": "0" * 64}}, "format": 1, "step": 1}
        plain = json.dumps(manifest, separators=(",", ":"), sort_keys=True)
        manifest["sha256"] = hashlib.sha256(plain.encode()).hexdigest()
        with open(os.path.join(folder, "manifest.json"), "w") as file:
            file.write(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        near, far = pty.openpty()
        process = subprocess.Popen([PROGRAM, "checkpoint", "verify", folder], stdout=subprocess.PIPE, stderr=far, text=True,
                                   env=self.environment)
        os.close(far)
        shown = b""
        try:
            while piece := os.read(near, 65536):
                shown += piece
        except OSError:  # the other side is closed
            pass
        os.close(near)
        self.assertEqual(process.communicate()[0],
                         "step-00000001  damaged  zeros.bin was altered (its SHA-256 differs)\n")
        self.assertRegex(shown.decode(), r"^verifying: [\d.]+ MiB of 512\.0 MiB\r\033\[K")
        self.assertEqual(process.returncode, 1)


if __name__ == "__main__":
    unittest.main(verbosity=1)
