"""Plans per second of the full cost model, beside the scalar handbook loop in the same run.

    python benchmarks/bench_full.py

Llama-3.1-405B on 4,096 and DeepSeek-V3 on 2,048 GPUs, twice over. *Priced*: every combination of the
degrees below, each priced in full with all its parts; on one core, then a share of the table on each core.
*Decided*: all valid plans of the full space, of which the search prices those that its lower bounds do not
rule out (``tests/search/test_bounded.py`` holds it against pricing them all). Rates are of seconds of the
processor, the busiest core's, so that other work on the machine does not count; medians of five runs.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache

import numpy as np
import scalar_handbook as scalar

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.model import load_model
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS, Plans
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.heap import keep_freed_memory
from meshplan.search.search import search

Case = tuple[str, str, int]
CASES: tuple[Case, ...] = (("llama-3.1-405b", "h100-sxm", 4096), ("deepseek-v3", "h800", 2048))
ROUNDS = 5


@lru_cache
def table(name: str, gpus: int) -> Plans:
    """Every valid combination of some degrees."""
    layers = len(load_model(name).layers)
    degrees = itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 3, 4, 6, 7, 8, 9, 12, 14, 16, 18, 21, 32, 42, 63),
        (1, 2, 3, 4, 6, 8), (1, 2, 4, 8), (1, 3), (0, AUTO_LAYERS, ALL_LAYERS), (1, 2, 4, 8, 16, 32, 64),
    )  # fmt: skip
    rows = [
        (tp, cp, pp, vp, gpus // (tp * cp * pp), mbs, sharding, recompute, ep)
        for tp, cp, pp, vp, mbs, sharding, recompute, ep in degrees
        if gpus % (tp * cp * pp) == 0
        and (pp > 1 or vp == 1)
        and pp * vp <= layers
        and gpus // pp % ep == 0
        and (ep == 1 or name.startswith("deepseek"))
    ]
    names = ("tp", "cp", "pp", "vp", "dp", "mbs", "sharding", "recompute_layers", "ep")
    columns = dict(zip(names, np.array(rows).T, strict=True))
    return Plans.from_columns({**columns, "schedule": np.where(columns["vp"] > 1, 2, 1)})


def price(case: Case, share: slice) -> float:
    """Prices a share of the table; seconds of the processor."""
    keep_freed_memory()  # as the command line does
    name, gpu, gpus = case
    model, cluster, plans = load_model(name), cluster_of(gpu, gpus), table(name, gpus).take(share)
    full, workload = FullModel.of(), Workload(seq=8192, gbs=2048)
    full.price(model, cluster, workload, plans.take(slice(0, 100)))
    begin = time.process_time()
    full.price(model, cluster, workload, plans)
    return time.process_time() - begin


def decide(case: Case) -> tuple[int, int, float]:
    """Searches the full space: valid plans, how many of them were priced, seconds of the processor."""
    name, gpu, gpus = case
    model, cluster, workload = load_model(name), cluster_of(gpu, gpus), Workload(seq=8192, gbs=2048)
    begin = time.process_time()
    counts = search(model, cluster, workload, space=Space.of("full", model), advise=False).counts
    took = time.process_time() - begin
    return counts.candidates - sum(counts.removed.values()), counts.priced, took


def scalar_rate() -> float:
    """Plans a second of the textbook model as a plain loop."""
    run, count = scalar.Run(64, 8192, 512), 8000
    begin = time.process_time()
    for _ in range(count // 4):
        for tp, pp, dp in ((4, 2, 8), (8, 2, 4), (4, 4, 4), (8, 1, 8)):
            scalar.price(scalar.LLAMA_70B, run, tp, 1, pp, dp)
    return count / (time.process_time() - begin)


def main() -> None:
    """Prints the table."""
    keep_freed_memory()
    loop = statistics.median(scalar_rate() for _ in range(ROUNDS))
    print(f"scalar handbook loop: {loop:,.0f} plans/s")
    cores = os.cpu_count() or 1
    for case in CASES:
        n = len(table(case[0], case[2]))
        one = n / statistics.median(price(case, slice(None)) for _ in range(ROUNDS))
        shares = [slice(i * n // cores, (i + 1) * n // cores) for i in range(cores)]
        with ProcessPoolExecutor(cores) as pool:
            slowest = [max(pool.map(price, [case] * cores, shares)) for _ in range(ROUNDS)]
        all_cores = n / statistics.median(slowest)
        print(f"{case[0]} on {case[2]:,} GPUs")
        print(
            f"  priced:  {n:,} plans, {one:,.0f} plans/s on one core, {all_cores:,.0f} on {cores}:"
            f" {all_cores / loop:.1f} times the scalar loop"
        )
        runs = [decide(case) for _ in range(ROUNDS)]
        valid, priced, took = sorted(runs, key=lambda run: run[2])[ROUNDS // 2]
        print(
            f"  decided: {valid:,} plans ({priced:,} of them priced), {valid / took:,.0f} plans/s on one"
            f" core: {valid / took / loop:,.0f} times the scalar loop"
        )


if __name__ == "__main__":
    main()
