"""A report from a saved answer: what ``plan --json``, ``estimate --json`` or ``report --json`` printed.

A saved ranking does not hold all that a report shows. Where its question can be asked again and gives the
same numbers, the report is complete; where not, it shows what is saved and says what is missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

import meshplan
from meshplan.cluster.cluster import Cluster, Tier
from meshplan.cluster.files import cluster_of_table
from meshplan.cluster.presets import load_gpu
from meshplan.cost.costs import CostModel
from meshplan.cost.models import cost_model_named
from meshplan.errors import InputError, MeshplanError, shown
from meshplan.files import read_text
from meshplan.model.counts import model_parameters
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.plans import Plans
from meshplan.report.asked_sections import KEYS
from meshplan.report.gather import SCHEMA_VERSION, TOP, report_data
from meshplan.report.plan_key import plan_key
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import workload_of
from meshplan.report.saved import is_ranking, order_of_data, plan_of_data, space_of_data
from meshplan.report.studies import Told
from meshplan.search.fidelity import MOST_SURE, SURE
from meshplan.search.ranking import Ranking
from meshplan.search.search import search

PIPED = "/dev/stdin"
"""The name of standard input."""
MOST_BYTES = 32 << 20
NOT_ALL = "Only what the file holds is shown: {why}."


def read_saved(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file, or in what is piped in (``PIPED``). Raises ``InputError``."""
    where = "standard input" if path == PIPED else f"saved answer {shown(path, 200)}"
    text = _piped() if path == PIPED else read_text(path, limit_bytes=MOST_BYTES, what="saved answer")
    if not text.strip():
        raise InputError(f"{where} is empty")
    try:
        data = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {str(error)[:120].lower()}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} must hold a JSON object, not {type(data).__name__}")
    return data


def _piped() -> str:
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InputError(
            f"standard input is larger than {MOST_BYTES >> 20} MiB, too large for a saved answer"
        )
    return data.decode("utf-8", "replace")


def report_of_saved(saved: Mapping[str, Any], *, told: Told = lambda what: None) -> dict[str, Any]:
    """The data of the report on a saved answer. Raises ``InputError`` for what is no answer of meshplan."""
    version = saved.get("schema_version")
    if version is None:
        raise InputError("the saved answer is none of what plan, estimate and report print with --json")
    if version != SCHEMA_VERSION:
        raise InputError(
            f"the saved answer has schema_version {shown(version)}; {SCHEMA_VERSION} can be read"
        )
    if saved.get("kind") == "report":
        return dict(saved)
    asked = {name: saved[name] for name in KEYS if name in saved}
    if is_ranking(saved):
        return _of_ranking(saved, told) | asked
    if isinstance(saved.get("plan"), Mapping) and isinstance(saved.get("stages"), list):
        return report_of_estimate(saved) | asked
    if isinstance(saved.get("phases"), list):
        raise InputError(
            "a job of phases has no single report; plan one of its phases by its own --seq and --gbs"
            " (`meshplan plan MODEL … --json`) and make the report of that"
        )
    raise InputError("the saved answer is none of what plan, estimate and report print with --json")


def _of_ranking(saved: Mapping[str, Any], told: Told) -> dict[str, Any]:
    told("report: the question asked again")
    try:
        again, cost_model = _asked_again(saved)
    except MeshplanError as error:
        return _as_saved(saved, f"the question cannot be asked again ({error})")
    if not _same(saved, again):
        why = "asked again, the question gives other numbers (another version of meshplan made the file)"
        return _as_saved(saved, why)
    flags = ("--pareto",) if saved.get("pareto_only") else ()
    stack, top = saved.get("asked", {}).get("stack"), max(len(saved["plans"]), 1)
    return report_data(again, cost_model=cost_model, top=top, stack=stack, flags=flags, told=told)


def _asked_again(saved: Mapping[str, Any]) -> tuple[Ranking, CostModel]:
    """The ranking once more, and what priced it. Files of earlier versions do not say what was ``asked``:
    their whole space is."""
    asked = saved.get("asked") or {
        "model": saved["model"]["name"],
        "cluster": None,
        "space": {"order": saved["order"]},
        "size": saved.get("space", "plain"),
        "framework": saved.get("framework", "any"),
        "stack": saved.get("stack"),
    }
    model, plans = _model(asked["model"], saved["model"]), saved["plans"]
    stack = asked["stack"]
    cost_model = cost_model_named(saved["cost_model"], framework=asked["framework"], stack=stack)
    again = search(
        model, _cluster(asked["cluster"], saved["cluster"]), workload_of(saved["workload"]),
        space=space_of_data(asked, model), cost_model=cost_model, advise=not plans,
        fidelity=saved.get("fidelity", {}).get("kind", "estimate"),
        sure=min(max(len(plans), SURE), MOST_SURE),
        objective=saved.get("objective", "step"), band=float(saved.get("tie_band", 0.0)),
    )  # fmt: skip
    return again.take(np.flatnonzero(again.pareto)) if saved.get("pareto_only") else again, cost_model


