"""What is done in a round, drawn from its seed: which run, which attacks, when, and how it is started again."""
import dataclasses
import random
import signal

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

# The flags that define a run, and its steps. Few, since each has to be run undisturbed once.
CONFIGS = {
    "mlp": ("--model mlp --data synthetic --width 64 --lanes 4 --lane-batch 4", 400),
    "mlp-sgd": ("--model mlp --data synthetic --width 64 --lanes 4 --lane-batch 4 --optimizer sgd --schedule cosine"
                " --warmup-steps 20 --seed 3", 300),
    "gpt": ("--model gpt --data {text} --width 16 --heads 2 --blocks 1 --context 16 --dropout 0.1 --lanes 4"
            " --lane-batch 2", 120),
}
CONFIG_WEIGHTS = (6, 2, 2)

# Name of an attack: how often it is drawn, and what it does.
ATTACKS = {
    "kill-worker": (3, "SIGKILL to one worker"),
    "kill-launcher": (2, "SIGKILL to the launcher of the workers"),
    "kill-starter": (2, "SIGKILL to the process that the user started"),
    "kill-group": (2, "SIGKILL to the process group of the command"),
    "kill-all": (2, "SIGKILL to every process of the job, the guardian too"),
    "stop-starter": (3, "a stop signal to the process that the user started"),
    "stop-worker": (2, "a stop signal to one worker"),
    "stop-all": (3, "a stop signal to every process, as systemd and schedulers do"),
    "stop-twice": (3, "a stop signal to the starter, and again within a second"),
    "stop-timeout": (2, "SIGTERM to the starter, then to its group, as timeout(1) does"),
    "pause": (2, "SIGSTOP to one worker or all processes for a while"),
    "file-error": (8, "one file operation in the run's folder fails, once or from then on"),
    "file-kill": (6, "SIGKILL just before a file operation in the run's folder"),
    "restart-error": (4, "a worker is killed, and a file operation of its successor fails (--max-restarts)"),
    "disk-full": (4, "the run's folder is a small tmpfs"),
}
NEEDS_SHIM = {"file-error", "file-kill", "restart-error"}
NEEDS_MOUNT = {"disk-full"}

# How file operations fail in earnest: a broken disk, a full one, too many open files, a file server that came back.
FILE_ERRORS = {
    "open": ("EIO", "ENOSPC", "EMFILE", "ESTALE"),
    "write": ("EIO", "ENOSPC", "ESTALE"),
    "fsync": ("EIO", "ENOSPC"),
    "rename": ("EIO", "ENOSPC", "ESTALE"),
    "mkdir": ("EIO", "ENOSPC", "ESTALE"),
    "readdir": ("EIO", "ESTALE"),
    "unlink": ("EIO", "ESTALE"),
}


@dataclasses.dataclass
class Attack:
    kind: str
    moment: tuple  # ("seconds", s); ("part", p) of the steps that are left; ("staging", n): the nth checkpoint begins
    signal: int = 0
    gap_s: float = 0  # between two signals, or while stopped
    fault: str = ""  # the shim's SOAK_FAULT
    disk_kib: int = 0

    def __str__(self):
        more = [f"at {self.moment[0]} {self.moment[1]}"] if self.moment else []
        if self.signal:
            more.append(signal.Signals(self.signal).name)
        if self.gap_s:
            more.append(f"{self.gap_s} s")
        if self.fault:
            more.append(self.fault)
        if self.disk_kib:
            more.append(f"{self.disk_kib} KiB")
        return f"{self.kind} ({', '.join(more)})"


@dataclasses.dataclass
class Start:
    attack: Attack | None
    workers: int
    under_run: bool  # `lockstep run -- lockstep train` instead of `lockstep train -n`
    max_restarts: int = 0


@dataclasses.dataclass
class Plan:
    seed: int
    config: str
    checkpoint_every: int
    starts: list  # the attacked ones, then one that nothing disturbs

    @property
    def steps(self):
        return CONFIGS[self.config][1]

    @property
    def small_disk(self):
        return any(start.attack and start.attack.disk_kib for start in self.starts)


def draw_moment(rng):
    kind = rng.choices(("seconds", "part", "staging"), (2, 6, 3))[0]
    if kind == "seconds":
        return (kind, round(rng.uniform(0, 2.5), 3))
    return (kind, round(rng.uniform(0, 1), 3) if kind == "part" else rng.randint(1, 3))


def draw_fault(rng, kills=False):
    # A start does some dozens of most operations, and a step one or two writes.
    op = rng.choice(list(FILE_ERRORS))
    nth = int(2 ** rng.uniform(0, 9 if op == "write" else 5))
    if kills:
        return f"{op}:{nth}:kill"
    return f"{op}:{nth}:{rng.choice(FILE_ERRORS[op])}{rng.choice(('', '', ':on'))}"


def draw_attack(rng, kind):
    attack = Attack(kind, draw_moment(rng))
    if kind.startswith("stop-"):
        attack.signal = signal.SIGTERM if kind == "stop-timeout" else rng.choice(STOPS)
    elif kind.startswith("kill-"):
        attack.signal = signal.SIGKILL
    if kind == "stop-twice":
        attack.gap_s = rng.choice((0, 0.001, 0.05, 0.3, 1.0))
    elif kind == "pause":
        attack.signal, attack.gap_s = signal.SIGSTOP, round(rng.uniform(0.1, 1.5), 2)
    elif kind == "file-error":
        attack.moment, attack.fault = (), draw_fault(rng)
    elif kind == "file-kill":
        attack.moment, attack.fault = (), draw_fault(rng, kills=True)
    elif kind == "restart-error":
        attack.signal, attack.fault = signal.SIGKILL, draw_fault(rng)
    elif kind == "disk-full":
        attack.moment, attack.disk_kib = (), rng.choice((16, 256, 1024, 1400, 2400, 3000, 3600))
    return attack


def make_plan(seed, kinds):
    """The round of this seed, of the attacks `kinds` (those that this machine can do)."""
    rng = random.Random(seed)
    config = rng.choices(list(CONFIGS), CONFIG_WEIGHTS)[0]
    steps = CONFIGS[config][1]
    plan = Plan(seed, config, rng.choice((steps // 20, steps // 7, steps // 3)), [])
    for _ in range(rng.choices((1, 2, 3, 4), (5, 3, 2, 1))[0]):
        kind = rng.choices(kinds, [ATTACKS[name][0] for name in kinds])[0]
        start = Start(draw_attack(rng, kind), rng.choices((1, 2, 3), (2, 4, 2))[0], rng.random() < 0.3)
        if start.under_run:
            start.max_restarts = rng.choice((0, 0, 1, 2))
        if kind == "restart-error":
            start.under_run, start.max_restarts = True, rng.choice((1, 2))
        plan.starts.append(start)
    plan.starts.append(Start(None, rng.choice((1, 2, 3)), rng.random() < 0.2))
    return plan
