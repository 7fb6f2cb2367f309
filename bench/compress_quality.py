#!/usr/bin/env python3
"""What compression costs in quality: trains to the end of the learning rate's schedule, once with each method, and compares with the dense run.

Two tasks. ResNet-18 (of --channels) on shapes, SGD with momentum: accuracy. A small GPT on text whose entropy is known, each
example seen once, Adam: validation loss, and how far above the entropy it is. One worker carries all lanes of a run, which
are cut into as many subtrees (--groups) as there would be workers: the bits are those of so many workers. Runs go side by side,
one thread each (--beside). A run's steps, rate, batch, seed and order of examples are the dense run's.

  bench/compress_quality.py --lockstep build/release/bin/lockstep --out runs/compress-quality
  bench/compress_quality.py --tasks gpt --steps gpt=4000 --methods none,topk:0.01:warmup=400

Methods are as --compress takes them; `onebit-adam…` trains with the optimizer of that name, `dgc…` without the optimizer's momentum
(it takes its own), `seed=N` is the dense run of another seed: what chance alone does. Behind a `+` come further flags of lockstep
train (`topk:0.01+--lr 0.01`). Writes quality.csv, and prints a table. A run that did not end within --limit seconds is a row without numbers.
"""
import argparse
import csv
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

COMMON = "none,seed=2,fp8,int8,intsgd,qsgd:16,terngrad"
METHODS = {"resnet": COMMON + ",powersgd:rank=4:warmup={tenth},topk:0.01:warmup={tenth},onebit:warmup={tenth},dgc:0.01:rampup={fifth}",
           "gpt": COMMON + ",powersgd:rank=4:warmup={tenth},topk:0.01:warmup={tenth},onebit-adam:warmup={fifth},onebit:warmup={tenth}"}
STEPS = {"resnet": 1500, "gpt": 2000}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lockstep", default="lockstep", help="the program")
    p.add_argument("--out", default="runs/compress-quality")
    p.add_argument("--tasks", default="resnet,gpt")
    p.add_argument("--methods", help="of all tasks; default: the table's")
    p.add_argument("--steps", default="", help="task=STEPS, with commas")
    p.add_argument("--groups", type=int, default=8, help="subtrees, and lanes")
    p.add_argument("--channels", type=int, default=8, help="of ResNet's first layer, for images of 32 x 32")
    p.add_argument("--beside", type=int, default=os.cpu_count(), help="runs at a time")
    p.add_argument("--limit", type=float, default=1e6, help="seconds in all")
    p.add_argument("--wire", action="store_true", help="also what one of --groups workers sends in a step, over TCP: short runs, one after the other")
    args = p.parse_args()
    args.steps = {**STEPS, **{t: int(n) for t, n in (item.split("=") for item in args.steps.split(",") if item)}}
    return args


def task_flags(args, task, steps):
    if task == "gpt":
        batch = 32
        return shlex.split(f"--model gpt --blocks 2 --width 64 --heads 4 --context 32 --data text --examples {steps * batch} --eval-examples 2000 "
                           f"--lane-batch {batch // args.groups} --lr 0.003")
    return shlex.split(f"--model resnet18 --cifar-stem --channels {args.channels} --data shapes --examples 6400 --eval-examples 4000 "
                       f"--lane-batch {64 // args.groups} --lr 0.05 --warmup-steps {steps // 20}")


def optimizer_flags(task, method):
    if task == "gpt":
        return ["--optimizer", "onebit-adam" if method.startswith("onebit-adam") else "adam"]
    return ["--optimizer", "sgd", "--momentum", "0" if method.startswith("dgc") else "0.9"]


def method_flags(args, method, seed=1):
    method, _, more = method.partition("+")
    if method.startswith("seed="):
        method, seed = "none", int(method.removeprefix("seed="))
    grouped = [] if method == "none" else ["--compress-groups", str(args.groups)]
    return ["--compress", method, "--seed", str(seed), *grouped, *shlex.split(more)]


def command(args, task, steps, method, folder, workers=1):
    # Beside all others a loader's thread would only take another's core.
    return [args.lockstep, "train", *task_flags(args, task, steps), "--lanes", str(args.groups), "-n", str(workers), "--steps", str(steps),
            "--schedule", "cosine", "--threads", "1", "--checkpoint-every", "-1", "--trace-steps", "0", *optimizer_flags(task, method),
            *method_flags(args, method), "--out", str(folder), "--overwrite"]


