"""GPUs by name, and clusters made of them from a few flags.

Each preset is a TOML file in ``data/gpus``: quantities as people write them, and under ``[sources]``
where each comes from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meshplan.cluster.cluster import MAX_GPUS, Cluster, Tier, check_gpus, is_count, reach
from meshplan.cluster.gpu import PRECISIONS, Gpu
from meshplan.errors import InputError, UnknownNameError, nearest, shown
from meshplan.units import parse_bandwidth, parse_bytes, parse_flops, parse_power

_DATA = Path(__file__).parent / "data" / "gpus"

# Hop latency of a ring in NCCL's own predictor, Simple protocol (NVIDIA/nccl, src/graph/tuning.cc).
NVLINK_LATENCY_S = 3.4e-6
PCIE_LATENCY_S = 5.7e-6
NETWORK_LATENCY_S = 14e-6

_QUANTITIES: dict[str, tuple[str, Callable[..., float]]] = {
    "hbm": ("hbm_bytes", parse_bytes),
    "usable_hbm": ("usable_hbm_bytes", parse_bytes),
    "hbm_bandwidth": ("hbm_bandwidth", parse_bandwidth),
    "scaleup_bandwidth": ("scaleup_bandwidth", parse_bandwidth),
    "scaleup_peer_bandwidth": ("scaleup_peer_bandwidth", parse_bandwidth),
    "nic_bandwidth": ("nic_bandwidth", parse_bandwidth),
    "host_bandwidth": ("host_bandwidth", parse_bandwidth),
    "power": ("watts", parse_power),
}
_COUNTS = ("scaleup_domain", "gpus_per_host", "sms")
_TEXTS = ("title", "scaleup")
_TABLES = ("peak_flops", "sources")
GPU_KEYS = ("like", "profile", *_TEXTS, "aliases", *_QUANTITIES, *_COUNTS, *_TABLES)
_OPTIONAL = ("like", "profile", *_TEXTS, "aliases", "usable_hbm", "scaleup_peer_bandwidth", "sources")


def gpu_names() -> tuple[str, ...]:
    """Names of all GPU presets, sorted."""
    return tuple(sorted(file.stem for file in _DATA.glob("*.toml")))


def load_gpu(name: str) -> Gpu:
    """The preset of this name or alias, whatever its case and punctuation, with or without the maker.

    Raises ``UnknownNameError`` with the nearest names.
    """
    return _load(_canonical(name))


def gpu_of_table(table: Mapping[str, Any], *, name: str, where: str) -> Gpu:
    """A GPU from a table of ``GPU_KEYS``, quantities as text with units.

    ``like`` names a preset to start from; without it only the optional keys may be left out
    (``usable_hbm`` is then 98 % of ``hbm``, the usual share). ``profile`` names a profile file (TOML, as
    ``meshplan calibrate`` writes it) whose curves are this GPU's own. ``where`` is the place for messages.
    Raises ``InputError``.
    """
    for key in table:
        if key not in GPU_KEYS:
            raise InputError(f"{where}: unknown key {shown(key)}{did_you_mean(str(key), GPU_KEYS)}")
    base = _fields(load_gpu(_text(table["like"], f"{where}.like"))) if "like" in table else {}
    given = _read(table, where)
    fields = base | given
    missing = [key for key in GPU_KEYS if key not in _OPTIONAL and _field(key) not in fields]
    if missing:
        raise InputError(
            f"{where}: {missing[0]} is missing; give it, or start from a preset with 'like: h100-sxm'"
        )
    if base:
        fields["like"] = base["like"] or load_gpu(table["like"]).name
        fields["peak_flops"] = {**base["peak_flops"], **given.get("peak_flops", {})}
        own = {key: where for key in given if key in base["sources"]}
        fields["sources"] = {**base["sources"], **own, **given.get("sources", {})}
        if "hbm" in table and "usable_hbm" not in table:
            del fields["usable_hbm_bytes"]
    if "usable_hbm_bytes" not in fields:
        fields["usable_hbm_bytes"] = 0.98 * fields["hbm_bytes"]
        fields["sources"] = {**fields.get("sources", {}), "usable_hbm_bytes": "assumed: 98 % of hbm"}
    fields.setdefault("title", name)
    if "profile" in table:
        fields["like"] = _text(table["profile"], f"{where}.profile")
        if not fields["like"].endswith(".toml"):
            raise InputError(f"{where}.profile must be a TOML file, not {shown(fields['like'])}")
    return Gpu(**{**fields, "name": name})


def cluster_of(
    gpu_name: str,
    gpus: int,
    *,
    gpus_per_node: int | None = None,
    nic: float | str | None = None,
    memory_fraction: float | None = None,
) -> Cluster:
    """A cluster from flags: the preset's scale-up domain, and above it one network that reaches all GPUs.

    ``gpus_per_node`` replaces the preset's domain; ``nic`` its network bandwidth per GPU and direction
    (bytes/s, or text with a unit). Where a domain is larger than a host (NVL72), each domain gets as
    many whole hosts as divide the GPUs evenly: 512 GPUs are 8 racks with 64 of 72 in use. Latencies
    are NCCL's. Raises ``InputError`` for counts that do not fit, ``UnknownNameError`` for the name.
    """
    gpu = load_gpu(gpu_name)
    check_gpus(gpus)
    if gpus_per_node is not None:
        check_node(gpus_per_node)
    node = gpus_per_node or domain_in_use(gpu, gpus)
    bandwidth = gpu.nic_bandwidth if nic is None else nic
    if isinstance(bandwidth, str):
        bandwidth = parse_bandwidth(bandwidth, what="nic")
        if not bandwidth:
            raise InputError(f"nic must be above 0 like '50 GB/s' (--nic), not {shown(nic)}")
    tiers = default_tiers(gpu, node, bandwidth)
    return Cluster(
        gpu=gpu,
        gpus=gpus,
        tiers=reach(tiers, gpus),
        memory_fraction=memory_fraction,
        name=f"{gpus} × {gpu.name}",
        described=tiers,
    )


def default_tiers(gpu: Gpu, node: int, nic: float) -> tuple[Tier, ...]:
    """The scale-up domain of ``node`` GPUs and a network of ``nic`` bytes/s over any number of them."""
    latency = PCIE_LATENCY_S if gpu.scaleup.startswith("PCIe") else NVLINK_LATENCY_S
    inner = Tier(name=gpu.scaleup, span=node, bandwidth=gpu.scaleup_bandwidth, latency_s=latency)
    network = Tier(name="network", span=max(MAX_GPUS, node + 1), bandwidth=nic, latency_s=NETWORK_LATENCY_S)
    return inner, network


def check_node(gpus_per_node: object) -> None:
    """Raise ``InputError`` unless the count of GPUs in a node is a sensible whole number."""
    try:
        check_gpus(gpus_per_node)
    except InputError as error:
        raise InputError(f"gpus_per_node{str(error).removeprefix('gpus')}") from None


def did_you_mean(key: str, known: tuple[str, ...]) -> str:
    """The end of a message about an unknown key: the nearest known ones, or all of them."""
    found = nearest(key, known, 2)
    return (
        "; did you mean " + " or ".join(f"'{k}'" for k in found) + "?"
        if found
        else "; known: " + ", ".join(known)
    )


def domain_in_use(gpu: Gpu, gpus: int) -> int:
    """GPUs of a scale-up domain in use when ``gpus`` are spread over such domains evenly."""
    if gpus <= gpu.scaleup_domain:
        return gpu.scaleup_domain
    host = gpu.gpus_per_host
    fits = (n for n in range(gpu.scaleup_domain // host * host, 0, -host) if gpus % n == 0)
    return next(fits, host)


@cache
def _load(name: str) -> Gpu:
    table = tomllib.loads((_DATA / f"{name}.toml").read_text(encoding="utf-8"))
    return gpu_of_table(table, name=name, where=f"gpus/{name}.toml")


def _canonical(name: str) -> str:
    wanted = _plain(name)
    names = gpu_names()
    known = {_plain(n): n for n in names}
    if wanted in known:
        return known[wanted]
    aliases: dict[str, list[str]] = {}
    for candidate in names:
        # The second line of every preset holds its aliases: reading just that keeps a lookup fast.
        line = (_DATA / f"{candidate}.toml").read_text(encoding="utf-8").split("\n", 2)[1]
        aliases[candidate] = tomllib.loads(line)["aliases"]
        if wanted in map(_plain, aliases[candidate]):
            return candidate
    words = _words(name)
    for candidate, own in aliases.items():
        if words and words in map(_words, (candidate, *own)):
            return candidate
    known_as = (*names, *(alias for own in aliases.values() for alias in own))
    raise UnknownNameError("GPU", name, known_as, hint="'meshplan gpus' lists the known ones")


_MAKERS = ("nvidia", "amd", "intel", "huawei", "aws", "tesla", "geforce", "instinct")
_SAYS_NOTHING = {*_MAKERS, "gpu", "tensor", "core", "hgx", "dgx", "accelerator", "edition"}


def _plain(name: str) -> str:
    text = "".join(ch for ch in name[:200].lower() if ch.isalnum())
    for maker in _MAKERS:
        text = text.removeprefix(maker)
    return text


def _words(name: str) -> frozenset[str]:
    """The words of a name that tell parts apart, in whatever order: A100-80GB-SXM4 is A100 SXM 80 GB."""
    text = re.sub(r"(\d+)[\s_-]?gi?b?\b", r"\1gb", name[:200].lower())
    words = re.findall(r"[a-z0-9.]+", re.sub(r"\bsxm\d\b", "sxm", text))
    return frozenset(words) - _SAYS_NOTHING


def _field(key: str) -> str:
    return _QUANTITIES[key][0] if key in _QUANTITIES else key


def _fields(gpu: Gpu) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in Gpu.__dataclass_fields__ if name not in ("name", "aliases")}


def _read(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{where}.{key}"
        if key in _QUANTITIES:
            field, reader = _QUANTITIES[key]
            fields[field] = reader(value, what=place)
        elif key in _COUNTS:
            if not is_count(value):
                raise InputError(f"{place} must be a whole number of at least 1, not {shown(value)}")
            fields[key] = value
        elif key in _TEXTS:
            fields[key] = _text(value, place)
        elif key == "aliases":
            fields[key] = tuple(_text(alias, place) for alias in value)
        elif key in _TABLES and not isinstance(value, Mapping):
            raise InputError(f"{place} must be a table, not {shown(value)}")
        elif key == "peak_flops":
            fields[key] = {
                _precision(p, place): parse_flops(v, what=f"{place}.{p}") for p, v in value.items()
            }
        elif key == "sources":
            fields[key] = {_field(name): _text(text, f"{place}.{name}") for name, text in value.items()}
    return fields


def _precision(precision: object, place: str) -> str:
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise InputError(f"{place}: unknown precision {shown(precision)}; known: {known}")
    return str(precision)


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{place} must be text, not {shown(value)}")
    return value
