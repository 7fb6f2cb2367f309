"""`lockstep train` against PyTorch: pytorch_reference.py PATH_TO_LOCKSTEP

Trains the same model on the same files twice, and compares the loss of every step. Everything on this side is
written again from the formats' and headers' words, and takes nothing from Lockstep: the shuffle, the reading of
CIFAR-10's files and of safetensors, the first weights (PyTorch's own at the same seed), the step over one batch of
all lanes.
"""
import csv
import glob
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import torch
import torchvision
from torch.nn.functional import cross_entropy

PROGRAM = os.path.abspath(sys.argv.pop(1))
TOLERANCE = 1e-5  # relative, of a step's loss
SEED = 11
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def random_numbers(seed, step, lane):
    """The stream (seed, step, lane): SplitMix64."""
    state = mix((seed + GOLDEN) & MASK)
    state = mix(state ^ (step + 2 * GOLDEN) & MASK)
    state = mix(state ^ (lane + 3 * GOLDEN) & MASK)
    while True:
        state = (state + GOLDEN) & MASK
        yield mix(state)


def shuffled(size, seed, epoch):
    """The epoch's order: Fisher and Yates' shuffle."""
    numbers = random_numbers(mix(seed ^ int.from_bytes(b"order", "big")), epoch, 0)
    order = list(range(size))
    for i in range(size - 1, 0, -1):
        j = next(numbers) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def batches(size, batch):
    """The examples of each step, epoch after epoch; what is left at an epoch's end is a step of its own."""
    assert size % batch != 1, "one example left over would join the step before"
    epoch = 0
    while True:
        order = shuffled(size, SEED, epoch)
        for first in range(0, size, batch):
            yield order[first:first + batch]
        epoch += 1


def read_images(folder):
    """CIFAR-10's binary files: records of a label and three planes of 32 × 32 bytes."""
    raw = b""
    for number in range(1, 6):
        with open(os.path.join(folder, f"data_batch_{number}.bin"), "rb") as file:
            raw += file.read()
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 1 + 3 * 32 * 32)
    pixels = records[:, 1:].to(torch.float64).view(-1, 3, 32, 32)
    return ((pixels / 255 - 0.5) / 0.29).float(), records[:, 0].long()


def read_safetensors(path):
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    dtypes = {"F32": torch.float32, "I64": torch.int64}
    data = torch.frombuffer(raw, dtype=torch.uint8, offset=8 + length)
    return {name: data[slice(*entry["data_offsets"])].view(dtypes[entry["dtype"]]).reshape(entry["shape"]).clone()
            for name, entry in header.items()}


def mlp(width, layers):
    widths = [3 * 32 * 32] + [width] * layers
    hidden = [module for a, b in zip(widths, widths[1:]) for module in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(widths[-1], 10))
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0].flatten(1),))
    return model


def make_optimizer(name, model, lr):
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-3)


def train(model, optimizer, images, labels, batch, first, last):
    """Steps first … last - 1 over one batch of all lanes; their losses."""
    losses = []
    for step, indices in enumerate(batches(len(labels), batch)):
        if step == last:
            return losses
        if step >= first:
            optimizer.zero_grad()
            loss = cross_entropy(model(images[indices]), labels[indices])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())


