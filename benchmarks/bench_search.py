"""The search as GPUs grow: candidates and priced plans a second, beside a plain loop over the same plans.

    python benchmarks/bench_search.py

Llama-3.1-405B on 64 to 131,072 H100, small and full space, with eight sequences for each 64 GPUs: every
candidate is accounted for (removed by a rule, ruled out by a bound, or priced). The loop is the textbook
model in plain Python, at the rate measured in the same run; what it would take for all valid plans is said.
Then the three whole commands that have a time to keep.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np
import scalar_handbook as scalar

from meshplan.cluster.presets import cluster_of
from meshplan.model.load import load_model
from meshplan.plan.space import Size, Space
from meshplan.plan.workload import Workload
from meshplan.search.heap import keep_freed_memory
from meshplan.search.search import search

GPUS = (64, 512, 4096, 16384, 65536, 131072)
COMMANDS = (
    ("llama-3.1-70b --gpu h100-sxm --gpus 64 --seq 8192 --gbs 512", 1.0),
    ("llama-3.1-405b --gpu h100-sxm --gpus 16384 --seq 8192 --gbs 2048", 3.0),
    ("deepseek-v3 --gpu h800 --gpus 2048 --seq 4096 --gbs 15360", 3.0),
)
MEMORY = 1 << 30


def loop_rate() -> float:
    """Plans a second of the textbook model as a plain loop."""
    run = scalar.Run(4096, 8192, 2048)
    plans = [
        (tp, cp, pp, 4096 // (tp * cp * pp), 1) for tp in (1, 2, 4, 8) for cp in (1, 2) for pp in (1, 2, 4)
    ]
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < 0.5:
        for plan in plans:
            scalar.price(scalar.LLAMA_70B, run, *plan)
        count += len(plans)
    return count / (time.perf_counter() - start)


def grow(size: Size, rate: float) -> None:
    """A line for each number of GPUs."""
    model = load_model("llama-3.1-405b")
    print(f"\n{model.name}, {size} space")
    print(f"{'GPUs':>8} {'candidates':>16} {'valid':>14} {'priced':>9} {'s':>6}", end=" ")
    print(f"{'candidates/s':>15} {'priced/s':>9} {'a loop would take':>18}")
    for gpus in GPUS:
        cluster, workload = cluster_of("h100-sxm", gpus), Workload(seq=8192, gbs=max(gpus // 8, 64))
        start = time.perf_counter()
        counts = search(model, cluster, workload, space=Space.of(size, model), advise=False).counts
        took = time.perf_counter() - start
        valid = counts.candidates - sum(counts.removed.values())
        print(f"{gpus:>8,} {counts.candidates:>16,} {valid:>14,} {counts.priced:>9,} {took:>6.2f}", end=" ")
        print(f"{counts.candidates / took:>15,.0f} {counts.priced / took:>9,.0f} {valid / rate:>16,.0f} s")


def commands() -> bool:
    """The whole commands, each in a process of its own, median of three; whether all keep their time."""
    kept = True
    print()
    for line, limit in COMMANDS:
        words = [sys.executable, "-m", "meshplan", "plan", *line.split(), "--space", "full"]
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run(words, check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        took = float(np.median(times))
        kept &= took <= limit
        print(f"plan {line} --space full: {took:.2f} s of {limit:.0f}")
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(f"most memory of these: {most / 2**20:,.0f} MiB of {MEMORY >> 20:,}")
    return kept and most <= MEMORY


def main() -> int:
    """Prints the bench; 1 if a command takes longer or more memory than it may."""
    keep_freed_memory()
    rate = loop_rate()
    print(f"a plain loop of the textbook model prices {rate:,.0f} plans/s")
    for size in ("small", "full"):
        grow(size, rate)
    return 0 if commands() else 1


if __name__ == "__main__":
    sys.exit(main())
