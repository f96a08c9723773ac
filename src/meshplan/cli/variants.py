"""Questions of one run in several precisions or orders of the dimensions: each is a search of its own."""

from dataclasses import dataclass, fields
from itertools import product

from meshplan.cli.flags import SpaceFlags, SpacesFlags, WorkloadFlags, WorkloadsFlags, habits
from meshplan.errors import InputError
from meshplan.search.ranking import Ranking

MOST = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One precision and order of those asked for; what is not given is the default or a job file's."""

    workload: WorkloadFlags
    space: SpaceFlags


def variants_of(workload: WorkloadsFlags, space: SpacesFlags) -> list[Variant]:
    """Every combination, in the order given."""
    same = {f.name: getattr(space, f.name) for f in fields(space) if f.name not in ("order", "layout")}
    pairs = list(product(workload.precision or (None,), space.order or (None,)))
    if len(pairs) > MOST:
        raise InputError(f"--precision and --order make {len(pairs)} combinations; {MOST} is the most")
    return [
        Variant(
            workload=WorkloadFlags(
                seq=workload.seq,
                gbs=workload.gbs,
                precision=precision,  # type: ignore[arg-type]
                **habits(workload),
            ),
            space=SpaceFlags(**same, order=order),
        )
        for precision, order in pairs
    ]


def only_variant(workload: WorkloadsFlags, space: SpacesFlags, why: str) -> Variant:
    """The one combination; raises ``InputError`` for several, saying ``why`` there can be but one."""
    found = variants_of(workload, space)
    if len(found) > 1:
        several = "--precision" if len(workload.precision or ()) > 1 else "--order"
        raise InputError(f"{several} lists several values, {why}; give one")
    return found[0]


def best_first(rankings: list[Ranking]) -> list[int]:
    """Indices of the rankings, the one with the best plan first, those without a plan last."""

    def key(i: int) -> tuple[float, ...]:
        ranking = rankings[i]
        if not len(ranking):
            return (1.0, float(i))
        step = float(ranking.costs.step_s.min())
        match ranking.objective:
            case "memory":
                return (0.0, float(ranking.costs.memory_bytes[0]), step)
            case "simplicity":
                return (0.0, float(ranking.complexity[0]), step)
        return (0.0, step)

    return sorted(range(len(rankings)), key=key)
