"""What has to hold after each start of a job, whatever was done to it. A problem is (kind, details)."""
import re
import signal

# What a program says that did not expect its failure.
RAW = re.compile(r"terminate called|what\(\):|Segmentation fault|core dumped|SIGSEGV|SIGABRT|SIGBUS|std::"
                 r"|filesystem error|basic_\w+|json\.exception|bad_alloc|Assertion|Sanitizer|Traceback")
BEGIN = re.compile(r" lanes? × \d+, \d+ steps?(?:, going on after step (\d+))?\s*$", re.MULTILINE)
KILLS = ("kill-worker", "kill-launcher", "kill-starter", "kill-group", "kill-all", "file-kill")


def accepted_statuses(attack, delivered):
    """As documented: 0, 1 (the run failed), 2 (what was asked can't be) or 128 + signal."""
    if attack is None or not delivered or attack.kind == "pause":
        return {0}
    if attack.kind in KILLS:
        return {0, 1, 128 + 9}
    if attack.kind == "stop-worker":
        return {0, 1, 128 + attack.signal}
    if attack.kind.startswith("stop-"):
        return {0, 128 + attack.signal}
    return {0, 1, 2}


def hits_starter(start):
    """Whether the attack's signal went, or may have gone, to the very process that was started: when it resumes a run it
    looks into the folder itself, where a SIGKILL may wait for whoever does."""
    kind = start.attack.kind if start.attack else ""
    return kind in ("kill-starter", "kill-group", "kill-all", "stop-starter", "stop-all", "stop-twice",
                    "stop-timeout", "file-kill") or (kind == "kill-launcher" and start.under_run)


def check_end(start, delivered, job, trained):
    """How the starter ended and what it said. `trained`: steps were seen before the attack."""
    code = job.process.returncode
    status = 128 - code if code < 0 else code
    errors, problems = job.errors(), []
    last = errors.strip().split("\n")[-1][:200]
    if status not in accepted_statuses(start.attack, delivered):
        problems.append(("exit status", f"{status}; it said: {last or 'nothing'}"))
    own_signal = start.attack is not None and hits_starter(start) and code == -(start.attack.signal or signal.SIGKILL)
    graceful = start.attack is not None and start.attack.kind.startswith("stop-")
    if code < 0 and not own_signal:
        problems.append(("died of a signal", f"signal {-code}, which it was not sent"))
    elif code < 0 and graceful and trained:
        problems.append(("died of a signal", f"signal {-code} while it trained, instead of stopping"))
    elif status != 0 and not errors.strip() and not own_signal:
        problems.append(("silent end", f"status {status}, nothing on standard error"))
    if found := RAW.search(errors + job.output()):
        line = next(line for line in (errors + job.output()).split("\n") if found.group() in line)
        problems.append(("raw exception", line.strip()[:200]))
    return problems


def begins(job):
    """Where the workers began, at each time they were started."""
    return [int(step or 0) for step in BEGIN.findall(job.output())]


def check_begins(job, base, promised, begun_before):
    """`base`: the newest checkpoint before the start; `promised`: what the attack may not have cost; `begun_before`:
    how often the workers had begun when it came."""
    problems = []
    for i, step in enumerate(begins(job)):
        least = promised if i >= begun_before else base
        if step < least:
            problems.append(("progress lost", f"start {i + 1} of the workers began after step {step}, not {least}"))
    return problems


def check_newest(folder, promised):
    newest = folder.newest_checkpoint()
    if newest >= promised:
        return []
    return [("progress lost", f"step {promised} was promised, the newest checkpoint has {newest}")]


def check_through(folder, reference, disk_refused):
    """A start that ended with 0 says that the run is through. `disk_refused`: a file operation of this start was made
    to fail, so that what it could not remove may still be there."""
    problems = []
    found = folder.summary().get("params_sha256")
    if found != reference["hash"]:
        problems.append(("hash", f"{str(found)[:16]}, not {reference['hash'][:16]}"))
    losses = folder.losses()
    if losses != reference["losses"]:
        steps = [int(step) for step, _ in losses]
        if steps != list(range(1, len(reference["losses"]) + 1)):
            twice = sorted({step for step in steps if steps.count(step) > 1})
            problems.append(("steps.csv", f"{len(steps)} lines, not {len(reference['losses'])}; twice: {twice[:5]}"))
        else:
            problems.append(("steps.csv", "a loss differs from the undisturbed run's"))
    if (hidden := folder.hidden()) and not disk_refused:
        problems.append(("left in the run's folder", " ".join(hidden[:5])))
    return problems


def check_left(job, start, patience_s, temporary, shared_memory):
    """Processes, and files elsewhere. A job that failed may leave what its flight recorders wrote."""
    problems = []
    if left := job.left_over(patience_s):
        problems.append(("left processes", ", ".join(left)))
    names = sorted(entry.name for entry in temporary.iterdir())
    killed = start.attack is not None and start.attack.signal == 9
    if names and job.process.returncode != 1 and not (killed and job.process.returncode != 0):
        problems.append(("left in TMPDIR", f"status {job.process.returncode}: {' '.join(names[:5])}"))
    if shared_memory:
        problems.append(("left in /dev/shm", " ".join(shared_memory[:5])))
    return problems
