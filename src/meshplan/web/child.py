"""One long search in a process of its own, which can be ended and has a limit of memory."""

from __future__ import annotations

import contextlib
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import CostModel, Costs
from meshplan.errors import MeshplanError
from meshplan.model.model import Model
from meshplan.plan.plans import Ints, Plans
from meshplan.plan.workload import Workload
from meshplan.search.heap import keep_freed_memory
from meshplan.search.search import search
from meshplan.web.question import Asked

KEEP = 2_000
"""Plans kept of every answer: what tables and pictures show."""
MEMORY_BYTES = 3 << 30
"""Beyond what the process has when it starts."""
EVERY_S = 0.1


class Watched:
    """A cost model that tells how far the search is; ``tp`` varies slowest, so its value is the measure.

    In everything else, also what a cost model may have beyond the protocol, it is what it watches.
    """

    def __init__(self, inner: CostModel, values: tuple[int, ...], tell: Connection) -> None:
        self._inner, self._values, self._tell = inner, values, tell
        self._priced = 0
        self._last = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def name(self) -> str:
        """The name of what is watched."""
        return self._inner.name

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        """The price of every plan, and a word on the pipe now and then."""
        costs = self._inner.price(model, cluster, workload, plans)
        self._priced += len(plans)
        now = time.monotonic()
        if len(plans) and now - self._last >= EVERY_S:
            self._last = now
            self._tell.send(("progress", self._share(plans.tp), self._priced))
        return costs

    def _share(self, tp: Ints) -> float:
        done = sum(1 for value in self._values if value < int(tp[-1]))
        return done / max(len(self._values), 1)


def run(asked: Asked, tell: Connection) -> None:
    """Search and send ``("done", ranking)`` or ``("error", sentence)``; words of progress before it."""
    with contextlib.suppress(OSError):
        os.nice(5)  # the page itself comes first
    _limit_memory()
    keep_freed_memory()
    try:
        setting = (asked.model, asked.cluster, asked.workload)
        values = asked.space.tp or _divisors(asked.cluster.gpus)
        watched = Watched(asked.cost_model, values, tell)
        tell.send(("done", search(*setting, space=asked.space, cost_model=watched, keep=KEEP)))
    except MeshplanError as error:
        tell.send(("error", str(error)))
    except MemoryError:
        tell.send(("error", "the search needs more memory than the page gives it; fix some dimensions"))
    finally:
        tell.close()


def _divisors(gpus: int) -> tuple[int, ...]:
    from meshplan.plan.divisors import divisors

    return divisors(gpus)


def _limit_memory() -> None:
    """A limit on this process's address space, where the system has one."""
    try:
        import resource

        with Path("/proc/self/statm").open(encoding="ascii") as file:
            own = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY_BYTES, own + MEMORY_BYTES))
    except (ImportError, OSError, ValueError):
        return
