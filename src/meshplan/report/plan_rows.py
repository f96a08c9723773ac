"""A ranking as plain data: what ``--json`` and ``--format csv`` print. SI numbers, no text to parse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs
from meshplan.model.counts import model_parameters
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import Plans
from meshplan.plan.workload import Workload
from meshplan.report.job_text import job_table, source_word

if TYPE_CHECKING:  # estimate shows one plan, and knows of no ranking
    from meshplan.search.ranking import Ranking

SCHEMA_VERSION = 1


def ranking_data(
    ranking: Ranking, top: int | None = None, *, stack: str | None = None, pareto_only: bool = False
) -> dict[str, Any]:
    """The whole answer; ``plans`` holds the first ``top`` (default: all that were kept).

    ``stack``: what was typed for the stack (default: its name); ``pareto_only``: whether only plans of the
    front were kept. ``asked`` is the question as a job file: with ``tie_band``, ``fidelity`` and
    ``pareto_only`` it gives the same answer again.

    Bytes, seconds and FLOP/s throughout. ``relative`` is a plan's step time over the fastest one's, ``tied``
    whether it is as good as that within ``tie_band``, ``complexity`` how many things must work beside data
    parallelism, ``pareto`` whether no other beats it in step time, memory and complexity at once.
    """
    shown = len(ranking) if top is None else min(top, len(ranking))
    miss = ranking.closest_miss
    nothing = ranking.nothing
    tied, complexity, pareto = ranking.tied, ranking.complexity, ranking.pareto
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_data(ranking.model),
        "cluster": cluster_data(ranking.cluster, ranking.costs.memory_limit_bytes),
        "workload": workload_data(ranking.workload),
        "cost_model": ranking.cost_model,
        "stack": ranking.stack,
        "asked": job_table(
            ranking.model,
            ranking.cluster,
            ranking.workload,
            ranking.space,
            ranking.cost_model,
            word=source_word(ranking.model),
            stack=stack or ranking.stack,
            objective=ranking.objective,
        ),
        "pareto_only": pareto_only,
        "order": "-".join(ranking.space.order),
        "counts": {
            "candidates": ranking.counts.candidates,
            "removed": dict(ranking.counts.removed),
            "memory": ranking.counts.memory,
            "feasible": ranking.counts.feasible,
            "skipped": dict(ranking.counts.skipped),
            "shown": shown,
        },
        "space": ranking.space.size,
        "framework": ranking.space.framework,
        "objective": ranking.objective,
        "tie_band": ranking.band,
        "fidelity": fidelity_data(ranking),
        "plans": [
            {
                "rank": i + 1,
                "simulated": ranking.simulated is not None and bool(ranking.simulated.rows[i]),
                "relative": float(ranking.costs.step_s[i] / ranking.costs.step_s.min()),
                "tied": bool(tied[i]),
                "complexity": int(complexity[i]),
                "pareto": bool(pareto[i]),
                **plan_data(ranking.costs, i, ranking.workload, ranking.cluster.gpus),
            }
            for i in range(shown)
        ],
        "closest_miss": None
        if miss is None
        else {
            **plan_data(miss.costs, 0, ranking.workload, ranking.cluster.gpus),
            "excess_bytes": miss.excess_bytes,
        },
        "nothing": None
        if nothing is None
        else {
            "limit": nothing.limit,
            "reason": nothing.reason,
            "smallest_gpus": nothing.smallest_gpus,
            "fewer_gpus": nothing.fewer_gpus,
            "more_gpus": nothing.more_gpus,
            "ways": [
                {
                    "flags": list(way.flags),
                    **plan_data(way.costs, 0, ranking.workload, ranking.cluster.gpus),
                }
                for way in nothing.ways
            ],
        },
        "assumptions": [*ranking.costs.assumptions, *beyond(ranking.model, ranking.workload)],
    }


def beyond(model: Model, workload: Workload) -> list[str]:
    """A note where the sequence is longer than the model was made for."""
    if model.max_seq is None or workload.seq <= model.max_seq:
        return []
    made = f"the {model.max_seq:,} positions that {model.name} was made for"
    return [f"seq {workload.seq:,} is longer than {made}"]


def fidelity_data(ranking: Ranking) -> dict[str, Any]:
    """How the times were found, and how many of the first plans are certain."""
    found = ranking.simulated
    if found is None:
        return {"kind": "estimate"}
    return {
        "kind": "simulate",
        "simulated": found.plans,
        "screened": found.screened,
        "bounded": found.bounded,
        "sure": found.sure,
        "left_open": found.left_open,
        "unfit": found.unfit,
        "margin": found.margin,
        "estimate_error": {"median": found.median_error, "largest": found.largest_error},
    }


def plan_data(costs: Costs, i: int, workload: Workload, gpus: int) -> dict[str, Any]:
    """Row ``i`` of ``costs``."""
    step = float(costs.step_s[i])
    return {
        **layout_data(costs.plans, i, workload),
        "mfu": float(costs.mfu[i]),
        "step_s": step,
        "tokens_per_s_per_gpu": workload.tokens / (step * gpus),
        "memory_bytes": float(costs.memory_bytes[i]),
        "memory": parts_data(costs.memory, i),
        "time": parts_data(costs.time, i),
        "hidden": parts_data(costs.hidden, i),
    }


def layout_data(p: Plans, i: int, workload: Workload) -> dict[str, Any]:
    """Row ``i`` of a table of plans, every choice by the name people type."""
    layout = int(p.layout[i])
    return {
        **{name: int(getattr(p, name)[i]) for name in ("tp", "cp", "pp", "dp", "ep", "etp")},
        "edp": int(p.edp[i]),
        "vp": int(p.vp[i]),
        "mbs": int(p.mbs[i]),
        "micro_batches": workload.gbs // int(p.dp[i] * p.mbs[i]),
        "sp": bool(p.sp[i]),
        "cp_kind": CpKind(int(p.cp_kind[i])).label,
        "schedule": Schedule(int(p.schedule[i])).label,
        "layout": None if layout < 0 else list(p.layouts[layout]),
        "sharding": Sharding(int(p.sharding[i])).label,
        "replicas": int(p.replicas[i]),
        "recomputed_layers": int(p.recompute_layers[i]),
        "recompute_modules": module_names(int(p.recompute_modules[i])),
    }


def module_names(flags: int) -> list[str]:
    """Names people type for a set of recomputed modules."""
    return [m.name.lower().replace("_", "-") for m in Recompute if m & flags and m.name]


def workload_data(workload: Workload) -> dict[str, Any]:
    """The workload as plain data."""
    return {
        "seq": workload.seq,
        "gbs": workload.gbs,
        "tokens": workload.tokens,
        "precision": workload.precision,
        "offload": workload.offload,
        "offload_fraction": workload.offload_fraction,
        "moe_imbalance": workload.moe_imbalance,
        "capacity_factor": workload.capacity_factor,
    }


def workload_words(workload: Workload) -> str:
    """The workload in a line; what is as usual is left out."""
    words = [f"seq {workload.seq:,}", f"gbs {workload.gbs:,}", workload.precision]
    if workload.offload == "optimizer":
        share = "" if workload.offload_fraction == 1 else f"{workload.offload_fraction:.3g} of the "
        words.append(f"{share}optimizer in host memory")
    if workload.moe_imbalance is not None:
        words.append(f"MoE imbalance {workload.moe_imbalance:g}")
    if workload.capacity_factor is not None:
        words.append(f"capacity factor {workload.capacity_factor:g}")
    return " · ".join(words)


def workload_of(data: Mapping[str, Any]) -> Workload:
    """What ``workload_data`` wrote; files of earlier versions know neither offload nor loads of experts."""
    return Workload(
        seq=data["seq"],
        gbs=data["gbs"],
        precision=data["precision"],
        offload=data.get("offload", "none"),
        offload_fraction=data.get("offload_fraction", 1.0),
        moe_imbalance=data.get("moe_imbalance"),
        capacity_factor=data.get("capacity_factor"),
    )


def flat(plan: Mapping[str, Any]) -> dict[str, Any]:
    """``plan_data`` without nesting, for CSV: parts become ``memory.weights``, lists are joined."""
    out: dict[str, Any] = {}
    for key, value in plan.items():
        if isinstance(value, dict):
            out.update({f"{key}.{part}": number for part, number in value.items()})
        elif isinstance(value, list):
            out[key] = "+".join(map(str, value))
        else:
            out[key] = value
    return out


def model_data(model: Model) -> dict[str, Any]:
    """The model as plain data."""
    counts = model_parameters(model)
    return {
        "name": model.name,
        "parameters": int(counts.total),
        "active_parameters": int(counts.active),
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "source": model.source,
    }


def cluster_data(cluster: Cluster, memory_limit_bytes: float) -> dict[str, Any]:
    """The cluster as plain data, with the bytes of one GPU that a plan may fill."""
    return {
        "name": cluster.name,
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "memory_limit_bytes": memory_limit_bytes,
        "tiers": [
            {"name": t.name, "span": t.span, "bandwidth_bytes_per_s": t.bandwidth, "latency_s": t.latency_s}
            for t in cluster.tiers
        ],
    }


def parts_data(parts: Mapping[str, Any], i: int) -> dict[str, float]:
    """Row ``i`` of a breakdown."""
    return {name: float(values[i]) for name, values in parts.items()}
