"""What a run's folder shows from outside: steps, checkpoints, the hash at the end, and what does not belong there."""
import csv
import json
import os
import pathlib


class RunFolder:
    def __init__(self, path):
        self.path = pathlib.Path(path)

    def last_step(self):
        """The newest step whose line in steps.csv is whole; 0 without one."""
        try:
            with open(self.path / "steps.csv", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 400))
                lines = file.read().split(b"\n")[:-1]
            return int(lines[-1].split(b",")[0])
        except (OSError, IndexError, ValueError):
            return 0

    def _names(self):
        try:
            return os.listdir(self.path / "checkpoints")
        except OSError:
            return []

    def newest_checkpoint(self):
        """Its step; 0 without one."""
        steps = [name.removeprefix("step-") for name in self._names() if name.startswith("step-")]
        return max((int(step) for step in steps if step.isdigit()), default=0)

    def writes_checkpoint(self):
        return ".staging" in self._names()

    def is_empty(self):
        return not self.path.is_dir() or not os.listdir(self.path)

    def summary(self):
        try:
            return json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return {}

    def losses(self):
        """(step, loss) of each line of steps.csv, as text."""
        try:
            with open(self.path / "steps.csv", newline="") as file:
                return [(row["step"], row["loss"]) for row in csv.DictReader(file)]
        except (OSError, KeyError):
            return []

    def hidden(self):
        """Files that only an unfinished operation has."""
        if not self.path.is_dir():
            return []
        return sorted(str(entry.relative_to(self.path)) for entry in self.path.rglob(".*"))
