"""Weights travel between Lockstep and torchvision, both ways: interop_test.py INTEROP_PROGRAM

Reads and writes safetensors by hand, as the format says, so that no other library can hide a mistake.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
import torchvision

DTYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I64": torch.int64, "F32": torch.float32}
RESNETS = ["resnet18", "resnet34", "resnet50", "resnet18-group"]


def load(path):
    raw = bytearray(path.read_bytes())
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    # Views of one buffer, as readers that map the file make them: needs every tensor to be aligned.
    data = torch.frombuffer(raw, dtype=torch.uint8, offset=8 + length)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = data[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"]).clone()
    return tensors


def save(path, tensors):
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def compare(what, ours, theirs):
    difference = (ours - theirs).abs().max().item()
    fits = ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    print(f"{what}: largest difference {difference:g} of outputs up to {theirs.abs().max():g}" +
          ("" if fits else ": TOO LARGE"))
    return fits


def same(what, ours, theirs):
    different = sorted(ours.keys() ^ theirs.keys()) or [n for n in theirs if not torch.equal(ours[n], theirs[n])]
    print(f"{what}: " + (f"{len(different)} of {len(theirs)} differ, the first is {different[0]}" if different
                         else f"all {len(theirs)} equal"))
    return not different


def make_resnet(name):
    depth, _, norm = name.partition("-")
    layer = (lambda channels: torch.nn.GroupNorm(32, channels)) if norm == "group" else None
    return getattr(torchvision.models, depth)(num_classes=10, norm_layer=layer)


@torch.no_grad()
def check_resnet(folder, name):
    torch.manual_seed(7)
    model = make_resnet(name)
    good = same(f"{name}: weights at the same seed", load(folder / f"{name}.fresh"), model.state_dict())
    model.load_state_dict(load(folder / f"{name}.safetensors"), strict=True)
    run = load(folder / f"{name}.run")
    good &= compare(f"{name} in Python", run["output"], model.eval()(run["input"]))
    good &= compare(f"{name} in Python, training", run["train_output"], model.train()(run["input"]))
    after, state = load(folder / f"{name}.after"), model.state_dict()
    good &= after.keys() == state.keys() and all(torch.allclose(after[n], state[n], rtol=1e-5, atol=1e-6) for n in state)
    return good


@torch.no_grad()
def write_resnet(folder, name):
    torch.manual_seed(9)
    model = make_resnet(name)
    for key, buffer in model.named_buffers():
        if key.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif key.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.01)
    x = torch.randn(2, 3, 40, 40)
    save(folder / f"{name}.python", model.state_dict())
    save(folder / f"{name}.python_run", {"input": x, "output": model.eval()(x)})


@torch.no_grad()
def check_gpt(folder):
    """Our blocks against PyTorch's own encoder layers with the same weights."""
    state, run = load(folder / "gpt.safetensors"), load(folder / "gpt.run")
    width, heads = 256, 8
    x = run["input"]
    h = torch.nn.functional.embedding(x, state["tok.weight"]) + state["pos.weight"][:x.size(1)]
    mask = torch.full((x.size(1), x.size(1)), float("-inf")).triu(1)

    def split(tensor):  # head by head (query, key, value) → all queries, all keys, all values
        return tensor.view(heads, 3, width // heads, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)

    for i in range(2):
        block = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        ours = {k[len(f"blocks.{i}."):]: v for k, v in state.items() if k.startswith(f"blocks.{i}.")}
        theirs = {}
        for kind in ("weight", "bias"):
            theirs[f"self_attn.in_proj_{kind}"] = split(ours[f"attention.qkv.{kind}"])
            for a, b in (("self_attn.out_proj", "attention.out"), ("linear1", "up"), ("linear2", "down"),
                         ("norm1", "norm1"), ("norm2", "norm2")):
                theirs[f"{a}.{kind}"] = ours[f"{b}.{kind}"]
        block.load_state_dict(theirs, strict=True)
        h = block.train()(h, src_mask=mask)  # train: the plain path, not the fused one
    h = torch.nn.functional.layer_norm(h, (width,), state["norm.weight"], state["norm.bias"])
    return compare("gpt in Python", run["output"], torch.nn.functional.linear(h, state["head.weight"], state["head.bias"]))


def main():
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.argv[1], "write", name], check=True)
        good = all([check_resnet(folder, model) for model in RESNETS] + [check_gpt(folder)])
        for model in RESNETS:
            write_resnet(folder, model)
        good &= subprocess.run([sys.argv[1], "read", name]).returncode == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
