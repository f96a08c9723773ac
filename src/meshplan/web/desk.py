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
from meshplan.report.gather import band_data, chosen_data, scaling_data
from meshplan.report.plan_key import find_plan, read_plan
from meshplan.report.studies import sensitivities
from meshplan.search.ranking import Ranking
from meshplan.search.search import search
from meshplan.web.child import KEEP
from meshplan.web.jobs import Job, Jobs
from meshplan.web.question import Asked

QUICK = 400_000
"""Candidates up to which a search is quick: a fraction of a second."""
MOST_KEPT = 64
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
        self._rankings = Kept(MOST_KEPT)
        self._more = Kept(4 * MOST_KEPT)
        self.jobs = jobs or Jobs(self.keep)
        self._limit = anyio.CapacityLimiter(8)

    def keep(self, key: str, ranking: Ranking) -> None:
        """Remember the answer to a question."""
        self._rankings.put(key, ranking)

    async def quickly(self, asked: Asked) -> Ranking | Job:
        """The answer where it is at hand or quick, else the long search for it, started. Raises
        ``InputError`` and ``BusyError``."""
        found: Ranking | None = self._rankings.get(asked.key)
        if found is not None:
            return found
        if asked.candidates <= self.quick:
            ranking = await self.thread(lambda: _search(asked))
            if len(ranking):
                self.keep(asked.key, ranking)
                return ranking
            # Nothing fits: what would is found by many searches more, which can take long.
        return self.jobs.start(asked)

    async def ranking(self, asked: Asked) -> Ranking:
        """The answer, however long it takes. Raises ``InputError``, ``BusyError`` and ``StoppedError``."""
        found = await self.quickly(asked)
        if isinstance(found, Ranking):
            return found
        found.watchers += 1
        try:
            while not found.ended:
                await anyio.sleep(POLL_S)
        finally:
            found.watchers -= 1
        if found.ranking is not None:
            return found.ranking
        if found.state == "cancelled":
            raise StoppedError
        raise InputError(found.error)

    async def thread(self, work: Callable[[], T]) -> T:
        """Run computing beside the loop that serves everybody."""
        return await run_sync(work, limiter=self._limit)

    def known(self, asked: Asked) -> Ranking | None:
        """The answer if it is at hand."""
        found: Ranking | None = self._rankings.get(asked.key)
        return found

    def band(self, ranking: Ranking) -> dict[str, Any] | None:
        """The error band; a second's work the first time."""
        return band_data(ranking)

    def chosen(self, asked: Asked, ranking: Ranking, i: int) -> dict[str, Any]:
        """One plan in full."""
        return self._once(("chosen", asked.key, i), lambda: chosen_data(ranking, i, asked.cost_model))

    def studies(self, asked: Asked, ranking: Ranking, i: int) -> dict[str, Any]:
        """The scaling curve and the sensitivities."""
        return self._once(
            ("studies", asked.key, i),
            lambda: {
                "scaling": scaling_data(ranking, asked.cost_model),
                "sensitivities": sensitivities(ranking, i, asked.cost_model),
            },
        )

    def _once(self, key: Hashable, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] | None = self._more.get(key)
        if found is None:
            found = make()
            self._more.put(key, found)
        return found


def row_of(ranking: Ranking, key: str) -> int:
    """The row of a plan in a ranking. Raises ``InputError`` when it is not among the plans that were kept."""
    fields = read_plan(key)
    row = find_plan(ranking.costs.plans, replace(Plan(), **fields)) if len(ranking) else None
    if row is None:
        raise InputError(f"plan {key} is not among the plans that fit; ask why not")
    return row


def _search(asked: Asked) -> Ranking:
    return search(
        asked.model, asked.cluster, asked.workload, space=asked.space, cost_model=asked.cost_model, keep=KEEP,
        advise=False,
    )  # fmt: skip
