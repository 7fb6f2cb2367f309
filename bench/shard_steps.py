#!/usr/bin/env python3
"""Steps of a GPT of 50 M parameters by each strategy: median ms a step, of ddp's in the same round, and memory.

The strategies take turns, several rounds of that: a round's ratio is of two runs that were neighbours in time, and the median over
rounds is printed, first as a table, then one JSON line a strategy. zero3-gathered is zero3 with its units gathered on one machine
too. torch-ddp and torch-fsdp are PyTorch's, of the same model over Gloo (bench/peers/torch_shard.py), and torch-fsdp's ratio is to
torch-ddp. All runs of ours have to have one params_sha256, or this fails.

  bench/shard_steps.py --lockstep build/release/bin/lockstep --workers 2
  tools/hosts with 2 -- bench/shard_steps.py --hosts --strategies ddp,zero1,zero2,zero3        one worker a host
  PYTHON=python3 bench/shard_steps.py --workers 8 --strategies ddp,zero1,zero2,zero3,torch-ddp,torch-fsdp
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
HOSTS = HERE.parent / "tools" / "hosts"
STRATEGIES = "ddp,zero1,zero2,zero3"
GATHERED_MB = "64"  # zero3-gathered: room for two blocks and more


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lockstep", default="lockstep", help="the program")
    p.add_argument("--python", default=os.environ.get("PYTHON", "/usr/bin/python3"), help="an interpreter that has PyTorch")
    p.add_argument("--hosts", action="store_true", help="on the hosts of tools/hosts, --workers on each")
    p.add_argument("--strategies", default=STRATEGIES)
    p.add_argument("--workers", type=int, default=0, help="default: 2, or 1 a host")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=8, help="of a run; its median counts")
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--blocks", type=int, default=16)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--batch", type=int, default=4, help="samples of a worker")
    p.add_argument("--out", help="a file for the JSON lines, too")
    p.add_argument("rest", nargs="*", help="more flags for lockstep train, behind --")
    args = p.parse_args()
    args.workers = args.workers or (1 if args.hosts else 2)
    args.lanes = args.workers * (host_count() if args.hosts else 1)
    return args


def host_count():
    text = subprocess.run([HOSTS, "exec", "host1", "--", "cat", "/etc/hosts"], check=True, capture_output=True, text=True).stdout
    return len({word for line in text.splitlines() for word in line.split()[1:] if word.startswith("host") and word[4:].isdigit()})


def ours(args, strategy, folder):
    command = [HOSTS, "run", "-n", str(args.workers), "--", args.lockstep, "train"] if args.hosts else \
        [args.lockstep, "train", "-n", str(args.workers)]
    command += ["--model", "gpt", "--width", str(args.width), "--blocks", str(args.blocks), "--heads", "8", "--context",
                str(args.context), "--lanes", str(args.lanes), "--lane-batch", str(args.batch), "--steps", str(args.steps),
                "--strategy", strategy.partition("-gathered")[0] if strategy != "hybrid-shard" else strategy,
                "--eval-every", "0", "--checkpoint-every", "-1", "--out", folder, "--overwrite"]
    command += ["--gathered-mb", GATHERED_MB] if strategy.endswith("-gathered") else []
    subprocess.run(command + args.rest, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((pathlib.Path(folder) / "summary.json").read_text())
    return {"ms": summary["step_ms_p50"], "mb": max(summary["state_bytes"]) / 1e6, "rss": max(summary["peak_rss_bytes"]) / 1e6,
            "bits": summary["params_sha256"], "params": summary["params"]}


def torchs(args, strategy):
    command = [args.python, HERE / "peers" / "torch_shard.py", strategy.removeprefix("torch-"), "--workers", str(args.workers),
               "--width", str(args.width), "--blocks", str(args.blocks), "--context", str(args.context), "--batch",
               str(args.batch), "--steps", str(args.steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"ms": found["step_ms"], "mb": None, "rss": found["peak_rss_bytes"] / 1e6, "bits": None, "params": found["params"]}


def main():
    args = parse()
    strategies = args.strategies.split(",")
    found = {s: [] for s in strategies}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for s in strategies:
                run = torchs(args, s) if s.startswith("torch") else ours(args, s, os.path.join(folder, "run"))
                found[s].append(run)
                print(f"{s}: {run['ms']:.1f} ms", file=sys.stderr, flush=True)
    bits = {run["bits"] for s in strategies for run in found[s] if run["bits"]}
    rows = []
    for s in strategies:
        base = found.get("torch-ddp" if s.startswith("torch") else "ddp", [])
        ratios = [run["ms"] / other["ms"] for run, other in zip(found[s], base)]
        rows.append({"strategy": s, "workers": args.lanes, "params": found[s][0]["params"],
                     "step_ms": round(statistics.median(run["ms"] for run in found[s]), 1),
                     "of_ddp": round(statistics.median(ratios), 3) if ratios else None,
                     "least": round(min(ratios), 3) if ratios else None, "most": round(max(ratios), 3) if ratios else None,
                     "state_mb": found[s][0]["mb"] and round(found[s][0]["mb"], 1), "peak_rss_mb": round(max(run["rss"] for run in found[s]), 1),
                     "rounds": [round(run["ms"], 1) for run in found[s]]})
    print(f"{'strategy':<16}{'step, ms':>10}{'of ddp':>9}{'least':>8}{'most':>8}{'state, MB':>12}{'peak RSS, MB':>14}")
    for row in rows:
        print(f"{row['strategy']:<16}{row['step_ms']:>10}{row['of_ddp'] or '':>9}{row['least'] or '':>8}{row['most'] or '':>8}"
              f"{row['state_mb'] or '':>12}{row['peak_rss_mb']:>14}")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    print(lines, end="", flush=True)
    if args.out:
        pathlib.Path(args.out).write_text(lines)
    if len(bits) > 1:
        sys.exit(f"the runs differ in bits: {sorted(bits)}")


if __name__ == "__main__":
    main()
