"""The textbook model as a plain loop over plans: the yardstick for speed, and a second opinion in tests.

Written from the equations, plan by plan, with nothing shared with ``meshplan.cost.handbook``.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

NVLINK, NETWORK, NODE = 450e9, 50e9, 8
PEAK, EFFICIENCY = 989e12, 0.6
USABLE = 80e9 * 0.9


class Llm(NamedTuple):
    parameters: float
    layers: int
    hidden: int
    kv_width: int
    vocab: int


class Run(NamedTuple):
    gpus: int
    seq: int
    gbs: int


LLAMA_70B = Llm(70.6e9, 80, 8192, 1024, 128256)
LLAMA_8B = Llm(8.03e9, 32, 4096, 1024, 128256)


def price(llm: Llm, run: Run, tp: int, cp: int, pp: int, dp: int, mbs: int = 1) -> dict[str, float] | None:
    """One plan's step, MFU, memory and parts; ``None`` when it does not fit with every layer recomputed."""
    micro_batches = run.gbs // (dp * mbs)
    seq = run.seq / cp
    stage_layers = llm.layers // pp
    own = llm.parameters / (tp * pp)
    states = 4 * own + 12 * own / (dp * cp)
    unit = seq * mbs * llm.hidden / tp
    alive = min(pp, micro_batches)
    for recomputed in range(stage_layers + 1):
        activations = (34 * (stage_layers - recomputed) + 2 * recomputed) * unit * alive
        if states + activations <= USABLE:
            break
    else:
        return None

    def bandwidth(span: int) -> float:
        return NVLINK if span <= NODE else NETWORK

    tp_bandwidth, cp_bandwidth = bandwidth(tp), bandwidth(tp * cp)
    dp_bandwidth, pp_bandwidth = bandwidth(tp * cp * dp), bandwidth(tp * cp * dp * pp)
    layer = 6 * (llm.parameters - 2 * llm.vocab * llm.hidden) / llm.layers + 6 * run.seq * llm.hidden
    head = 6 * llm.vocab * llm.hidden
    second = seq * mbs / tp / (PEAK * EFFICIENCY)
    average = (llm.layers * layer + head) / pp * second
    recompute = recomputed * layer / 3 * second
    slowest = stage_layers * layer * second + recompute + head * second
    message = seq * mbs * llm.hidden * 2
    tp_time = stage_layers * 4 * 2 * (tp - 1) / tp * message / tp_bandwidth
    ring = stage_layers * 3 * (cp - 1) * (2 * seq * mbs * llm.kv_width * 2) / cp_bandwidth
    cp_time = max(ring - stage_layers * 6 * run.seq * llm.hidden * second, 0.0)
    pp_time = 2 * message / tp / pp_bandwidth * 0.5 if pp > 1 else 0.0
    group = dp * cp
    dp_time = 2 * (group - 1) / group * 2 * own / dp_bandwidth * 0.2
    one = slowest + tp_time + cp_time + pp_time
    step = micro_batches * one + (pp - 1) * one + dp_time
    flops = (llm.layers * layer + head) * run.gbs * run.seq
    return {
        "step_s": step,
        "mfu": flops / (step * run.gpus * PEAK),
        "memory_bytes": states + activations,
        "recomputed": recomputed,
        "compute": micro_batches * average,
        "recompute": micro_batches * recompute,
        "imbalance": micro_batches * (slowest - recompute - average),
        "tp": micro_batches * tp_time,
        "cp": micro_batches * cp_time,
        "pp": micro_batches * pp_time,
        "bubble": (pp - 1) * one,
        "dp": dp_time,
    }


def search(llm: Llm, run: Run) -> list[tuple[tuple[int, int, int, int], dict[str, float]]]:
    """Every fitting plan of the textbook's space, best MFU first."""
    found = []
    for tp, cp, pp in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16)):
        if tp > NODE or run.gpus % (tp * cp * pp) or llm.layers % pp:
            continue
        if cp > 1 and run.seq / cp < 4096:
            continue
        dp = run.gpus // (tp * cp * pp)
        if run.gbs % dp:
            continue
        priced = price(llm, run, tp, cp, pp, dp)
        if priced is not None:
            found.append(((tp, cp, pp, dp), priced))
    return sorted(found, key=lambda plan: -plan[1]["mfu"])
