"""Job files: one YAML or TOML file with model, cluster, workload and space.

A complete example::

    model: meta-llama/Llama-3.1-70B   # a preset, a path or a hub name, as on the command line
    cluster:                          # or the path of a cluster file, from this file's folder
      gpu: h100-sxm
      gpus: 64
    workload:
      seq: 8192
      gbs: 512
      precision: bf16                 # may be left out
      offload: optimizer              # may be left out: none
      offload_fraction: 0.5           # may be left out: 1, all of it
      moe_imbalance: 1.2              # may be left out: 1
    space:                            # may be left out: every sensible value
      tp: [2, 4, 8]
      pp: 4
      sharding: zero1
      recompute: [auto, none]
      order: tp-cp-ep-dp-pp
    size: full                        # of the space, may be left out: plain, small or full
    framework: megatron               # may be left out: any
    objective: memory                 # may be left out: step
    cost_model: full                  # may be left out
    stack: megatron-core-2025         # may be left out: that of the framework
    phases:                           # may be left out: a run of several, each with its own plan
      - {name: warm-up, tokens: 252M, seq: 4096, gbs: 1024}
      - {name: main, tokens: 2.87T, seq: 8192, gbs: 1024, plan: "tp8,pp16"}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from meshplan.cli.options import (
    Framework,
    read_count,
    read_degree,
    read_dims,
    read_factor,
    read_kind,
    read_list,
    read_recompute,
    read_switch,
    read_word,
)
from meshplan.cluster.files import parse_table
from meshplan.errors import InputError, nearest, shown
from meshplan.files import read_text
from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.space import DEGREES, SIZES, Layout
from meshplan.plan.workload import OFFLOADS
from meshplan.search.objective import OBJECTIVES

SUFFIXES = (".yaml", ".yml", ".toml")
KEYS = (
    "model", "cluster", "workload", "space", "size", "framework", "objective", "cost_model", "stack",
    "phases",
)  # fmt: skip
CLUSTER_KEYS = ("gpu", "gpus", "gpus_per_node", "nic", "tiers", "memory_fraction")
NAMES: Mapping[str, Callable[[str, str], str]] = {
    "model": lambda text, what: text,
    "cost_model": lambda text, what: text,
    "stack": lambda text, what: text,
    "size": read_word(SIZES),
    "framework": read_word(get_args(Framework)),
    "objective": read_word(OBJECTIVES),
}
"""Keys with one word as their value."""
WORKLOAD: Mapping[str, Callable[[str, str], Any]] = {
    "seq": read_count,
    "gbs": read_count,
    "precision": lambda text, what: text,
    "offload": read_word(OFFLOADS),
    "offload_fraction": read_factor,
    "moe_imbalance": read_factor,
    "capacity_factor": read_factor,
}
SPACE: Mapping[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(DEGREES, read_degree),
    "sp": read_switch,
    "cp_kind": read_kind(CpKind),
    "replicas": read_degree,
    "schedule": read_kind(Schedule),
    "sharding": read_kind(Sharding),
    "recompute": read_recompute,
    "layout": read_word(get_args(Layout)),
    "order": read_dims,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a job file says; parts that it leaves out are empty."""

    path: str
    model: str | None = None
    cluster: Mapping[str, Any] | str | None = None
    """An inline table, or the path of a cluster file, already relative to the job file's folder."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Any] = field(default_factory=dict)
    """Field of ``Space`` → value."""
    size: Any = None
    """Of the space, as ``--space``."""
    framework: Any = None
    objective: Any = None
    cost_model: str | None = None
    stack: str | None = None
    """Software that the full cost model assumes."""
    phases: tuple[Mapping[str, Any], ...] = ()
    """As they stand in the file; ``cli.phases`` reads them."""

    @property
    def where(self) -> str:
        """The file, for messages."""
        return f"job file '{self.path}'"


def is_job_file(text: str) -> bool:
    """Whether a model argument can only be meant as a job file."""
    return text.lower().endswith(SUFFIXES)


def is_phased(text: str) -> bool:
    """Whether this is a job file with phases."""
    return is_job_file(text) and bool(load_job(text).phases)


def load_job(path: str) -> Job:
    """The job that a file describes; raises ``InputError`` with file, place and nearest known key."""
    where = f"job file '{path}'"
    table = parse_table(
        read_text(path, limit_bytes=1 << 20, what="job file"), toml=_is_toml(path), where=where
    )
    _check_keys(table, KEYS, where)
    model, cluster = table.get("model"), table.get("cluster")
    for key in NAMES:
        if table.get(key) is not None and not isinstance(table[key], str):
            raise InputError(f"{where}: {key} must be a name, not {shown(table[key])}")
    names = {
        key: read(table[key], f"{where}: {key}") for key, read in NAMES.items() if table.get(key) is not None
    }
    if cluster is not None and not isinstance(cluster, str | Mapping):
        raise InputError(
            f"{where}: cluster must be a table or the path of a cluster file, not {shown(cluster)}"
        )
    phases = table.get("phases") or []
    if not isinstance(phases, list) or not all(isinstance(phase, Mapping) for phase in phases):
        raise InputError(f"{where}: phases must be a list of tables, one for each phase")
    folder = Path(path).parent
    if isinstance(model, str) and model.startswith("."):
        model = str(folder / model)
    if names.get("stack", "").endswith(".toml"):
        names["stack"] = str(folder / names["stack"])
    return Job(
        **{**names, "model": model},
        path=path,
        cluster=str(folder / cluster) if isinstance(cluster, str) else cluster,
        workload=_section(table, "workload", WORKLOAD, where),
        space=_section(table, "space", SPACE, where),
        phases=tuple(phases),
    )


def _section(table: Mapping[str, Any], name: str, readers: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = table.get(name) or {}
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: {name} must be a table, not {shown(found)}")
    _check_keys(found, tuple(readers), f"{where}: {name}")
    lists = name == "space"
    return {
        key: _value(value, f"{where}: {name}.{key}", readers[key], many=lists and key != "order")
        for key, value in found.items()
    }


def _value(value: Any, what: str, read: Callable[[str, str], Any], *, many: bool) -> Any:
    """A YAML value through the reader of the flag of the same name."""
    items = value if many and isinstance(value, list) else [value]
    if not items:
        raise InputError(f"{what} is an empty list")
    for item in items:
        plain = (str, int, float) if read is read_factor else (str, int)
        if isinstance(item, bool) or not isinstance(item, plain):
            raise InputError(f"{what} must be a number or a name, not {shown(item)}")
    if not many:
        return read(str(value), what)
    return tuple(dict.fromkeys(v for item in items for v in read_list(str(item), what, read)))


def _check_keys(table: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            close = nearest(str(key), known, 2)
            own = _home(str(key), known)
            ask = own or (f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}")
            raise InputError(f"{where}: unknown key {shown(key)}; {ask}")


def _home(key: str, known: tuple[str, ...]) -> str:
    """Where a key stands in a job file, if it is one that stands elsewhere."""
    if key in KEYS:
        return f"{key} stands at the top of the file, beside model, cluster, workload and space"
    homes = {"workload": tuple(WORKLOAD), "space": tuple(SPACE), "cluster": CLUSTER_KEYS}
    found = [section for section, keys in homes.items() if key in keys and keys != known]
    return f"{key} stands under {found[0]}" if found else ""


def _is_toml(path: str) -> bool:
    return path.lower().endswith(".toml")
