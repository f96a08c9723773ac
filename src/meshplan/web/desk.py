"""Where questions are answered: from memory, in a thread when quick, in a process of its own when long."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync

from meshplan.errors import InputError
from meshplan.plan.plans import Plan
from meshplan.report.gather import chosen_data
from meshplan.report.plan_key import find_plan, read_plan
from meshplan.search.ranking import Ranking
from meshplan.web.jobs import Job, Jobs
from meshplan.web.question import Asked
from meshplan.web.tasks import Task, done, ranked

QUICK = 300_000
"""Candidates, times searches, up to which an answer is quick: a fraction of a second."""
MOST_KEPT = 128
POLL_S = 0.03

T = TypeVar("T")


class StoppedError(Exception):
    """A long search that was waited for was cancelled."""


class Kept:
    """The last answers by key, the least recently used forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """What is kept, or ``None``."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a value."""
        with self._lock:
            self._found[key] = value
            self._found.move_to_end(key)
            while len(self._found) > self._most:
                self._found.popitem(last=False)


class Desk:
    """All answers of a server."""

    def __init__(self, *, quick: int = QUICK, jobs: Jobs | None = None) -> None:
        self.quick = quick
        self._kept = Kept(MOST_KEPT)
        self.jobs = jobs or Jobs(self._kept.put)
        self._limit = anyio.CapacityLimiter(8)

    async def quickly(self, task: Task) -> Any:
        """The answer where it is at hand or quick, else the ``Job`` of the long search for it, started.

        Raises ``InputError`` and ``BusyError``.
        """
        found = self._kept.get(task.key)
        if found is not None:
            return found
        ranking = None
        if task.kind == "studies":  # they start from the ranking
            ranking = await self.quickly(Task(asked=task.asked))
            if isinstance(ranking, Job):
                return ranking
        if task.asked.candidates * task.searches > self.quick:
            return self.jobs.start(task, ranking)
        found = await self.thread(lambda: _quick(task, ranking))
        if isinstance(found, Ranking) and not len(found):
            # Nothing fits: what would is found by many searches more, which can take long.
            return self.jobs.start(task)
        self._kept.put(task.key, found)
        return found

    async def slowly(self, task: Task) -> Any:
        """The answer, however long it takes. Raises ``InputError``, ``BusyError`` and ``StoppedError``."""
        while True:
            found = await self.quickly(task)
            if not isinstance(found, Job):
                return found
            await self._wait(found)
            if found.key == task.key:
                return found.answer

    async def ranking(self, asked: Asked) -> Ranking:
        """The ranking of a question, as ``slowly``."""
        found: Ranking = await self.slowly(Task(asked=asked))
        return found

    async def thread(self, work: Callable[[], T]) -> T:
        """Run computing beside the loop that serves everybody."""
        return await run_sync(work, limiter=self._limit)

    def chosen(self, asked: Asked, ranking: Ranking, i: int) -> dict[str, Any]:
        """One plan in full."""
        key = f"chosen {i} {asked.key}"
        found: dict[str, Any] | None = self._kept.get(key)
        if found is None:
            found = chosen_data(ranking, i, asked.cost_model)
            self._kept.put(key, found)
        return found

    async def _wait(self, job: Job) -> None:
        job.watchers += 1
        try:
            while not job.ended:
                await anyio.sleep(POLL_S)
        finally:
            job.watchers -= 1
        if job.state == "cancelled":
            raise StoppedError
        if job.state == "failed":
            raise InputError(job.error)


def row_of(ranking: Ranking, key: str) -> int:
    """The row of a plan in a ranking. Raises ``InputError`` when it is not among the plans that were kept."""
    fields = read_plan(key)
    row = find_plan(ranking.costs.plans, replace(Plan(), **fields)) if len(ranking) else None
    if row is None:
        raise InputError(f"plan {key} is not among the plans that fit; ask why not")
    return row


def _quick(task: Task, ranking: Ranking | None) -> Any:
    if task.kind == "plan":
        return ranked(task.asked, advise=False)
    return done(task, ranking, lambda text: None)
