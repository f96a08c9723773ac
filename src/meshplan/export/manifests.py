"""Launch scripts inside YAML: Kubernetes manifests (JobSet, Job, Kubeflow) and SkyPilot tasks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshplan.cluster.files import parse_table
from meshplan.cluster.presets import load_gpu
from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.launchers import SKYPILOT_NAMES
from meshplan.export.scripts import read_script
from meshplan.export.shell_follow import Sibling

_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
_COUNTS = ("replicas", "parallelism")
MOST_DOCUMENTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A script to be started on ``nodes`` nodes with ``gpus`` GPUs each (0: not said)."""

    script: str
    nodes: int
    gpus: int
    gpu: str | None = None


def is_manifest(text: str) -> bool:
    """Whether a text is a Kubernetes manifest or a SkyPilot task."""
    keys = set(re.findall(r"^([A-Za-z_]+):", text, re.MULTILINE))
    return {"apiVersion", "kind"} <= keys or ("run" in keys and bool(keys & {"num_nodes", "resources"}))


def read_manifest(text: str, sibling: Sibling) -> Found:
    """What the script in a manifest says; raises ``InputError`` where there is none that is known."""
    documents = [part for part in re.split(r"^---[ \t]*(?:#.*)?$", text, flags=re.MULTILINE) if part.strip()]
    if len(documents) > MOST_DOCUMENTS:
        raise InputError(f"it has {len(documents):,} YAML documents; this is no launch file")
    bare = re.compile(r"(\s*#.*\n?)*\s*")
    tables = [parse_table(d, toml=False, where="its YAML") for d in documents if not bare.fullmatch(d)]
    kind = "a SkyPilot task" if any("run" in table for table in tables) else "a Kubernetes manifest"
    files = {
        str(name): value
        for table in tables
        if table.get("kind") == "ConfigMap" and isinstance(table.get("data"), Mapping)
        for name, value in table["data"].items()
        if isinstance(value, str)
    }
    parts = [part for table in tables for part in _parts(table)]
    parts.sort(key=lambda part: -part.gpus)
    failed = InputError(f"it is {kind} without a command to start")
    for part in parts:
        try:
            found = read_script(part.script, lambda name: files.get(name.rpartition("/")[2]) or sibling(name))
        except InputError as error:
            failed = error
            continue
        nodes = part.nodes if len(parts) == 1 else sum(p.nodes for p in parts if p.gpus == part.gpus)
        if part.gpus:
            found.gpus_per_node, found.gpus = part.gpus, part.gpus * nodes
        found.gpu = found.gpu or part.gpu
        found.what = f"{kind} with {found.what}"
        return found
    raise failed


def _parts(table: Mapping[str, Any]) -> Iterator[_Part]:
    if "run" in table:
        yield _sky(table)
        return
    for container, nodes in _containers(table, 1):
        listed = [word for key in ("command", "args") for word in _list(container.get(key))]
        words = [str(word) for word in listed if not isinstance(word, Mapping | list)]
        if not words:
            continue
        known = {
            str(item["name"]): str(item["value"])
            for item in _list(container.get("env"))
            if isinstance(item, Mapping) and "name" in item and "value" in item
        }
        shell = next((i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), None)
        inline = shell is not None and shell <= 2 and len(words) > shell + 1
        script = words[shell + 1] if inline and shell is not None else shlex.join(words)
        for name in known:  # the kubelet's own form of a variable
            script = script.replace(f"$({name})", f"'${{{name}}}'" if not inline else f"${{{name}}}")
        yield _Part(script=_exports(known) + script, nodes=nodes, gpus=_limit(container))


def _containers(value: Any, count: int) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Containers with how often they run."""
    if isinstance(value, list):
        for item in value:
            yield from _containers(item, count)
    if not isinstance(value, Mapping):
        return
    for key in _COUNTS:
        own = value.get(key)
        if isinstance(own, int) and 1 <= own <= 10**6:
            count *= own
    trainer = value.get("trainer")
    if isinstance(trainer, Mapping):
        nodes = trainer.get("numNodes", 1)
        yield trainer, nodes if isinstance(nodes, int) else 1
    for key, item in value.items():
        if key == "containers" and isinstance(item, list):
            yield from ((container, count) for container in item if isinstance(container, Mapping))
        else:
            yield from _containers(item, count)


def _limit(container: Mapping[str, Any]) -> int:
    resources = container.get("resources", container.get("resourcesPerNode"))
    for key in ("limits", "requests"):
        table = resources.get(key) if isinstance(resources, Mapping) else None
        for name in _GPUS:
            count = str(table.get(name, "")) if isinstance(table, Mapping) else ""
            if count.isdecimal() and 1 <= int(count) <= 1024:
                return int(count)
    return 0


def _sky(table: Mapping[str, Any]) -> _Part:
    resources = table.get("resources")
    wanted = resources.get("accelerators") if isinstance(resources, Mapping) else None
    if isinstance(wanted, Mapping) and wanted:
        wanted = ":".join(str(part) for part in next(iter(wanted.items())))
    name, _, count = str(wanted or "").partition(":")
    gpus = int(count) if re.fullmatch(r"[1-9][0-9]{0,3}", count) else int(bool(name))
    nodes = table.get("num_nodes", 1)
    nodes = nodes if isinstance(nodes, int) and 1 <= nodes <= 10**6 else 1
    envs = table.get("envs")
    known = {str(key): str(value) for key, value in envs.items()} if isinstance(envs, Mapping) else {}
    known |= {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NODE_RANK": "0"}
    if gpus:
        known["SKYPILOT_NUM_GPUS_PER_NODE"] = str(gpus)
    return _Part(script=_exports(known) + str(table.get("run")), nodes=nodes, gpus=gpus, gpu=_gpu(name))


def _gpu(name: str) -> str | None:
    """Our name for an accelerator of SkyPilot's; ``None`` for one that is not known."""
    own = next((ours for ours, theirs in SKYPILOT_NAMES.items() if theirs.lower() == name.lower()), name)
    try:
        return load_gpu(own).name if own else None
    except InputError:
        return None


def _exports(known: Mapping[str, str]) -> str:
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in known.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name)
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []
