"""Plans measured round-robin: each run a folder, each outcome a line, resumed where it was left."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from meshplan.measure.failures import MachineError, writing
from meshplan.measure.launch import Ended
from meshplan.measure.results import OK, Result, append, read
from meshplan.measure.specs import RunSpec, spec_data

Say = Callable[[str], None]


class Launcher(Protocol):
    """Starts ``program`` on some ranks and returns when all of them are gone."""

    def command(self, processes: int, program: Sequence[str]) -> list[str]:
        """The command line, for the record."""
        ...

    def run(self, processes: int, program: Sequence[str], log: Path, *, limit_s: float) -> Ended:
        """Run it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Some plans, ``rounds`` times each, one after the other, into ``folder``."""

    specs: tuple[RunSpec, ...]
    folder: Path
    launcher: Launcher
    rounds: int = 3
    limit_s: float = 300.0
    """Seconds after which a run counts as hung."""

    @property
    def results(self) -> Path:
        """The lines."""
        return self.folder / "results.jsonl"

    def run(self, say: Say) -> list[Result]:
        """Run what is not yet in ``results.jsonl``; all results of these plans, old and new.

        Raises ``MachineError`` when another sweep works in the folder or it cannot be written. A run that
        fails is a result, and the sweep goes on.
        """
        with locked(self.folder):
            found = [r for r in read(self.results) if r.key in {s.key for s in self.specs}]
            done = {(r.key, r.round) for r in found}
            if done:
                say(f"{len(done)} of {self.rounds * len(self.specs)} runs are there already")
            for turn in range(self.rounds):
                for spec in self.specs:
                    if (spec.key, turn) in done or _hopeless(found, spec.key):
                        continue
                    say(f"round {turn + 1} of {self.rounds}: {spec.label}")
                    result = self._one(spec, turn, say)
                    append(self.results, result)
                    found.append(result)
                    if result.outcome != OK:
                        say(f"  {result.outcome}: {result.reason}")
        return found

    def _one(self, spec: RunSpec, turn: int, say: Say) -> Result:
        if spec.check:
            failed = self._reference(spec, say)
            if failed is not None:
                return _failed(spec, turn, "crash", f"the run of one process failed: {failed}")
        folder = self.folder / f"{turn}-{spec.key}"
        return run_one(spec, turn, folder, self.launcher, limit_s=self.limit_s)

    def _reference(self, spec: RunSpec, say: Say) -> str | None:
        """Make the run of one process, once; why it could not be made."""
        if (self.folder / f"reference-{spec.reference_key}.pt").exists():
            return None
        say("one process, to compare with")
        one = run_one(
            spec.reference(),
            0,
            self.folder / f"reference-{spec.reference_key}",
            self.launcher,
            limit_s=self.limit_s,
        )
        return None if one.outcome == OK else one.reason


def run_one(spec: RunSpec, turn: int, folder: Path, launcher: Launcher, *, limit_s: float) -> Result:
    """One run in a fresh folder: what became of it."""
    if folder.exists():
        shutil.rmtree(folder)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    program = ["meshplan.measure.worker", str(folder.resolve())]
    with writing(folder):
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(spec_data(spec), indent=1))
        command = launcher.command(spec.plan.gpus, program)
        (folder / "command.txt").write_text(" ".join(command) + "\n")
    ended = launcher.run(spec.plan.gpus, program, folder / "log.txt", limit_s=limit_s)
    return outcome(spec, turn, folder, ended, started=started, limit_s=limit_s)


def outcome(spec: RunSpec, turn: int, folder: Path, ended: Ended, *, started: str, limit_s: float) -> Result:
    """Read what the ranks wrote."""
    failures = [json.loads(f.read_text()) for f in sorted(folder.glob("failed-*.json"))]
    ranks = [json.loads(f.read_text()) for f in folder.glob("rank-*.json")]
    ranks.sort(key=lambda r: int(r["rank"]))
    if ended.code is None:
        kind, reason = "hang", f"no end after {limit_s:g} s; ended"
    elif ended.code == 0 and len(ranks) == spec.plan.gpus:
        return Result(
            key=spec.key,
            label=spec.label,
            round=turn,
            outcome=OK,
            steps_s=tuple(ranks[0].get("steps_s", ())),
            agreement=ranks[0]["agreement"],
            memory=tuple(r.get("memory", {}) for r in ranks),
            hosts=tuple(r["host"] for r in ranks),
            versions=ranks[0].get("versions", {}),
            spec=spec_data(spec),
            started=started,
            wall_s=ended.seconds,
            folder=folder.name,
        )
    elif failures:
        kind, reason = _worst(failures)
    else:
        kind, reason = _from_log(folder / "log.txt", ended.code)
    return _failed(spec, turn, kind, reason, started=started, wall_s=ended.seconds, folder=folder.name)


def _worst(failures: list[dict[str, str]]) -> tuple[str, str]:
    """The failure that explains the others: ranks that wait for a dead one crash too."""
    order = ("oom", "mismatch", "refused", "crash")
    first = min(failures, key=lambda f: order.index(f["kind"]))
    return first["kind"], first["reason"]


def _from_log(log: Path, code: int) -> tuple[str, str]:
    """A rank that could not write why it ended: killed by a signal, or before it began."""
    text = log.read_text(errors="replace") if log.exists() else ""
    for line in text.splitlines():
        if "exitcode  : -9" in line or "exitcode: -9" in line or "Signal 9" in line:
            return "crash", "a rank was killed by signal 9 (by hand, or for want of memory)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line] or lines
    return "crash", f"the launcher ended with code {code}: {told[-1][:300] if told else 'no output'}"


def _failed(
    spec: RunSpec,
    turn: int,
    kind: str,
    reason: str,
    *,
    started: str = "",
    wall_s: float = 0.0,
    folder: str = "",
) -> Result:
    return Result(
        key=spec.key,
        label=spec.label,
        round=turn,
        outcome=kind,
        reason=reason,
        spec=spec_data(spec),
        started=started,
        wall_s=wall_s,
        folder=folder,
    )


def _hopeless(found: list[Result], key: str) -> bool:
    """A plan that ran out of memory, is refused or computes something else will do so again."""
    return any(r.key == key and r.outcome in ("oom", "refused", "mismatch") for r in found)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for one sweep at a time; the lock goes with the process, however it ends."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MachineError(
                f"another measurement is running in '{folder}'; wait for it or use --out"
            ) from None
        yield
