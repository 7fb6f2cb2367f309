#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel over Gloo, as it is or with its PowerSGD hook: one JSON line with the median step.

The model is that of `lockstep train --model mlp`: eight layers of 1024 × 1024 and one of 1024 × 10, 8.4 M parameters,
SGD with momentum. One worker a host, all of them started with the same rendezvous:

  torch_powersgd.py --workers 2 --rank 0 --at 10.77.0.1:29500 --hook powersgd:4
  torch_powersgd.py --workers 2 --rank 1 --at 10.77.0.1:29500 --hook powersgd:4

With a hook all gradients are one bucket: of several buckets PyTorch 1.13 mixes up the hook's calls over Gloo, and
ends ("enforce fail … op.preamble.length <= op.nbytes").

On hosts that tools/hosts made, `--rank host` takes the number out of the host's name (host1 is rank 0).
"""
import argparse
import json
import re
import socket
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

ONE_BUCKET_MB = 256
WARM_UP = 5  # steps; the hook begins behind the second


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--rank", default="host")
    p.add_argument("--at", required=True, help="HOST:PORT of rank 0")
    p.add_argument("--hook", default="none", help="none or powersgd:RANK")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--bucket-cap-mb", type=float, default=25)
    args = p.parse_args()
    if args.rank == "host":
        args.rank = int(re.search(r"(\d+)$", socket.gethostname()).group(1)) - 1
    return args


def model():
    layers = [m for _ in range(8) for m in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10))


def main():
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{args.at}", rank=int(args.rank), world_size=args.workers)
    torch.manual_seed(0)
    if args.hook != "none":
        dist._DEFAULT_FIRST_BUCKET_BYTES = ONE_BUCKET_MB << 20
        args.bucket_cap_mb = ONE_BUCKET_MB
    net = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=args.bucket_cap_mb, gradient_as_bucket_view=True)
    if args.hook != "none":
        rank = int(args.hook.removeprefix("powersgd:"))
        state = power.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        net.register_comm_hook(state, power.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(args.batch, 1024), torch.randint(0, 10, (args.batch,))
    times = []
    for _ in range(WARM_UP + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    dist.barrier()
    if int(args.rank) == 0:
        print(json.dumps({"peer": "torch-ddp-gloo", "version": torch.__version__, "hook": args.hook,
                          "workers": args.workers, "batch": args.batch,
                          "step_ms_p50": round(statistics.median(times[WARM_UP:]) * 1e3, 2),
                          "step_ms_p10": round(sorted(times[WARM_UP:])[args.steps // 10] * 1e3, 2)}))


if __name__ == "__main__":
    main()
