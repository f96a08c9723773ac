"""Plans measured round-robin: each run a folder, each outcome a line, resumed where it was left."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from meshplan.measure.engines import Engine, ReferenceEngine
from meshplan.measure.failures import MachineError, writing
from meshplan.measure.launch import Ended, LocalLauncher
from meshplan.measure.results import OK, Result, append, read
from meshplan.measure.specs import RunSpec, spec_data

Say = Callable[[str], None]


class Launcher(Protocol):
    """Starts ``program`` on some ranks and returns when all of them are gone."""

    @property
    def env(self) -> dict[str, str]:
        """Variables besides the caller's own."""
        ...

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
    engine: Engine = field(default_factory=ReferenceEngine)
    announce: bool = False
    """Say in the folder what is launched next, for the other hosts (``follow``)."""

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
            if self.announce:
                _announce(self.folder, {"end": True})
        return found

    def _one(self, spec: RunSpec, turn: int, say: Say) -> Result:
        if spec.check and self.engine.checks:
            failed = self._reference(spec, say)
            if failed is not None:
                return _failed(spec, turn, "crash", f"the run of one process failed: {failed}")
        folder = self.folder / f"{turn}-{spec.key}"
        if self.announce:
            _announce(self.folder, {"run": folder.name, "ranks": spec.plan.gpus})
        return run_one(spec, turn, folder, self.launcher, limit_s=self.limit_s, engine=self.engine)

    def _reference(self, spec: RunSpec, say: Say) -> str | None:
        """Make the run of one process, once; why it could not be made."""
        if (self.folder / f"reference-{spec.reference_key}.pt").exists():
            return None
        say("one process, to compare with")
        one = run_one(
            spec.reference(),
            0,
            self.folder / f"reference-{spec.reference_key}",
            LocalLauncher() if self.announce else self.launcher,
            limit_s=self.limit_s,
        )
        return None if one.outcome == OK else one.reason


def run_one(
    spec: RunSpec,
    turn: int,
    folder: Path,
    launcher: Launcher,
    *,
    limit_s: float,
    engine: Engine | None = None,
) -> Result:
    """One run in a fresh folder: what became of it."""
    engine = engine or ReferenceEngine()
    if folder.exists():
        shutil.rmtree(folder)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with writing(folder):
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(spec_data(spec), indent=1))
        program = engine.program(spec, folder)
        (folder / "command.txt").write_text(" ".join(launcher.command(spec.plan.gpus, program)) + "\n")
    own = engine.env(folder)
    runner: Any = replace(launcher, env={**launcher.env, **own}) if own else launcher  # type: ignore[type-var]
    ended = runner.run(spec.plan.gpus, program, folder / "log.txt", limit_s=limit_s)
    return outcome(spec, turn, folder, ended, started=started, limit_s=limit_s, engine=engine)


def outcome(
    spec: RunSpec, turn: int, folder: Path, ended: Ended, *, started: str, limit_s: float, engine: Engine
) -> Result:
    """Read what the ranks left."""
    failures = [json.loads(f.read_text()) for f in sorted(folder.glob("failed-*.json"))]
    if ended.code is None:
        kind, reason = "hang", f"no end after {limit_s:g} s; ended"
    elif ended.code == 0 and not failures:
        found = engine.read(spec, folder)
        if not isinstance(found, str):
            return Result(
                key=spec.key,
                label=spec.label,
                round=turn,
                outcome=OK,
                steps_s=found.steps_s,
                agreement=found.agreement,
                memory=found.memory,
                hosts=found.hosts,
                versions=found.versions,
                spec=spec_data(spec),
                engine=engine.name,
                started=started,
                wall_s=ended.seconds,
                folder=folder.name,
            )
        kind, reason = "crash", found
    elif failures:
        kind, reason = _worst(failures)
    else:
        kind, reason = _from_log(folder / "log.txt", ended.code)
    return _failed(
        spec,
        turn,
        kind,
        reason,
        started=started,
        wall_s=ended.seconds,
        folder=folder.name,
        engine=engine.name,
    )


NEXT = "next.json"
"""What the first host launches: read by the others, which share the folder."""
PATIENCE_S = 600.0
"""The other hosts give up when the first says nothing for so long beside the time limit of a run."""


def _announce(folder: Path, what: dict[str, Any]) -> None:
    path = folder / NEXT
    with writing(path):
        part = path.with_suffix(".part")
        part.write_text(json.dumps({**what, "at": monotonic()}))
        part.replace(path)


def follow(folder: Path, launcher: LocalLauncher, say: Say, *, limit_s: float) -> None:
    """On a host that is not the first: launch its part of each run that the first announces in the folder,
    which all share, until it says that the sweep has ended. Raises ``MachineError`` when it says nothing."""
    seen, since = "", monotonic()
    while True:
        path = folder / NEXT
        text = path.read_text() if path.exists() else ""
        if text and text != seen:
            seen = text
            what = json.loads(text)
            if what.get("end"):
                return
            run = folder / str(what["run"])
            say(f"{run.name}: this host's ranks")
            log = run / f"log-{launcher.node_rank}.txt"
            until = monotonic() + 30
            while not (run / "command.txt").exists() and monotonic() < until:
                sleep(0.1)
            program = ["meshplan.measure.worker", str(run.resolve())]
            launcher.run(int(what["ranks"]), program, log, limit_s=limit_s)
            since = monotonic()
        elif monotonic() - since > PATIENCE_S + limit_s:
            raise MachineError(f"the first host announced no run in '{folder}' for {PATIENCE_S:g} s")
        else:
            sleep(0.2)


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
    engine: str = "reference",
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
        engine=engine,
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