def folder_of(args, task, method):
    return pathlib.Path(args.out) / f"{task}-{''.join(c if c.isalnum() or c in '.-' else '-' for c in method)}"


def train(args, began, task, method):
    folder = folder_of(args, task, method)
    left = args.limit - (time.time() - began)
    row = {"task": task, "method": method, "steps": args.steps[task]}
    start = time.time()
    try:
        if left <= 0:
            raise subprocess.TimeoutExpired("train", 0)
        done = subprocess.run([*command(args, task, args.steps[task], method, folder), "--eval-every", "100000"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=left)
        if done.returncode != 0:
            print(f"{task} {method}: {done.stderr.strip()[-400:]}", file=sys.stderr)
            return row
    except subprocess.TimeoutExpired:
        print(f"{task} {method}: not done in time", file=sys.stderr)
        return row
    summary = json.loads((folder / "summary.json").read_text())
    row.update(accuracy=summary["accuracy"], validation_loss=summary["validation_loss"], loss_floor=summary.get("loss_floor"),
               training_loss=tail_loss(folder), seconds=round(time.time() - start, 1), params_sha256=summary["params_sha256"])
    print(f"{task} {method}: accuracy {row['accuracy']:.4f}, validation loss {row['validation_loss']:.4f}, {row['seconds']} s", file=sys.stderr)
    return row


def tail_loss(folder, last=100):
    with open(folder / "steps.csv") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    return sum(losses[-last:]) / len(losses[-last:])


def wire_bytes(args, task, method):
    """Of rank 0 in a step behind the warm-up."""
    short = ":".join(part for part in method.split(":") if not part.startswith(("warmup=", "rampup=")))
    if short.startswith("onebit-adam"):
        short += ":warmup=1"
    folder = folder_of(args, task, method + "-wire")
    done = subprocess.run([*command(args, task, 4, short, folder, args.groups), "--eval-every", "0", "--engine", "tcp"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"{task} {method}, over TCP: {done.stderr.strip()[-400:]}", file=sys.stderr)
        return None
    return json.loads((folder / "summary.json").read_text())["wire_bytes"]


def table(rows, task):
    rows = [row for row in rows if row["task"] == task]
    dense = next((row for row in rows if row["method"] == "none" and "accuracy" in row), None)
    if dense is None:
        return f"{task}: no dense run"
    lines = {"resnet": ["| method | accuracy | points of dense | validation loss | training loss | less sent |", "|---|---|---|---|---|---|"],
             "gpt": ["| method | validation loss | of dense | above the entropy | training loss | less sent |", "|---|---|---|---|---|---|"]}[task]
    for row in rows:
        if "accuracy" not in row:
            lines.append(f"| `{row['method']}` | not ended | | | | |")
            continue
        less = f"{dense['wire_bytes'] / row['wire_bytes']:.1f} ×" if dense.get("wire_bytes") and row.get("wire_bytes") else "–"
        loss = row["validation_loss"]
        if task == "resnet":
            lines.append(f"| `{row['method']}` | {100 * row['accuracy']:.2f} % | {100 * (row['accuracy'] - dense['accuracy']):+.2f} | {loss:.4f} | "
                         f"{row['training_loss']:.4f} | {less} |")
        else:
            lines.append(f"| `{row['method']}` | {loss:.4f} | {100 * (loss / dense['validation_loss'] - 1):+.2f} % | {loss - row['loss_floor']:.4f} | "
                         f"{row['training_loss']:.4f} | {less} |")
    return "\n".join(lines)


def main():
    args = parse()
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    began = time.time()
    jobs = []
    for task in args.tasks.split(","):  # the longest first
        words = {"tenth": args.steps[task] // 10, "fifth": args.steps[task] // 5}
        jobs += [(task, method.format(**words)) for method in (args.methods or METHODS[task]).split(",")]
    with ThreadPoolExecutor(args.beside) as pool:
        rows = list(pool.map(lambda job: train(args, began, *job), jobs))
    if args.wire:
        for row in rows:
            row["wire_bytes"] = wire_bytes(args, row["task"], "none" if row["method"].startswith("seed=") else row["method"].partition("+")[0])
    fields = ["task", "method", "steps", "accuracy", "validation_loss", "loss_floor", "training_loss", "wire_bytes", "seconds", "params_sha256"]
    with open(pathlib.Path(args.out) / "quality.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    for task in args.tasks.split(","):
        print(f"{task}, {args.steps[task]} steps, {args.groups} subtrees\n{table(rows, task)}\n")


if __name__ == "__main__":
    main()
