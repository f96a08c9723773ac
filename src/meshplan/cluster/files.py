"""Cluster files: YAML 1.2 or TOML, checked strictly, read into a ``Cluster``.

A complete example (``examples/cluster.yaml``)::

    name: our-h100
    gpu: h100-sxm              # a preset, or a table: {like: h100-sxm, hbm: 96 GiB}
    gpus: 1024
    memory_fraction: 0.9       # share of the usable memory to fill; default: the cost model's own
    tiers:                     # from inside out; left out: the preset's domain and one network
      - name: NVLink
        span: 8                # GPUs that reach each other
        bandwidth: 450 GB/s    # per GPU and direction
        latency: 3.4 us        # a message, one hop; left out: NCCL's own figure
      - name: pod
        span: 512
        bandwidth: 400 Gb/s
      - name: spine            # the last span may be left out: all GPUs
        bandwidth: 400 Gb/s
        oversubscription: 4    # a quarter of the bandwidth is left when all talk at once
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.cluster.cluster import Cluster, Tier, check_gpus, reach
from meshplan.cluster.presets import (
    NETWORK_LATENCY_S,
    NVLINK_LATENCY_S,
    PCIE_LATENCY_S,
    check_node,
    default_tiers,
    did_you_mean,
    domain_in_use,
    gpu_of_table,
    load_gpu,
)
from meshplan.errors import InputError, shown
from meshplan.files import read_text
from meshplan.units import parse_bandwidth, parse_seconds

if TYPE_CHECKING:
    from pydantic import ValidationError

LIMIT_BYTES = 1 << 20
CLUSTER_KEYS = ("name", "gpu", "gpus", "gpus_per_node", "nic", "memory_fraction", "tiers")
TIER_KEYS = ("name", "span", "bandwidth", "latency", "oversubscription")
DEEPEST = 50
"""Levels of lists and tables in a YAML file."""
_KINDS = {
    "int_type": "a whole number", "float_type": "a number", "string_type": "text", "list_type": "a list",
    "model_type": "a table", "dict_type": "a table", "bool_type": "true or false",
}  # fmt: skip


def load_cluster(path: str | Path, *, gpus: int | None = None) -> Cluster:
    """The cluster that a YAML or TOML file describes; ``gpus`` wins over the file's count.

    Raises ``InputError`` with one sentence: what, where in the file, and what would work.
    """
    what = "cluster file"
    if not str(path).strip():
        raise InputError("the name of the cluster file is empty; name a YAML or TOML file after --cluster")
    text = read_text(path, limit_bytes=LIMIT_BYTES, what=what)
    where = f"{what} '{path}'"
    table = parse_table(text, toml=Path(path).suffix == ".toml", where=where)
    own = table.get("gpu")
    if isinstance(own, dict) and isinstance(own.get("profile"), str):
        table["gpu"] = {**own, "profile": str(Path(path).parent / own["profile"])}
    return cluster_of_table({"name": Path(path).stem, **table}, where=where, gpus=gpus)


def cluster_of_table(table: Mapping[str, Any], *, where: str, gpus: int | None = None) -> Cluster:
    """The cluster that an already parsed table describes (see the module's example); as ``load_cluster``."""
    from pydantic import BaseModel, ConfigDict, ValidationError  # slow to import

    class TierTable(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)
        name: str | None = None
        span: int | None = None
        bandwidth: Any
        latency: Any = None
        oversubscription: float = 1.0

    class ClusterTable(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)
        name: str = ""
        gpu: Any
        gpus: int
        gpus_per_node: int | None = None
        nic: Any = None
        memory_fraction: float | None = None
        tiers: list[TierTable] | None = None

    try:
        read = ClusterTable.model_validate({**table, **({} if gpus is None else {"gpus": gpus})})
    except ValidationError as error:
        raise InputError(_sentence(error, where)) from None
    return _build(read, where)


def parse_table(text: str, *, toml: bool, where: str) -> dict[str, Any]:
    """A YAML 1.2 (or TOML) text as a table. Raises ``InputError`` when it is malformed, is no table, repeats
    a key, or uses YAML aliases (which can blow a small file up without end)."""
    found = _toml(text, where) if toml else _yaml(text, where)
    if found is None or not text.strip():
        raise InputError(f"{where} is empty")
    if not isinstance(found, dict):
        raise InputError(f"{where} must hold a table of keys and values, not {shown(found)}")
    for key in found:
        if not isinstance(key, str):
            raise InputError(f"{where}: keys must be text, not {shown(key)}")
    return found


def _build(read: Any, where: str) -> Cluster:
    try:
        check_gpus(read.gpus)
        gpu = read.gpu
        if isinstance(gpu, str):
            gpu = load_gpu(gpu)
        elif isinstance(gpu, Mapping):
            gpu = gpu_of_table(gpu, name=str(gpu.get("title", read.name or "own")), where="gpu")
        else:
            raise InputError(f"gpu must be the name of a preset or a table, not {shown(gpu)}")
        nic = gpu.nic_bandwidth if read.nic is None else parse_bandwidth(read.nic, what="nic")
        if read.tiers is None:
            node = read.gpus_per_node
            if node is not None:
                check_node(node)
            described = default_tiers(gpu, node or domain_in_use(gpu, read.gpus), nic)
        else:
            for key in ("gpus_per_node", "nic"):
                if getattr(read, key) is not None:
                    raise InputError(
                        f"give either tiers or {key}, not both; the first tier's span is the node"
                    )
            described = _tiers(read.tiers, gpu.scaleup, read.gpus)
        # Where the described tiers do not reach, the cluster says so.
        tiers = described if described[-1].span < read.gpus else reach(described, read.gpus)
        return Cluster(
            gpu=gpu,
            gpus=read.gpus,
            tiers=tiers,
            memory_fraction=read.memory_fraction,
            name=read.name,
            described=described,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _tiers(tables: list[Any], scaleup: str, gpus: int) -> tuple[Tier, ...]:
    if not tables:
        raise InputError("tiers is empty; give at least one tier, or leave it out for the usual ones")
    found: list[Tier] = []
    for i, table in enumerate(tables):
        place = f"tiers[{i}]"
        last = i + 1 == len(tables)
        if table.span is None and not last:
            raise InputError(f"{place}.span is missing; only the last tier may leave it out")
        inner = PCIE_LATENCY_S if scaleup.startswith("PCIe") else NVLINK_LATENCY_S
        latency = inner if i == 0 else NETWORK_LATENCY_S
        if table.latency is not None:
            latency = parse_seconds(table.latency, what=f"{place}.latency")
        if not 1 <= table.oversubscription < float("inf"):
            raise InputError(f"{place}.oversubscription must be 1 or more, not {table.oversubscription:g}")
        bandwidth = parse_bandwidth(table.bandwidth, what=f"{place}.bandwidth") / table.oversubscription
        span = gpus if table.span is None else table.span
        name = table.name or (scaleup if i == 0 else f"network {i}" if len(tables) > 2 else "network")
        found.append(Tier(name=name, span=span, bandwidth=bandwidth, latency_s=latency))
    return tuple(found)


def _sentence(error: ValidationError, where: str) -> str:
    """The first finding as a sentence; unknown keys first, since the others often follow from them."""
    findings = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    first = findings[0]
    steps = first["loc"]
    place = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")
    if first["type"] == "extra_forbidden":
        known = TIER_KEYS if steps[0] == "tiers" else CLUSTER_KEYS
        text = f"unknown key {shown(place)}{did_you_mean(str(steps[-1]), known)}"
    elif first["type"] == "missing":
        text = f"{place} is missing"
    else:
        kind, given = _KINDS.get(first["type"], first["msg"].lower()), first["input"]
        quoted = isinstance(given, str) and first["type"] in ("int_type", "float_type") and _is_number(given)
        text = f"{place} must be {kind}, not {'the text ' if quoted else ''}{shown(given)}"
        text += "; write it without quotes" if quoted else ""
    more = len(findings) - 1
    return f"{where}: {text}" + (f" (and {more} more)" if more else "")


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdecimal()


def _toml(text: str, where: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is not TOML: {_first_line(error)}") from None


def _yaml(text: str, where: str) -> object:
    from ruamel.yaml import YAML  # slow to import
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.events import (
        AliasEvent,
        MappingEndEvent,
        MappingStartEvent,
        SequenceEndEvent,
        SequenceStartEvent,
    )

    depth = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            depth += isinstance(event, SequenceStartEvent | MappingStartEvent)
            depth -= isinstance(event, SequenceEndEvent | MappingEndEvent)
            if depth > DEEPEST:  # the reader takes quadratic time for more
                raise InputError(
                    f"{where} is nested more than {DEEPEST} deep at line {event.start_mark.line + 1}"
                )
            if isinstance(event, AliasEvent):
                raise InputError(
                    f"{where}: YAML aliases (*{event.anchor}) are not supported; write the value out"
                )
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or _first_line(error)
        line = f" at line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{where} is not YAML: {problem}{line}") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shown(lines[0], 160).strip("'\"")