class Reference(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.folder = tempfile.mkdtemp(prefix="lockstep-reference-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_lockstep(self, *args):
        """Trains; gives the losses, and the images and labels."""
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        environment["LOCKSTEP_CACHE_DIR"] = os.path.join(self.folder, "cache")
        done = subprocess.run([PROGRAM, "train", "--out", self.path("run"), "--data", "shapes", "--data-dir",
                               self.path("data"), "--no-augment", "--last-step", "short", "--seed", str(SEED), "--weight-decay", "1e-3",
                               "--eval-examples", "20", "--keep", "0", *map(str, args)],
                              env=environment, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("run", "steps.csv"), newline="") as text:
            losses = [float(row["loss"]) for row in csv.DictReader(text)]
        found = glob.glob(self.path("data", "shapes-*"))
        self.assertEqual(len(found), 1, found)
        return losses, *read_images(found[0])

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def checkpoint(self, step, file):
        return read_safetensors(self.path("run", "checkpoints", f"step-{step:08}", file))

    def difference(self, what, ours, theirs):
        """The largest relative difference of a step's losses."""
        self.assertEqual(len(ours), len(theirs))
        self.assertTrue(all(map(math.isfinite, ours + theirs)), f"{what}: {ours}, {theirs}")
        most = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
        print(f"{what}: {len(ours)} steps, loss {theirs[0]:.4f} to {theirs[-1]:.4f}, "
              f"largest relative difference {most:.1e}")
        return most

    def compare_weights(self, ours, model):
        theirs = model.state_dict()
        self.assertEqual(ours.keys(), theirs.keys())
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5, msg=name)

    def test_mlp_with_eight_lanes_on_two_workers(self):
        # 300 examples: every tenth step is smaller than the others, and its lanes are unequal.
        for name, lr in (("sgd", 0.02), ("adamw", 5e-4)):
            with self.subTest(optimizer=name):
                ours, images, labels = self.run_lockstep(
                    "--model", "mlp", "--width", 64, "--layers", 2, "--examples", 300, "--lanes", 8, "-n", 2,
                    "--lane-batch", 4, "--steps", 50, "--optimizer", name, "--lr", lr, "--checkpoint-every", 25,
                    "--overwrite")
                self.assertEqual((len(ours), len(labels)), (50, 300))

                torch.manual_seed(SEED)
                model = mlp(64, 2)
                optimizer = make_optimizer(name, model, lr)
                theirs = train(model, optimizer, images, labels, 32, 0, 50)
                self.assertLessEqual(self.difference(f"mlp, {name}", ours, theirs), TOLERANCE)
                self.compare_weights(self.checkpoint(50, "model.safetensors"), model)

                # From a checkpoint of ours on, in the middle of an epoch, with its weights and the optimizer's state.
                model.load_state_dict(self.checkpoint(25, "model.safetensors"))
                optimizer = make_optimizer(name, model, lr)
                self.load_optimizer(optimizer, model, self.checkpoint(25, "optimizer.safetensors"))
                theirs = train(model, optimizer, images, labels, 32, 25, 50)
                self.assertLessEqual(self.difference(f"mlp, {name}, from step 25", ours[25:], theirs), TOLERANCE)

                # What the tolerance is worth: a learning rate wrong by a thousandth does not pass. (By much: that is
                # enough to flip the sign of some ReLU's input, as rounding is not.)
                torch.manual_seed(SEED)
                model = mlp(64, 2)
                theirs = train(model, make_optimizer(name, model, lr * 1.001), images, labels, 32, 0, 50)
                self.assertGreater(self.difference(f"mlp, {name}, wrong rate", ours, theirs), 3 * TOLERANCE)

    def load_optimizer(self, optimizer, model, state):
        for name, parameter in model.named_parameters():
            of_parameter = {key.split("/")[0]: value for key, value in state.items() if key.endswith("/" + name)}
            step = of_parameter.pop("step").float()
            if isinstance(optimizer, torch.optim.AdamW):
                of_parameter["step"] = step
            self.assertTrue(of_parameter)
            optimizer.state[parameter] = of_parameter

    def test_resnet_with_one_lane(self):
        # One lane, so that batch norm sees the same batch on both sides. Few and small steps: of so many ReLUs one
        # soon has an input that rounding moves over zero, and then two right answers part. Where both sides use the
        # same libtorch the difference is 0; these steps also bear another one (weights changed by 1e-7: 1e-6).
        lr = 0.001
        ours, images, labels = self.run_lockstep(
            "--model", "resnet18", "--examples", 300, "--lanes", 1, "-n", 1, "--lane-batch", 16, "--steps", 5,
            "--optimizer", "sgd", "--lr", lr, "--checkpoint-every", 5)
        model = torchvision.models.resnet18(num_classes=10)
        theirs = train(model, make_optimizer("sgd", model, lr), images, labels, 16, 0, 5)
        self.assertLessEqual(self.difference("resnet18, sgd", ours, theirs), TOLERANCE)
        self.compare_weights(self.checkpoint(5, "model.safetensors"), model)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}")
    unittest.main(verbosity=1)
