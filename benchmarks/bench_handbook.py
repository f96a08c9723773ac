"""Plans a second of the columnar handbook model against a plain loop of the same equations.

    python benchmarks/bench_handbook.py

Prices the same 100,000 plans both ways in one run (20,000 of each of the textbook's five scenarios: its
valid plans with micro-batches of one and two, over and over), checks that the answers agree, and prints
the ratio of the best rounds of each, in seconds of the processor. Neither keeps the prices of more than one
scenario at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import scalar_handbook as scalar

from meshplan.cost.costs import Costs
from meshplan.cost.scenarios import SCENARIOS, Scenario
from meshplan.plan.plans import AUTO_LAYERS, Plans
from meshplan.plan.rules import HANDBOOK_RULES, Setting
from meshplan.plan.space import Space
from meshplan.search.candidates import Funnel, blocks
from meshplan.search.heap import keep_freed_memory

EACH = 20_000
ROUNDS = 7
DEGREES = ("tp", "cp", "pp", "dp", "mbs")


def plans_of(scenario: Scenario) -> Plans:
    """``EACH`` valid plans of a scenario."""
    setting = Setting(scenario.model, scenario.cluster, scenario.workload)
    book = Space.handbook()
    space = Space(tp=book.tp, cp=book.cp, pp=book.pp, ep=(1,), etp=(1,), mbs=(1, 2))
    valid = Plans.concatenate(list(blocks(setting, space, HANDBOOK_RULES, Funnel())))
    plans = valid.take(np.arange(EACH) % len(valid))
    return plans.replace(recompute_layers=np.full(EACH, AUTO_LAYERS))


def columns(tables: list[Plans]) -> Iterator[Costs]:
    for s, t in zip(SCENARIOS, tables, strict=True):
        yield s.cost_model.price(s.model, s.cluster, s.workload, t)


def loop(rows: list[list[list[int]]]) -> Iterator[list[dict[str, float] | None]]:
    for scenario, plans in zip(SCENARIOS, rows, strict=True):
        llm = scalar.LLAMA_8B if scenario.model.name == "llama-8b" else scalar.LLAMA_70B
        run = scalar.Run(scenario.gpus, scenario.workload.seq, scenario.workload.gbs)
        yield [scalar.price(llm, run, *plan) for plan in plans]


def took(work: Iterator[object]) -> float:
    start = time.process_time()
    for prices in work:
        del prices
    return time.process_time() - start


def agree(priced: Iterator[Costs], looped: Iterator[list[dict[str, float] | None]]) -> None:
    """Raise ``AssertionError`` where the two ways differ."""
    for costs, plans in zip(priced, looped, strict=True):
        assert np.array_equal(costs.fits, [p is not None for p in plans])
        fitting = [p for p in plans if p is not None]
        for column in ("step_s", "mfu", "memory_bytes"):
            ours = getattr(costs, column)[costs.fits]
            assert np.allclose(ours, [p[column] for p in fitting], rtol=1e-9)


def main() -> float:
    """Print the bench; return how many times faster the columns are."""
    keep_freed_memory()  # as the command line does
    tables = [plans_of(scenario) for scenario in SCENARIOS]
    rows = [np.stack([getattr(t, c) for c in DEGREES], axis=1).tolist() for t in tables]
    agree(columns(tables), loop(rows))
    fast = min(took(columns(tables)) for _ in range(ROUNDS))
    slow = min(took(loop(rows)) for _ in range(ROUNDS))
    fast = min(fast, *(took(columns(tables)) for _ in range(ROUNDS)))  # after, too: other work comes and goes
    total = EACH * len(SCENARIOS)
    print(f"columns: {total / fast:>12,.0f} plans/s ({fast * 1e3:.1f} ms for {total:,})")
    print(f"loop:    {total / slow:>12,.0f} plans/s ({slow * 1e3:.0f} ms)")
    print(f"ratio:   {slow / fast:>12.0f}")
    return slow / fast


if __name__ == "__main__":
    main()
