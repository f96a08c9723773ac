"""The line in every written file that says what question it answers, so that ``read`` finds it again.

Frameworks have no place for the GPU or a model's name; the plan itself is always read from the
framework's own settings, never from this line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import meshplan
from meshplan.export.found import Found
from meshplan.export.launch import Job
from meshplan.export.quoting import comment
from meshplan.units import parse_bandwidth

_MARK = "meshplan-job:"
KEYS = (
    "model", "gpu", "gpus", "gpus-per-node", "nic", "seq", "gbs", "precision", "order", "moe-imbalance",
    "stack",
)  # fmt: skip
_LINE = re.compile(rf"^\s*(?:#|//|\"_)?\s*{_MARK}(?P<rest>.*)$", re.MULTILINE)


def job_facts(job: Job) -> dict[str, str]:
    """The question in words that ``meshplan`` takes as flags."""
    cluster, workload = job.setting.cluster, job.setting.workload
    facts = {
        "model": job.asked_model or job.model.name,
        "gpu": cluster.gpu.name,
        "gpus": str(cluster.gpus),
        "gpus-per-node": str(cluster.gpus_per_node),
        "seq": str(workload.seq),
        "gbs": str(workload.gbs),
        "precision": workload.precision,
        "order": "-".join(job.order),
    }
    if workload.moe_imbalance is not None:  # no framework has a place for it
        facts["moe-imbalance"] = _number(workload.moe_imbalance)
    if job.stack is not None:
        facts["stack"] = job.stack
    outer = next((tier for tier in cluster.tiers[1:]), None)
    if outer is not None:
        facts["nic"] = _rate(outer.bandwidth)
    return facts


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _rate(bandwidth: float) -> str:
    """A bandwidth that reads back to the same number."""
    short = f"{bandwidth / 1e9:g} GB/s"
    return short if parse_bandwidth(short) == bandwidth else f"{bandwidth!r} B/s"


def header(job: Job, title: str) -> str:
    """Comment lines for the top of a file: what it is, and the question."""
    words = " ".join(f"{key}={shlex.quote(value)}" for key, value in job_facts(job).items())
    made = f"{title}, written by meshplan {meshplan.__version__}"
    return f"# {comment(made)}\n# {_MARK} {comment(words)}\n"


def read_facts(text: str) -> Mapping[str, str]:
    """What a file's header says; nothing where there is none or it is damaged."""
    found = _LINE.search(text)
    if found is None:
        return {}
    try:
        words = shlex.split(found["rest"])
    except ValueError:
        return {}
    pairs = (word.partition("=") for word in words)
    return {key: value for key, sep, value in pairs if sep and key in KEYS}


def take_facts(found: Found, facts: Mapping[str, str]) -> None:
    """Fill what the file's own settings leave open from the line that meshplan wrote into it."""
    found.model_name = facts.get("model") or found.model_name
    found.gpu = found.gpu or facts.get("gpu")
    found.nic = found.nic or facts.get("nic")
    found.stack = found.stack or facts.get("stack")
    if "precision" in facts:
        found.precision = found.precision or facts["precision"]
    if re.fullmatch(r"[0-9.]{1,20}", facts.get("moe-imbalance", "")):
        found.moe_imbalance = found.moe_imbalance or float(facts["moe-imbalance"])
    for name, key in (("gpus", "gpus"), ("gpus_per_node", "gpus-per-node"), ("seq", "seq"), ("gbs", "gbs")):
        text = facts.get(key, "")
        if getattr(found, name) is None and text.isdecimal():
            setattr(found, name, int(text))
