#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel, or fully_shard with every block a unit, over Gloo: one JSON line with the median step.

The model is a GPT of the form of `lockstep train --model gpt`, without dropout, with AdamW. It starts its workers itself, with one
thread each:

  torch_shard.py fsdp --workers 2 --width 512 --blocks 16 --context 64 --batch 4
"""
import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time

VOCABULARY = 256
WARM_UP = 3  # steps


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["ddp", "fsdp"])
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--blocks", type=int, default=16)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=8)
    return p.parse_args()


def launch(args):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(args.workers), OMP_NUM_THREADS="1")
    workers = [subprocess.Popen([sys.executable, *sys.argv], env=dict(env, RANK=str(r))) for r in range(args.workers)]
    return max(abs(w.wait()) for w in workers)


def build(args, torch):
    nn = torch.nn

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(VOCABULARY, args.width), nn.Embedding(args.context, args.width)
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(args.width, 8, 4 * args.width, 0.0, "gelu", batch_first=True,
                                                                   norm_first=True) for _ in range(args.blocks))
            self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, VOCABULARY)
            self.register_buffer("mask", torch.full((args.context, args.context), float("-inf")).triu(1))

        def forward(self, x):
            h = self.tok(x) + self.pos(torch.arange(x.size(1)))
            for block in self.blocks:
                h = block(h, src_mask=self.mask)
            return self.head(self.norm(h)).flatten(0, 1)

    return Gpt()


def main():
    args = parse()
    if "RANK" not in os.environ:
        return launch(args)
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build(args, torch)
    params = sum(p.numel() for p in model.parameters())
    if args.what == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (args.workers,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        net = fully_shard(model, mesh=mesh)
    else:
        net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4)
    text = torch.randint(0, VOCABULARY, (args.batch, args.context + 1))
    x, y = text[:, :-1], text[:, 1:].reshape(-1)
    times = []
    for _ in range(WARM_UP + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"peer": f"torch-{args.what}-gloo", "version": torch.__version__, "workers": args.workers, "params": params,
                          "batch": args.batch, "step_ms": round(statistics.median(times[WARM_UP:]) * 1e3, 2),
                          "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
