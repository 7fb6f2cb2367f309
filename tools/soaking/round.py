"""One round: a run that is attacked, started again, and checked until it is through."""
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import threading
import time

from . import check, strike
from .folder import RunFolder
from .job import Job
from .plan import CONFIGS, make_plan

POLL_S = 0.003
ROOMY_KIB = 65536
UNDISTURBED_LIMIT_S = 600


@dataclasses.dataclass
class Settings:
    program: pathlib.Path
    shim: pathlib.Path
    work: pathlib.Path
    kinds: list  # of attacks that this machine can do
    hang_s: float


@dataclasses.dataclass
class Result:
    seed: int
    attacks: list  # kinds that were delivered
    problems: list  # (kind, details, number of the start)
    starts: int
    seconds: float
    folder: pathlib.Path


class Runs:
    """Undisturbed runs, one a configuration: what a round's end is compared with."""

    def __init__(self, settings):
        self.settings = settings
        self.known, self.lock = {}, threading.Lock()
        self.text = settings.work / "text.txt"
        settings.work.mkdir(parents=True, exist_ok=True)
        self.text.write_text("".join(f"{i} is {i * i % 97} and then some. " for i in range(700)))

    def flags(self, config):
        words, steps = CONFIGS[config]
        return [*words.format(text=self.text).split(), "--steps", str(steps), "--eval-every", "0"]

    def environment(self):
        """Free of an outer job's variables; one cache of measured costs for all."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("LOCKSTEP_", "TORCHELASTIC_", "SOAK_", "SLURM_", "OMPI_"))
                and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        return dict(kept, LOCKSTEP_CACHE_DIR=str(self.settings.work / "cache"), LOCKSTEP_TIMEOUT_S="30",
                    OMP_NUM_THREADS="1")

    def reference(self, config):
        with self.lock:
            if config not in self.known:
                self.known[config] = self._run(config)
            return self.known[config]

    def _run(self, config):
        out = self.settings.work / f"reference-{config}"
        shutil.rmtree(out, ignore_errors=True)
        words = [str(self.settings.program), "train", *self.flags(config), "-n", "1", "--out", str(out)]
        job = Job(words, self.environment(), f"reference-{os.getpid()}", out)
        try:
            job.process.wait(UNDISTURBED_LIMIT_S)
        except subprocess.TimeoutExpired:
            job.end()  # its status then says that it was killed
        folder = RunFolder(out)
        found = {"hash": folder.summary().get("params_sha256"), "losses": folder.losses()}
        if job.process.returncode != 0 or not found["hash"] or len(found["losses"]) != CONFIGS[config][1]:
            raise RuntimeError(f"the undisturbed run failed with status {job.process.returncode}, see {out}.err: "
                               f"{shlex.join(words)}")
        return found


class Round:
    def __init__(self, seed, settings, runs):
        self.settings, self.runs = settings, runs
        self.plan = make_plan(seed, settings.kinds)
        self.place = settings.work / f"round-{seed}"
        shutil.rmtree(self.place, ignore_errors=True)
        self.out, self.temporary = self.place / "run", self.place / "tmp"
        self.temporary.mkdir(parents=True)
        self.folder = RunFolder(self.out)
        self.dice = strike.dice(seed)
        self.result = Result(seed, [], [], 0, 0, self.place)

    def perform(self):
        began = time.monotonic()
        reference = self.runs.reference(self.plan.config)
        self.log(f"seed {self.plan.seed}: {self.plan.config}, a checkpoint every {self.plan.checkpoint_every} steps")
        try:
            if self.plan.small_disk:
                self.out.mkdir()
                if error := strike.mount_small(self.out, ROOMY_KIB):
                    raise RuntimeError(f"mount: {error}")
            for start in self.plan.starts:
                status = self.start(start, reference)
                if status == 0 or any(kind == "hang" for kind, *_ in self.result.problems):
                    break
        finally:
            if self.plan.small_disk:
                self.keep_small_disk()
        self.result.seconds = time.monotonic() - began
        if not self.result.problems:
            shutil.rmtree(self.place, ignore_errors=True)
        return self.result

    # --- a start of the job ------------------------------------------------------------------------------------

    def words(self, start):
        program = str(self.settings.program)
        if self.folder.newest_checkpoint() > 0:
            train = [program, "train", "--resume", str(self.out)]
        else:
            train = [program, "train", *self.runs.flags(self.plan.config), "--checkpoint-every",
                     str(self.plan.checkpoint_every), "--out", str(self.out)]
            if not self.folder.is_empty():
                train.append("--overwrite")
        if not start.under_run:
            return [*train, "-n", str(start.workers)]
        return [program, "run", "-n", str(start.workers), "--max-restarts", str(start.max_restarts), "--", *train]

    def start(self, start, reference):
        number = self.result.starts = self.result.starts + 1
        words, fault_log = self.words(start), self.place / f"start-{number}.faults"
        environment = dict(self.runs.environment(), TMPDIR=str(self.temporary),
                           **strike.shim_environment(start.attack, self.out, self.settings.shim, fault_log))
        self.log(f"\nstart {number}: {start.attack or 'undisturbed'}\n  {shlex.join(words)}")
        if self.plan.small_disk:
            self.set_disk(start.attack)
        base, untouched = self.folder.newest_checkpoint(), self.csv_mark()
        before = shared_memory()
        job = Job(words, environment, f"{os.getpid()}-{self.plan.seed}", self.place / f"start-{number}")
        try:
            delivered, seen, begun = self.watch(job, start.attack, untouched)
            if not job.ended():
                self.report(number, [("hang", f"no step for {self.settings.hang_s:g} s and not ended, see log.txt")])
                self.log(job.states())
                return None
            if start.attack and start.attack.fault:
                fired = fault_log.exists()
                delivered = fired or (delivered and start.attack.kind == "restart-error")
            if delivered:
                self.result.attacks.append(start.attack.kind)
            return self.check(number, start, job, reference, delivered, base, seen, begun, untouched, before)
        finally:
            job.end()

    def watch(self, job, attack, untouched):
        """Until the job has ended or is stuck: whether the attack was delivered, the newest step seen before it, and
        how often the workers had begun."""
        moment = None
        if attack and attack.moment:
            moment = strike.Moment(attack.moment, job, self.folder, self.plan.steps)
        delivered, seen, begun = bool(attack and not moment), 0, 0
        mark, last_sign_s = untouched, 0
        while not job.ended() and job.seconds() - last_sign_s < self.settings.hang_s:
            if self.csv_mark() != mark:  # however slow the machine is, a step is a sign of life
                mark, last_sign_s = self.csv_mark(), job.seconds()
            fresh = mark != untouched or (moment and moment.kind == "seconds")
            if moment and fresh and moment.has_come():
                seen = self.folder.last_step() if mark != untouched else 0
                begun = max(len(check.begins(job)), 1 if seen > 0 else 0)
                delivered = strike.strike(attack, job, self.dice) > 0
                self.log(f"  struck after {job.seconds():.2f} s, step {seen} seen, "
                         f"{'delivered' if delivered else 'nobody there'}")
                moment = None
            time.sleep(POLL_S)
        return delivered, seen, begun

    def check(self, number, start, job, reference, delivered, base, seen, begun, untouched, memory_before):
        attack, code = start.attack, job.process.returncode
        every = self.plan.checkpoint_every
        promised = base
        if delivered and attack.kind.startswith("stop-") and seen > base:
            promised = seen  # it ends the step and writes a checkpoint
        elif seen > base:
            promised = max(base, (seen - 1) // every * every)
        problems = check.check_end(start, delivered, job, base < seen < self.plan.steps)
        problems += check.check_begins(job, base, promised, begun)
        if self.csv_mark() != untouched:  # a line of a step comes after the checkpoints of those before it
            promised = max(promised, (self.folder.last_step() - 1) // every * every)
        problems += check.check_newest(self.folder, promised)
        problems += check.check_left(job, start, self.settings.hang_s / 6, self.temporary,
                                     sorted(shared_memory() - memory_before))
        if code == 0:
            refused = bool(attack and delivered and (attack.fault or attack.disk_kib))
            problems += check.check_through(self.folder, reference, refused)
        elif attack is None:
            problems.append(("not through", f"an undisturbed start ended with {code}"))
        self.log(f"  status {code}, newest checkpoint {self.folder.newest_checkpoint()}")
        self.report(number, problems)
        for entry in self.temporary.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return code

    # --- what it rests on --------------------------------------------------------------------------------------

    def csv_mark(self):
        """Changes as soon as a start has written steps.csv, and with each step."""
        try:
            status = os.stat(self.out / "steps.csv")
            return status.st_ino, status.st_ctime_ns
        except OSError:
            return None

    def set_disk(self, attack):
        room = ROOMY_KIB
        if attack and attack.disk_kib:
            disk = os.statvfs(self.out)
            used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize // 1024
            room = used + attack.disk_kib // 2 if used else attack.disk_kib
        if error := strike.resize(self.out, room):
            raise RuntimeError(f"mount: {error}")

    def keep_small_disk(self):
        """Of a round that failed the files stay, its file system does not."""
        kept = self.place / "run-files"
        if self.result.problems:
            shutil.copytree(self.out, kept, dirs_exist_ok=True)
        strike.unmount(self.out)
        if kept.exists():
            self.out.rmdir()
            kept.rename(self.out)

    def report(self, number, problems):
        for kind, details in problems:
            self.log(f"  PROBLEM {kind}: {details}")
            self.result.problems.append((kind, details, number))

    def log(self, text):
        with open(self.place / "log.txt", "a") as file:
            file.write(text + "\n")


def shared_memory():
    try:
        return {name for name in os.listdir("/dev/shm") if "lockstep" in name}
    except OSError:
        return set()


def as_json(result):
    return json.dumps({"seed": result.seed, "attacks": result.attacks, "starts": result.starts,
                       "seconds": round(result.seconds, 2),
                       "problems": [{"kind": kind, "details": details, "start": start}
                                    for kind, details, start in result.problems],
                       "folder": str(result.folder) if result.problems else None})
