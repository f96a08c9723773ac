"""What trains a plan: the reference engine, torchtitan, or any command of the user's; and how it is read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from meshplan.errors import InputError, MeshplanError, shown
from meshplan.measure.specs import RunSpec

ENGINES = ("reference", "torchtitan", "command")
SUFFIXES = (".json", ".json.gz")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TITAN = re.compile(
    r"step:\s*(\d+)\s+loss:\s*([-\d.naif]+)\s.*?memory:\s*([\d.]+)GiB.*?tps:\s*([\d,]+)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a run that ended well showed. ``steps_s``: timed steps on the slowest rank."""

    steps_s: tuple[float, ...]
    agreement: str = ""
    memory: tuple[Mapping[str, int], ...] = ()
    hosts: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Makes a launch of a plan and reads what it left."""

    @property
    def name(self) -> str:
        """One of ``ENGINES``."""
        ...

    @property
    def checks(self) -> bool:
        """Whether loss and gradients are compared with one process."""
        ...

    def program(self, spec: RunSpec, folder: Path) -> list[str]:
        """Write what the launch needs into ``folder``; a Python module and its arguments, or (of ``command``)
        the whole command line."""
        ...

    def env(self, folder: Path) -> dict[str, str]:
        """Variables of its own."""
        ...

    def read(self, spec: RunSpec, folder: Path) -> Found | str:
        """What the run showed, or why it showed nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceEngine:
    """meshplan's own decoder."""

    name: str = "reference"
    checks: bool = True

    def program(self, spec: RunSpec, folder: Path) -> list[str]:
        """The worker and its folder."""
        return ["meshplan.measure.worker", str(folder.resolve())]

    def env(self, folder: Path) -> dict[str, str]:
        """None."""
        return {}

    def read(self, spec: RunSpec, folder: Path) -> Found | str:
        """What the ranks wrote."""
        ranks = [json.loads(f.read_text()) for f in folder.glob("rank-*.json")]
        if len(ranks) != spec.plan.gpus:
            return f"{len(ranks)} of {spec.plan.gpus} ranks wrote what they measured"
        ranks.sort(key=lambda r: int(r["rank"]))
        return Found(
            steps_s=tuple(ranks[0].get("steps_s", ())),
            agreement=ranks[0]["agreement"],
            memory=tuple(r.get("memory", {}) for r in ranks),
            hosts=tuple(r["host"] for r in ranks),
            versions=ranks[0].get("versions", {}),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchtitanEngine:
    """torchtitan with the configuration that ``meshplan export`` writes; read from its log.

    ``files``: what the export writes for a spec. ``extra``: flags of the user's for ``torchtitan.train``.
    """

    files: Callable[[RunSpec], Mapping[str, str]]
    extra: tuple[str, ...] = ()
    name: str = "torchtitan"
    checks: bool = False

    def program(self, spec: RunSpec, folder: Path) -> list[str]:
        """Export into the folder; run so many steps, the last of them profiled."""
        for name, text in self.files(spec).items():
            (folder / name).write_text(text, encoding="utf-8")
        steps = spec.warmup + spec.steps
        profile = [
            "--profiler.enable-profiling", "--profiler.profile-freq", str(steps + 4),
            "--profiler.profiler-active", "1",
        ] if spec.profiled else []  # fmt: skip
        return [
            "torchtitan.train", "--module", "meshplan_titan", "--config", "train",
            "--training.steps", str(steps + (4 if spec.profiled else 0)), "--metrics.log-freq", "1",
            "--dump-folder", str((folder / "titan").resolve()), *profile, *self.extra,
        ]  # fmt: skip

    def env(self, folder: Path) -> dict[str, str]:
        """The exported module is found in the folder."""
        return {"PYTHONPATH": str(folder.resolve())}

    def read(self, spec: RunSpec, folder: Path) -> Found | str:
        """Tokens a second of its log lines; the profiled steps are left out."""
        for i, trace in enumerate(sorted((folder / "titan").rglob("*trace*.json*"))):
            if trace.is_file():
                trace.replace(folder / f"trace-{i}{'.json.gz' if trace.suffix == '.gz' else '.json'}")
        return titan_steps((folder / "log.txt").read_text(errors="replace"), spec)


def titan_steps(log: str, spec: RunSpec) -> Found | str:
    """Step times of a torchtitan log: every rank's line says how many tokens a device trained on a second."""
    slowest: dict[int, float] = {}
    peak = 0.0
    for line in _COLOURS.sub("", log).splitlines():
        match = _TITAN.search(line)
        if match is None:
            continue
        step, tps = int(match.group(1)), float(match.group(4).replace(",", ""))
        peak = max(peak, float(match.group(3)))
        if tps > 0:
            seconds = spec.workload.tokens / (tps * spec.plan.gpus)
            slowest[step] = max(slowest.get(step, 0.0), seconds)
    first = spec.warmup + 1
    timed = [slowest[s] for s in sorted(slowest) if first <= s < first + spec.steps]
    if not timed:
        return f"torchtitan's log has no lines of steps from {first} on ('step: … loss: … tps: …')"
    return Found(steps_s=tuple(timed), memory=({"reserved_bytes": int(peak * (1 << 30))},))


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandEngine:
    """Any command line that trains the plan and leaves traces of PyTorch's profiler.

    In ``line``, ``{folder}`` is the run's folder, ``{ranks}`` the plan's ranks, ``{tp}`` … its degrees and
    ``{plan}`` its name; ``traces`` (in which ``{folder}`` may stand too) is where the traces will be.
    """

    line: str
    traces: str = "{folder}"
    name: str = "command"
    checks: bool = False

    def program(self, spec: RunSpec, folder: Path) -> list[str]:
        """The line, its words filled in."""
        words = {n: getattr(spec.plan, n) for n in ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "mbs")}
        values = {
            **words, "folder": str(folder.resolve()), "ranks": spec.plan.gpus, "plan": spec.label,
            "steps": spec.steps, "seq": spec.workload.seq, "gbs": spec.workload.gbs,
        }  # fmt: skip
        try:
            return [word.format(**values) for word in shlex.split(self.line)]
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(
                f"--command: {error} cannot be filled in;"
                f" known are {', '.join('{' + n + '}' for n in values)}"
            ) from None

    def env(self, folder: Path) -> dict[str, str]:
        """None."""
        return {}

    def read(self, spec: RunSpec, folder: Path) -> Found | str:
        """Step times of the traces: the slowest rank's."""
        from meshplan.trace.breakdown import read_traces

        where = Path(self.traces.format(folder=folder.resolve()))
        files = trace_files(where)
        if not files:
            return f"the command left no traces in '{where}'"
        try:
            found = read_traces(files)
        except MeshplanError as error:
            return str(error)
        if where.resolve() != folder.resolve():
            for i, file in enumerate(files):
                link = folder / f"trace-{i}{'.json.gz' if file.suffix == '.gz' else '.json'}"
                link.symlink_to(file.resolve())
        steps: dict[int, float] = {}
        for s in found.steps:
            steps[s.step] = max(steps.get(s.step, 0.0), s.step_s)
        return Found(steps_s=tuple(steps[k] for k in sorted(steps)))


def trace_files(folder: Path) -> list[Path]:
    """Traces of a folder and the folders in it."""
    if not folder.is_dir():
        return []
    return sorted(
        p for p in folder.rglob("*") if p.name.endswith(SUFFIXES) and "trace" in p.name and p.is_file()
    )


def words_of(text: str) -> Sequence[str]:
    """A line of flags as words. Raises ``InputError`` for a quote that is not closed."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{shown(text, 200)} is no line of flags: {str(error).lower()}") from None
