"""One long search in a process of its own, which can be ended and has a limit of memory."""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import meshplan
from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import CostModel, Costs
from meshplan.errors import MeshplanError
from meshplan.model.model import Model
from meshplan.plan.plans import Plans
from meshplan.plan.workload import Workload
from meshplan.search.heap import keep_freed_memory
from meshplan.search.ranking import Ranking
from meshplan.web.tasks import Task, done, ranked

MEMORY_BYTES = 3 << 30
"""Beyond what the process has when it starts."""
EVERY_S = 0.1


class Watched:
    """A cost model that tells how many plans it has priced, and how fast the best of them is.

    In everything else, also what a cost model may have beyond the protocol, it is what it watches.
    """

    def __init__(self, inner: CostModel, tell: Connection) -> None:
        self._inner, self._tell = inner, tell
        self._priced, self._best = 0, math.inf
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
        fitting = costs.step_s[costs.fits]
        self._best = min(self._best, float(fitting.min()) if len(fitting) else math.inf)
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            best = self._best if math.isfinite(self._best) else 0.0
            self._tell.send(("progress", self._priced, best, ""))
        return costs


def run(task: Task, ranking: Ranking | None, tell: Connection) -> None:
    """Work and send ``("done", answer)`` or ``("error", sentence)``; words of progress before it."""
    with contextlib.suppress(OSError):
        os.nice(5)  # the page itself comes first
    _limit_memory()
    keep_freed_memory()
    try:
        if task.kind == "plan":
            watched: Any = Watched(task.asked.cost_model, tell)
            answer: Any = ranked(task.asked, advise=True, cost_model=watched)
        else:
            answer = done(task, ranking, lambda text: tell.send(("progress", 0, 0.0, text)))
        tell.send(("done", answer))
    except MeshplanError as error:
        tell.send(("error", str(error)))
    except MemoryError:
        tell.send(("error", "the search needs more memory than the page gives it; fix some dimensions"))
    except Exception as error:
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        tell.send(("error", f"a bug in meshplan {meshplan.__version__} ({what}); please report it"))
    finally:
        tell.close()


def _limit_memory() -> None:
    """A limit on this process's address space, where the system has one."""
    try:
        import resource

        with Path("/proc/self/statm").open(encoding="ascii") as file:
            own = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY_BYTES, own + MEMORY_BYTES))
    except (ImportError, OSError, ValueError):
        return
