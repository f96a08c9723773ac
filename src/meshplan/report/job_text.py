"""A question as what people can keep and run: a job file, and a command line where flags can say it all."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshplan.cluster.cluster import Cluster, reach
from meshplan.cluster.gpu import Gpu
from meshplan.cluster.presets import cluster_of, load_gpu
from meshplan.cost.models import stack_of
from meshplan.errors import InputError
from meshplan.model.model import Model
from meshplan.model.presets import preset, preset_name
from meshplan.plan.kinds import Recompute
from meshplan.plan.plans import ALL_LAYERS, AUTO_LAYERS
from meshplan.plan.space import DEGREES, Space
from meshplan.plan.workload import Workload
from meshplan.search.objective import Objective
from meshplan.units import format_bandwidth, format_bytes_as_sold, parse_bandwidth, parse_bytes

CONFIG = "./config.json"
JOB = "job.yaml"
ON_HUB = " on the Hugging Face hub"
"""What the source of a model from there ends in."""
_PLAIN = re.compile(
    r"(?!(?:null|true|false|yes|no|on|off|y|n)$)[A-Za-z][A-Za-z0-9._/-]*|\d[\d.e+-]* [A-Za-z][A-Za-z/]*"
)
"""Text that YAML reads as itself without quotes: names, quantities."""


def model_word(model: Model, fallback: str = CONFIG) -> str:
    """What to type for a model: the preset's name if it is that preset, else ``fallback``."""
    name = preset_name(model.name)
    return name if name is not None and preset(name) == model else fallback


def source_word(model: Model) -> str:
    """What to type for a model where it was read: the preset's name, its file, or its name on the hub."""
    return model_word(model, model.source.removesuffix(ON_HUB) or CONFIG)


def job_text(table: Mapping[str, Any]) -> str:
    """The job file (YAML) of ``job_table``'s table, without what it need not say."""
    usual = {"framework": "any", "objective": "step", "stack": stack_of(table["framework"]), "space": {}}
    told = {key: value for key, value in table.items() if value is not None and value != usual.get(key)}
    return "\n".join(_yaml_lines(told)) + "\n"


def job_table(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    space: Space | None = None,
    cost_model: str | None = None,
    *,
    word: str = "",
    stack: str | None = None,
    objective: Objective = "step",
) -> dict[str, Any]:
    """A job file that asks the same, as a table with every key it has for that, which JSON can hold.

    ``word`` is what it shall call the model (``model_word``), ``stack`` what it shall call the software that
    the cost model assumes, where not that of the framework.
    """
    space = space or Space()
    return {
        "model": word or model_word(model),
        "cluster": _cluster_table(cluster),
        "workload": {"seq": workload.seq, "gbs": workload.gbs, **_said(workload)},
        "space": _space(space, model),
        "size": space.size,
        "framework": space.framework,
        "objective": objective,
        "cost_model": cost_model,
        "stack": stack,
    }


def plan_command(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    space: Space | None = None,
    cost_model: str | None = None,
    *,
    word: str = "",
    stack: str | None = None,
    objective: Objective = "step",
    more: Sequence[str] = (),
) -> str:
    """The command line that asks the same; ``meshplan plan job.yaml`` where flags cannot say the cluster.
    ``stack`` and ``objective`` as in ``job_text``; ``more``: flags that a job file has no key for."""
    flags = _cluster_flags(cluster)
    space = space or Space()
    if flags is None:
        return shlex.join(["meshplan", "plan", JOB, *more])
    words = [
        "meshplan",
        "plan",
        word or model_word(model),
        *flags,
        "--seq",
        str(workload.seq),
        "--gbs",
        str(workload.gbs),
    ]
    for name, value in _said(workload).items():
        words += [] if value == "bf16" else [f"--{name.replace('_', '-')}", str(value)]
    for name, value in _space(space, model).items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    for name, value in _names(space, cost_model, stack, objective).items():
        words += ["--space" if name == "size" else f"--{name.replace('_', '-')}", value]
    return shlex.join([*words, *more])


def _names(space: Space, cost_model: str | None, stack: str | None, objective: Objective) -> dict[str, str]:
    """Key of a job file → word, of what is not as usual; the size of the space always."""
    found = {"size": space.size, "framework": space.framework, "objective": objective}
    if cost_model:
        found["cost_model"] = cost_model
    if stack is not None:
        found["stack"] = stack
    usual = {"framework": "any", "objective": "step", "stack": stack_of(space.framework)}
    return {name: word for name, word in found.items() if word != usual.get(name)}


def _said(workload: Workload) -> dict[str, Any]:
    """Precision, and what else is not as usual."""
    more: dict[str, Any] = {"offload": workload.offload if workload.offload != "none" else None}
    more["offload_fraction"] = workload.offload_fraction if workload.offload_fraction != 1 else None
    more |= {"moe_imbalance": workload.moe_imbalance, "capacity_factor": workload.capacity_factor}
    return {"precision": workload.precision} | {name: v for name, v in more.items() if v is not None}


def _cluster_words(cluster: Cluster) -> dict[str, Any] | None:
    """What flags must say to get this cluster of a preset: nothing, a node size, a network rate; ``None``
    where they cannot."""
    try:
        plain = cluster_of(cluster.gpu.name, cluster.gpus)
        told: dict[str, Any] = {}
        if cluster.gpus_per_node != plain.gpus_per_node:
            told["gpus_per_node"] = cluster.gpus_per_node
        if len(cluster.tiers) > 1 and cluster.tiers[1].bandwidth != plain.gpu.nic_bandwidth:
            told["nic"] = _rate(cluster.tiers[1].bandwidth)
        same = cluster_of(cluster.gpu.name, cluster.gpus, **told)
    except InputError:
        return None
    if (same.gpu, same.tiers, same.memory_fraction) != (cluster.gpu, cluster.tiers, cluster.memory_fraction):
        return None
    return told


