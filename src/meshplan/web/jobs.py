"""Long searches: each in its own process, a few at a time, cancelled or ended when nobody waits."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from meshplan.search.ranking import Ranking
from meshplan.web import child
from meshplan.web.tasks import Task

MOST_JOBS = 16
"""Running and waiting; more are refused."""
TIME_LIMIT_S = 300.0
PATIENCE_S = 20.0
"""How long a search goes on when nobody has asked how it is."""
REMEMBER_S = 10.0
"""How long a search that failed is not tried again."""
POLL_S = 0.05


class BusyError(Exception):
    """Too many long searches at once."""


@dataclass(eq=False)
class Job:
    """A long search; its fields are written by its own thread and read by requests."""

    key: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: str = "waiting"
    """``waiting``, ``running``, then ``done``, ``failed`` or ``cancelled``."""
    priced: int = 0
    best_s: float = 0.0
    """Step time of the fastest plan priced so far; 0 for none."""
    doing: str = ""
    answer: Any = None
    error: str = ""
    watchers: int = 0
    seen: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state in ("done", "failed", "cancelled")

    def data(self) -> dict[str, Any]:
        """What the page is told."""
        names = ("state", "priced", "best_s", "doing", "error")
        return {name: getattr(self, name) for name in names}


class Jobs:
    """All long searches of a server. ``finished`` is called with every answer found."""

    def __init__(
        self, finished: Callable[[str, Any], None], *, running: int | None = None, target: Any = child.run
    ) -> None:
        self._finished = finished
        self._target = target
        self._slots = threading.Semaphore(running or max(os.cpu_count() or 1, 2))
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(["meshplan.web.child", "meshplan.cost.full.model"])

    def start(self, task: Task, ranking: Ranking | None = None) -> Job:
        """The search for this task: a new one, or the one under way. Raises ``BusyError``."""
        with self._lock:
            for job in self._jobs.values():
                fresh = job.state == "failed" and time.monotonic() - job.seen < REMEMBER_S
                if job.key == task.key and (fresh or not job.ended):
                    job.seen = job.seen if fresh else time.monotonic()
                    return job
            self._forget()
            if sum(not job.ended for job in self._jobs.values()) >= MOST_JOBS:
                raise BusyError
            job = Job(task.key)
            self._jobs[job.id] = job
        threading.Thread(target=self._run, args=(job, task, ranking), daemon=True).start()
        return job

    def get(self, job_id: str) -> Job | None:
        """The job of this id."""
        return self._jobs.get(job_id)

    def cancel(self, job: Job) -> None:
        """End the search, unless somebody else watches it too."""
        if job.watchers <= 1:
            job.stop.set()

    def close(self) -> None:
        """End all searches and wait for their threads a moment."""
        for job in list(self._jobs.values()):
            job.stop.set()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and any(not job.ended for job in list(self._jobs.values())):
            time.sleep(POLL_S)

    def _forget(self) -> None:
        """Drop ended jobs nobody asked about for a while."""
        old = time.monotonic() - 60
        for job_id in [j.id for j in self._jobs.values() if j.ended and j.seen < old]:
            del self._jobs[job_id]

    def _run(self, job: Job, task: Task, ranking: Ranking | None) -> None:
        while not self._slots.acquire(timeout=POLL_S):
            if self._is_over(job):
                job.state = "cancelled"
                return
        try:
            self._search(job, task, ranking)
        except Exception as error:  # a job must end, whatever happens to it
            job.error, job.state = f"the search could not be run ({type(error).__name__}: {error})", "failed"
        finally:
            self._slots.release()

    def _search(self, job: Job, task: Task, ranking: Ranking | None) -> None:
        hear, tell = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._target, args=(task, ranking, tell), daemon=True)
        process.start()
        tell.close()
        job.state = "running"
        deadline = time.monotonic() + TIME_LIMIT_S
        end: tuple[str, str] | None = None
        try:
            while end is None:
                if self._is_over(job):
                    end = "cancelled", ""
                elif time.monotonic() > deadline:
                    end = "failed", f"the search took longer than {TIME_LIMIT_S:.0f} s"
                elif hear.poll(POLL_S):
                    end = self._hear(job, hear)
        finally:
            hear.close()
            _end(process, patience=1.0 if end and end[0] != "cancelled" else 0.0)
        crashed = f"the search ended by itself (exit code {process.exitcode}), perhaps out of memory"
        job.error = end[1] or (crashed if end[0] == "failed" else "")
        job.seen = time.monotonic()
        job.state = end[0]  # last: from here on others look at the rest

    def _hear(self, job: Job, hear: Any) -> tuple[str, str] | None:
        """Take one word of the child; how the job ends, if that was the last one."""
        try:
            kind, *rest = hear.recv()
        except (EOFError, OSError):
            return "failed", ""
        if kind == "progress":
            job.priced, job.best_s, job.doing = rest
            return None
        if kind == "error":
            return "failed", rest[0]
        job.answer = rest[0]
        self._finished(job.key, rest[0])
        return "done", ""

    def _is_over(self, job: Job) -> bool:
        return job.stop.is_set() or (job.watchers == 0 and time.monotonic() - job.seen > PATIENCE_S)


def _end(process: BaseProcess, *, patience: float) -> None:
    """End a child that may still run: asked first, then at once."""
    process.join(patience)
    with contextlib.suppress(OSError, ValueError):
        if process.is_alive():
            process.terminate()
            process.join(0.5)
        if process.is_alive():
            process.kill()
            process.join(1)
