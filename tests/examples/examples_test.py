#!/usr/bin/env python3
"""Installs Lockstep into a folder of its own, builds every example against it with find_package, and runs its
programs as its README says. The blocks `text workers=1,2,3` there are what the programs print, in the order of their
names in CMakeLists.txt: the same for each of these numbers of workers, and in the form of the block."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

def run(*command, folder=None):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=500, cwd=folder)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def blocks(readme):
    """[(numbers of workers, pattern)]. In a block a number stands for any, … for anything."""
    found = []
    for workers, block in re.findall(r"```text workers=([\d,]+)\n(.*?)```", readme.read_text(), re.S):
        pattern = re.sub(r"\d+(?:\\?\.\d+)?", r"[0-9.]+", re.escape(block.strip()))
        found.append(([int(n) for n in workers.split(",")], re.sub(r"\S*…", ".*", pattern)))
    return found


def programs(project):
    """The names of its executables: of add_executable, or of the loop around it."""
    text = project.read_text()
    loop = re.search(r"foreach\(program ([\w ]+)\)", text)
    return loop[1].split() if loop else re.findall(r"add_executable\((\w+)", text)


def check(lockstep, program, workers, pattern):
    outputs = {}
    for n in workers:
        with tempfile.TemporaryDirectory() as folder:
            # The launcher says whose line it is when there are several workers.
            said = run(lockstep, "run", "-n", n, "--", program, folder=folder)
            outputs[n] = said.replace("[rank 0] ", "").strip()
    print(outputs[workers[0]])
    if len(set(outputs.values())) != 1:
        sys.exit(f"{program.name}: the number of workers changes the result: {outputs}")
    if not re.fullmatch(pattern, outputs[workers[0]], re.S):
        sys.exit(f"{program.name}: not as its README says: {outputs[workers[0]]!r}")


def main():
    p = argparse.ArgumentParser()
    for flag in ("build", "source", "generator", "compiler"):
        p.add_argument("--" + flag, required=True)
    args = p.parse_args()
    source = pathlib.Path(args.source)
    examples = sorted(path.parent for path in source.glob("examples/*/CMakeLists.txt"))
    if not examples:
        sys.exit("no example found")
    runs = 0
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder, "prefix")
        run("cmake", "--install", args.build, "--prefix", prefix)
        for example in examples:
            build = pathlib.Path(folder, example.name)
            run("cmake", "-S", example, "-B", build, "-G", args.generator, f"-DCMAKE_CXX_COMPILER={args.compiler}",
                f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
            run("cmake", "--build", build)
            names = programs(example / "CMakeLists.txt")
            shown = blocks(example / "README.md")
            if not names or len(names) != len(shown):
                sys.exit(f"{example.name}: {len(names)} programs, {len(shown)} blocks in its README")
            for name, (workers, pattern) in zip(names, shown):
                check(prefix / "bin/lockstep", build / name, workers, pattern)
                runs += 1
    print(f"{runs} programs of {len(examples)} examples built and run")


if __name__ == "__main__":
    main()
