#!/usr/bin/env python3
"""Steps of training between two hosts, by each method of compression: median ms a step, and of dense's.

Runs inside of `tools/hosts with 2`, one worker a host, the methods in turn and several rounds of that; the median over rounds of each run's
median step, of the second half of its steps (auto looks first), is printed, and the least. SGD with momentum everywhere. PyTorch's PowerSGD hook over Gloo (bench/peers/torch_powersgd.py) takes its turn among them.

  tools/hosts with 2 --rate 100mbit -- bench/compress_links.py --lockstep build/release/bin/lockstep
"""
import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
HOSTS = HERE.parent / "tools" / "hosts"
METHODS = "none,bf16,fp8,int8,intsgd,qsgd:16,terngrad,onebit,randk:0.01,topk:0.01,powersgd:rank=4,auto,torch,torch-powersgd"


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lockstep", default="lockstep", help="the program")
    p.add_argument("--python", default="/usr/bin/python3", help="an interpreter that has PyTorch")
    p.add_argument("--methods", default=METHODS)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=30, help="of what compresses; a third of what travels as it is")
    p.add_argument("--batch", type=int, default=32)
    return p.parse_args()


def lockstep_step(args, method, folder):
    steps = args.steps // 3 if method in ("none", "bf16") else args.steps
    command = [HOSTS, "run", "-n", "1", "--", args.lockstep, "train", "--model", "mlp", "--data", "synthetic", "--lanes", "2",
               "--lane-batch", str(args.batch), "--steps", str(steps), "--optimizer", "sgd", "--lr", "0.01", "--compress", method, "--out", folder,
               "--overwrite"]
    if method == "auto":
        command += ["--compress-max-error", "10"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((pathlib.Path(folder) / "summary.json").read_text())
    with open(pathlib.Path(folder) / "steps.csv") as file:
        steps = [float(row["step_ms"]) for row in csv.DictReader(file)]
    return statistics.median(steps[len(steps) // 2:]), summary.get("compress", {}).get("method", method)


def torch_step(args, hook):
    steps = str(args.steps // 3 if hook == "none" else args.steps)
    workers = [subprocess.Popen([HOSTS, "exec", f"host{r + 1}", "--", "env", "GLOO_SOCKET_IFNAME=" + card(r + 1), args.python,
                                 HERE / "peers" / "torch_powersgd.py", "--rank", str(r), "--at", address(1) + ":29500", "--hook",
                                 hook, "--batch", str(args.batch), "--steps", steps], stdout=subprocess.PIPE, text=True)
               for r in range(2)]
    out = [w.communicate()[0] for w in workers][0]
    if not out:
        return float("nan"), f"torch ended with {workers[0].returncode}"
    return json.loads(out.splitlines()[-1])["step_ms_p50"], hook


def show(host, *command):
    return subprocess.run([HOSTS, "exec", f"host{host}", "--", *command], check=True, capture_output=True, text=True).stdout


def card(host):
    return [line.split()[0].partition("@")[0] for line in show(host, "ip", "-brief", "address").splitlines() if "10." in line][0]


def address(host):
    return [line.split()[2].partition("/")[0] for line in show(host, "ip", "-brief", "address").splitlines() if "10." in line][0]


def main():
    args = parse()
    methods = args.methods.split(",")
    found, about = {m: [] for m in methods}, {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for method in methods:
                step = torch_step(args, method.removeprefix("torch-").replace("torch", "none").replace("powersgd", "powersgd:4")) \
                    if method.startswith("torch") else lockstep_step(args, method, os.path.join(folder, "run"))
                found[method].append(step[0])
                about[method] = step[1]
                print(f"{method}: {step[0]:.1f} ms ({step[1]})", file=sys.stderr, flush=True)
    dense = statistics.median(found["none"]) if found.get("none") else float("nan")
    for method in methods:
        ms = statistics.median(found[method])
        print(json.dumps({"method": method, "step_ms": round(ms, 1), "least_ms": round(min(found[method]), 1), "faster": round(dense / ms, 2),
                          "rounds": [round(x, 1) for x in found[method]], "about": about[method]}), flush=True)


if __name__ == "__main__":
    main()