def _cluster_flags(cluster: Cluster) -> list[str] | None:
    told = _cluster_words(cluster)
    if told is None:
        return None
    words = ["--gpu", cluster.gpu.name, "--gpus", str(cluster.gpus)]
    for name, value in told.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _cluster_table(cluster: Cluster) -> dict[str, Any]:
    told = _cluster_words(cluster)
    if told is not None:
        return {"gpu": cluster.gpu.name, "gpus": cluster.gpus, **told}
    found: dict[str, Any] = {"name": cluster.name} if cluster.name else {}
    found |= {"gpu": _gpu(cluster.gpu), "gpus": cluster.gpus}
    if cluster.memory_fraction is not None:
        found["memory_fraction"] = cluster.memory_fraction
    described = cluster.described
    stands = bool(described) and reach(described, cluster.gpus) == cluster.tiers
    found["tiers"] = [
        {
            "name": tier.name,
            "span": tier.span,
            "bandwidth": _rate(tier.bandwidth),
            "latency": f"{tier.latency_s!r} s",
        }
        for tier in (described if stands else cluster.tiers)
    ]
    return found


def _gpu(gpu: Gpu) -> str | dict[str, Any]:
    """A preset by name, or what differs from it; a GPU that is no preset is written out whole."""
    base = _preset(gpu.name) or _preset(gpu.like)
    if base == gpu:
        return gpu.name
    found: dict[str, Any] = {}
    if gpu.like.endswith(".toml"):
        found["profile"] = str(Path(gpu.like).absolute())
    elif base is not None:
        found["like"] = base.name
    if base is None or base.title != gpu.title:
        found["title"] = gpu.title
    found |= {"hbm": _size(gpu.hbm_bytes), "usable_hbm": _size(gpu.usable_hbm_bytes)}
    for name in (
        "hbm_bandwidth", "scaleup_bandwidth", "scaleup_peer_bandwidth", "nic_bandwidth", "host_bandwidth",
    ):  # fmt: skip
        value = getattr(gpu, name)
        if value is not None and (base is None or getattr(base, name) != value):
            found[name] = _rate(value)
    for name in ("scaleup_domain", "gpus_per_host", "sms"):
        if base is None or getattr(base, name) != getattr(gpu, name):
            found[name] = getattr(gpu, name)
    if base is None or base.peak_flops != gpu.peak_flops:
        found["peak_flops"] = {name: f"{value!r} FLOP/s" for name, value in gpu.peak_flops.items()}
    if base is None or base.watts != gpu.watts:
        found["power"] = f"{gpu.watts!r} W"
    if base is None or base.scaleup != gpu.scaleup:
        found["scaleup"] = gpu.scaleup
    return found


def _preset(name: str) -> Gpu | None:
    if not name or name.endswith(".toml"):
        return None
    try:
        return load_gpu(name)
    except InputError:
        return None


def _space(space: Space, model: Model) -> dict[str, Any]:
    """Dimensions that are not as the size and the framework have them, by the names of a job file; lists of
    numbers or labels."""
    usual = Space.of(space.size, model, space.framework)
    found: dict[str, Any] = {}
    for name in (*DEGREES, "replicas"):
        values = getattr(space, name)
        if values is not None and values != getattr(usual, name):
            found[name] = list(values)
    for name in ("schedule", "sharding", "cp_kind"):
        if getattr(space, name) != getattr(usual, name):
            found[name] = [kind.label for kind in getattr(space, name)]
    if space.layout != usual.layout:
        found["layout"] = list(space.layout)
    if space.sp != usual.sp:
        found["sp"] = ["on" if sp else "off" for sp in space.sp]
    if space.recompute != usual.recompute:
        found["recompute"] = [_recompute(layers, modules) for layers, modules in space.recompute]
    if space.order != usual.order:
        found["order"] = "-".join(space.order)
    return found


def _recompute(layers: int, modules: Recompute) -> str:
    words = {AUTO_LAYERS: ["auto"], ALL_LAYERS: ["full"], 0: []}.get(layers, [str(layers)])
    words = words + [m.name.lower().replace("_", "-") for m in Recompute if m & modules and m.name]
    return "+".join(words) or "none"


def _rate(value: float) -> str:
    """A bandwidth that reads back to the same number, short where that is enough."""
    short = format_bandwidth(value)
    return short if parse_bandwidth(short) == value else f"{value!r} B/s"


def _size(value: float) -> str:
    short = format_bytes_as_sold(value)
    return short if parse_bytes(short) == value else f"{value!r} B"


def _yaml_lines(table: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A table in YAML, nested tables and lists of tables on lines of their own."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml_lines(value, f"{indent}  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{indent}{key}:"
            for item in value:
                first, *rest = _yaml_lines(item, f"{indent}  ")
                yield f"{indent}- {first.strip()}"
                yield from rest
        else:
            yield f"{indent}{key}: {_yaml(value)}"


def _yaml(value: Any) -> str:
    """A value in YAML's flow style, which JSON is; short words and quantities as they are."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
