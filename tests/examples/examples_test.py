#!/usr/bin/env python3
"""Installs Lockstep into a folder of its own, builds every example against it with find_package, and runs it
with several numbers of workers: same output for all, and in the form that the example's README shows."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

WORKERS = (1, 2, 3)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=500)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def expected(readme):
    """The README's last text block as a pattern: a number stands for any, … for anything."""
    block = re.findall(r"```text\n(.*?)```", readme.read_text(), re.S)[-1]
    pattern = re.escape(block.strip())
    pattern = re.sub(r"\d+(?:\\?\.\d+)?", r"[0-9.]+", pattern)
    return re.sub(r"\S*…", ".*", pattern)


def main():
    p = argparse.ArgumentParser()
    for flag in ("build", "source", "generator", "compiler"):
        p.add_argument("--" + flag, required=True)
    args = p.parse_args()
    source = pathlib.Path(args.source)
    examples = sorted(path.parent for path in source.glob("examples/*/CMakeLists.txt"))
    if not examples:
        sys.exit("no example found")
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder, "prefix")
        run("cmake", "--install", args.build, "--prefix", prefix)
        for example in examples:
            build = pathlib.Path(folder, example.name)
            run("cmake", "-S", example, "-B", build, "-G", args.generator, f"-DCMAKE_CXX_COMPILER={args.compiler}",
                f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
            run("cmake", "--build", build)
            program = build / re.search(r"add_executable\((\w+)", (example / "CMakeLists.txt").read_text())[1]
            # The launcher says whose line it is when there are several workers.
            outputs = {n: run(prefix / "bin/lockstep", "run", "-n", n, "--", program).replace("[rank 0] ", "").strip()
                       for n in WORKERS}
            print(outputs[1])
            if len(set(outputs.values())) != 1:
                sys.exit(f"{example.name}: the number of workers changes the result: {outputs}")
            if not re.fullmatch(expected(example / "README.md"), outputs[1]):
                sys.exit(f"{example.name}: not as its README says: {outputs[1]!r}")
    print(f"{len(examples)} example(s) built and run with {', '.join(map(str, WORKERS))} workers")


if __name__ == "__main__":
    main()