def _model(word: str, about: Mapping[str, Any]) -> Model:
    """The model by what was typed, its name, or where it came from; one with as many parameters."""
    for name in (word, about["name"]):
        try:
            model = load_model(name)
            break
        except MeshplanError:
            continue
    else:
        model = load_model(about["source"])
    if model_parameters(model).total != about["parameters"]:
        raise InputError(f"{about['name']} has other sizes here")
    return model


def _cluster(asked: Mapping[str, Any] | None, saved: Mapping[str, Any]) -> Cluster:
    if asked is not None:
        return replace(cluster_of_table(asked, where="saved answer: cluster"), name=saved["name"])
    tiers = tuple(
        Tier(name=t["name"], span=t["span"], bandwidth=t["bandwidth_bytes_per_s"], latency_s=t["latency_s"])
        for t in saved["tiers"]
    )
    gpu = load_gpu(saved["gpu"])
    return Cluster(gpu=gpu, gpus=saved["gpus"], tiers=tiers, name=saved["name"], described=tiers)


def _same(saved: Mapping[str, Any], again: Ranking) -> bool:
    """Whether the search found again what is saved: the counts and the saved plans' step times."""
    counts, plans = saved["counts"], saved["plans"]
    if (counts["candidates"], counts["feasible"]) != (again.counts.candidates, again.counts.feasible):
        return False
    return len(plans) <= len(again) and all(
        isclose(row["step_s"], step, rel_tol=1e-9)
        for row, step in zip(plans, again.costs.step_s, strict=False)
    )


def _as_saved(saved: Mapping[str, Any], why: str) -> dict[str, Any]:
    order = order_of_data(saved["order"])
    rows = [_named(row, order) for row in saved["plans"]]
    miss = saved["closest_miss"]
    ranking = {**saved, "plans": rows[:TOP], "closest_miss": None if miss is None else _named(miss, order)}
    first = None
    if rows:
        stage = {
            "ranks": 1, "first_rank": 0, "layers": 0, "layers_of_stages": [], "embedding": False,
            "head": False,
            "memory_bytes": rows[0]["memory_bytes"], "memory": rows[0]["memory"],
        }  # fmt: skip
        first = {
            **rows[0], "stages": [stage], "stages_complete": False, "provenance": [],
            "assumptions": saved["assumptions"], "left_out": [],
        }  # fmt: skip
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "report",
        "version": meshplan.__version__,
        "notes": [NOT_ALL.format(why=why)],
        "ranking": ranking,
        "points": {
            "step_s": [row["step_s"] for row in rows],
            "memory_bytes": [row["memory_bytes"] for row in rows],
            "more": saved["counts"]["feasible"] - len(rows),
        },
        "band": None,
        "chosen": first,
        "scaling": None,
        "sensitivities": None,
        "command": None,
        "job": None,
    }


def report_of_estimate(saved: Mapping[str, Any]) -> dict[str, Any]:
    """One plan in full, without a ranking."""
    plan = {
        **_named(saved["plan"], order_of_data(saved["plan"]["order"])),
        **{name: saved[name] for name in ("step_s", "mfu", "hfu", "tokens_per_s_per_gpu", "memory_bytes")},
        **{name: saved[name] for name in ("time", "hidden", "memory", "stages", "provenance", "assumptions")},
        "left_out": saved["left_out"],
        "rank": 1,
        "relative": 1.0,
        "stages_complete": True,
    }
    fits = bool(saved["fits"])
    counts = {"candidates": 1, "removed": {}, "memory": int(not fits), "feasible": int(fits), "shown": 1}
    ranking = {
        **{name: saved[name] for name in ("schema_version", "model", "cluster", "workload")},
        "cost_model": f"full, stack {saved['stack']['name']}",
        "order": saved["plan"]["order"],
        "counts": counts,
        "plans": [plan],
        "closest_miss": None,
        "nothing": None,
        "assumptions": saved["assumptions"],
    }
    empty = {"step_s": [], "memory_bytes": [], "more": 0}
    missing = dict.fromkeys(("band", "scaling", "sensitivities", "command", "job"))
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "report",
        "version": meshplan.__version__,
        "ranking": ranking,
        "points": empty,
        "chosen": plan,
        **missing,
    }


def _named(row: Mapping[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    plan = plan_of_data(row)
    name = plan_names(Plans.of(plan, order=order), order)[0]
    return {**row, "name": " ".join(name.split()), "key": plan_key(plan)}


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
