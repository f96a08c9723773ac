"""The efficiency profile of one GPU: how long its kernels and collectives take, as data with evidence.

A profile is a TOML file that people can read and diff. Every curve says where it comes from
(``provenance``, ``source``, ``date``) and how far it is from its measurements (``fit_error``); shares
are of the datasheet in ``data/gpus``. ``meshplan.cluster.curves`` and ``meshplan.cluster.collectives``
turn a profile into seconds.

A file may be ``like`` another GPU: it takes over that one's curves as *assumed*, under whatever the
file itself knows better.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from meshplan.cluster.gpu import Gpu
from meshplan.cluster.presets import load_gpu
from meshplan.cluster.profile_data import (
    ATTENTION_KERNELS,
    OPS,
    PROVENANCES,
    AcrossCurve,
    AttentionCurve,
    CollectiveCurve,
    Evidence,
    Factor,
    FitError,
    GemmCurve,
    GroupedCurve,
    MemoryCurve,
    NetworkCurve,
    UnfusedAttention,
)
from meshplan.cluster.profile_numbers import check_keys, number_list, table_of, text_of, value_of
from meshplan.errors import InputError, UnknownNameError, shown
from meshplan.files import read_text

FACTORS = ("sustained", "dgrad_factor", "wgrad_factor")
"""The scalars every profile has."""

_DATA = Path(__file__).parent / "data" / "profiles"
_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Everything the curves know of one GPU."""

    name: str
    gpu: Gpu
    """The datasheet that shares are shares of."""
    gemm: Mapping[str, GemmCurve]
    """By precision: ``bf16``, and of ``fp8``, ``fp8_block``, ``nvfp4`` what the GPU has."""
    grouped: Mapping[str, GroupedCurve]
    attention: Mapping[str, AttentionCurve]
    """Fused kernels by name, of ``ATTENTION_KERNELS``."""
    best_attention: str
    """The kernel that a current training stack uses."""
    unfused_attention: UnfusedAttention
    memory: MemoryCurve
    collectives: Mapping[str, CollectiveCurve]
    network: NetworkCurve
    factors: Mapping[str, Factor]
    across: Mapping[str, AcrossCurve] = field(default_factory=dict)
    """Collectives between nodes as measured, where they were; other groups follow ``network``."""
    like: str = ""
    """The GPU whose curves stand in; ``""`` where this GPU's own were measured."""

    @property
    def sustained(self) -> float:
        """Share of the short-burst rate of 16-bit matrix multiplication that the power limit leaves
        under steady load. ``curves.gemm_seconds`` applies it already (``clock="sustained"``)."""
        return self.factors["sustained"].value

    @property
    def dgrad_factor(self) -> float:
        """Seconds of an input gradient over those of a forward product of the same three sizes."""
        return self.factors["dgrad_factor"].value

    @property
    def wgrad_factor(self) -> float:
        """Seconds of a weight gradient, accumulated in fp32, over those of a forward product of the
        same three sizes."""
        return self.factors["wgrad_factor"].value

    def on(self, gpu: Gpu) -> Profile:
        """The same curves on a GPU with another datasheet (a part with less memory bandwidth, say)."""
        return replace(self, gpu=gpu)


def profile_names() -> tuple[str, ...]:
    """GPUs with a profile shipped with meshplan, sorted."""
    return tuple(sorted(file.stem for file in _DATA.glob("*.toml")))


@lru_cache(maxsize=64)
def load_profile(name: str) -> Profile:
    """The shipped profile of the GPU called ``name`` (aliases as for ``load_gpu``), or the file ``….toml``.

    Raises ``UnknownNameError`` for an unknown GPU, or one without profile, and ``InputError`` for a file
    that cannot be read or holds impossible numbers.
    """
    if name.endswith(".toml"):
        text = read_text(name, limit_bytes=_LIMIT_BYTES, what="profile")
        return profile_from(_parsed(f"profile '{name}'", text), where=f"profile '{name}'")
    gpu = load_gpu(name).name
    return profile_from(_shipped(gpu), where=f"profile {gpu}.toml")


def profile_of(gpu: Gpu) -> Profile:
    """The curves for a GPU, as shares of its own datasheet: those shipped for it, or for the preset that it
    was made from (``like``). Raises ``InputError`` where there are none."""
    name = gpu.like or gpu.name
    try:
        found = load_profile(name)
    except UnknownNameError:
        raise InputError(
            f"no curves are known for GPU {shown(gpu.name)}; name the preset it resembles (like: h100-sxm),"
            " or price with the handbook cost model"
        ) from None
    return found if found.gpu == gpu else found.on(gpu)


def _shipped(name: str) -> dict[str, Any]:
    file = _DATA / f"{name}.toml"
    if not file.is_file():
        raise UnknownNameError("GPU profile", name, profile_names())
    return _parsed(f"profile {name}.toml", file.read_text(encoding="utf-8"))


def _parsed(where: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {error}") from None


def profile_from(table: Mapping[str, Any], *, where: str) -> Profile:
    """A profile from its TOML table; ``where`` names the file in messages.

    Raises ``InputError`` naming the key for anything unknown, missing, of the wrong type, not finite,
    negative, a share above 1, or a collective faster than its link.
    """
    data = dict(table)
    data.pop("why", None)
    like = data.pop("like", "")
    gpu = load_gpu(text_of(data.get("name"), f"{where}: name"))
    if like:
        data = _inherited(_shipped(text_of(like, f"{where}: like")), data, gpu, where)
    keys = {f.name for f in fields(Profile)} - {"like", "gpu"}
    check_keys(data, keys, keys - {"across"}, where)
    profile = Profile(
        name=gpu.name,
        gpu=gpu,
        gemm=_each(GemmCurve, data["gemm"], f"{where}: gemm"),
        grouped=_each(GroupedCurve, data["grouped"], f"{where}: grouped"),
        attention=_each(AttentionCurve, data["attention"], f"{where}: attention"),
        best_attention=text_of(data["best_attention"], f"{where}: best_attention"),
        unfused_attention=_curve(UnfusedAttention, data["unfused_attention"], f"{where}: unfused_attention"),
        memory=_curve(MemoryCurve, data["memory"], f"{where}: memory"),
        collectives=_each(CollectiveCurve, data["collectives"], f"{where}: collectives"),
        network=_curve(NetworkCurve, data["network"], f"{where}: network"),
        factors=_each(Factor, data["factors"], f"{where}: factors"),
        across=_each(AcrossCurve, data.get("across", {}), f"{where}: across"),
        like=like,
    )
    _check_whole(profile, where)
    return profile


def peak_flops(gpu: Gpu, curve: str) -> float | None:
    """Dense FLOP/s that the curve called ``curve`` is a share of; ``None`` where the GPU lacks it.

    The curve ``bf16`` stands for every 16-bit float: fp16 on a GPU without bf16.
    """
    if curve == "bf16":
        return gpu.peak_flops.get("bf16", gpu.peak_flops.get("fp16"))
    return gpu.peak_flops.get({"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}.get(curve, curve))


# ── standing in for another GPU ──────────────────────────────────────────────────────────────────


def _inherited(parent: Mapping[str, Any], child: Mapping[str, Any], gpu: Gpu, where: str) -> dict[str, Any]:
    """The parent's curves under the child's own numbers; what is only inherited becomes *assumed*."""
    if parent.get("like"):
        raise InputError(f"{where}: like names {parent['name']}, which itself is like {parent['like']}")
    base = _assumed({k: v for k, v in parent.items() if k not in ("name", "why")}, parent["name"])
    for group in ("gemm", "grouped"):
        base[group] = {k: v for k, v in base[group].items() if peak_flops(gpu, k) is not None}
    return _overlaid(base, child)


def _assumed(node: Any, like: str) -> Any:
    if not isinstance(node, Mapping):
        return node
    new = {k: _assumed(v, like) for k, v in node.items() if k != "fit_error"}
    if "provenance" in new:
        new["provenance"] = "assumed"
        new["source"] = f"taken over from {like} as shares of peak and bandwidth ({node['source']})"
    return new


def _overlaid(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = _overlaid(out[key], value) if both else value
    return out


# ── reading and checking ─────────────────────────────────────────────────────────────────────────

T = TypeVar("T")


def _each(cls: type[T], value: Any, where: str) -> dict[str, T]:
    return {name: _curve(cls, entry, f"{where}.{name}") for name, entry in table_of(value, where).items()}


def _curve(cls: type[T], value: Any, where: str) -> T:
    """A curve from its table: its own fields, and beside them those of its evidence."""
    table = table_of(value, where)
    own = {f.name: f for f in fields(cls) if f.name != "evidence"}  # type: ignore[arg-type]
    proof = {f.name for f in fields(Evidence)}
    needed = {n for n, f in own.items() if f.default is MISSING} | {"provenance", "source", "date"}
    check_keys(table, set(own) | proof, needed, where)
    values: dict[str, Any] = {n: value_of(table[n], f, f"{where}.{n}") for n, f in own.items() if n in table}
    values["evidence"] = _evidence(table, where)
    return cls(**values)


def _evidence(table: Mapping[str, Any], where: str) -> Evidence:
    provenance = text_of(table["provenance"], f"{where}.provenance")
    if provenance not in PROVENANCES:
        raise InputError(
            f"{where}.provenance must be one of {', '.join(PROVENANCES)}, not {shown(provenance)}"
        )
    return Evidence(
        provenance=provenance,
        source=text_of(table["source"], f"{where}.source"),
        date=text_of(table["date"], f"{where}.date"),
        fit_error=_fit_error(table["fit_error"], f"{where}.fit_error") if "fit_error" in table else None,
        note=str(table.get("note", "")),
    )


def _fit_error(value: Any, where: str) -> FitError:
    table = table_of(value, where)
    own = {f.name: f for f in fields(FitError)}
    check_keys(table, set(own), {"median", "mean", "points"}, where)
    plain = {
        n: value_of(table[n], f, f"{where}.{n}") for n, f in own.items() if n in table and n != "by_class"
    }
    classes = {}
    for name, row in table_of(table.get("by_class", {}), f"{where}.by_class").items():
        numbers = number_list(row, f"{where}.by_class.{name}", own["mean"].metadata)
        if len(numbers) != 3:
            raise InputError(f"{where}.by_class.{name} must be [median, mean, points]")
        classes[name] = (numbers[0], numbers[1], int(numbers[2]))
    return FitError(**plain, by_class=classes)


def _check_whole(profile: Profile, where: str) -> None:
    """What no single field shows: curves without a peak, lists of unequal length, impossible speeds."""
    for name, curve in profile.gemm.items():
        if peak_flops(profile.gpu, name) is None:
            raise InputError(f"{where}: gemm.{name} is for a precision that {profile.gpu.name} does not have")
        if curve.efficiency * curve.library > 1:
            product = curve.efficiency * curve.library
            raise InputError(f"{where}: gemm.{name}.efficiency × library is {product:.3g}, above 1")
    for group, needed in (
        ("gemm", "bf16"),
        ("grouped", "bf16"),
        ("attention", profile.best_attention),
        *(("collectives", op) for op in OPS),
        *(("factors", name) for name in FACTORS),
    ):
        if needed not in getattr(profile, group):
            raise InputError(f"{where}: {group}.{needed} is missing")
    throttle = profile.gemm["bf16"].throttle
    if profile.sustained != throttle:
        value = f"{profile.sustained:g}"
        raise InputError(
            f"{where}: factors.sustained.value must be gemm.bf16.throttle, {throttle:g}, not {value}"
        )
    check_keys(profile.attention, set(ATTENTION_KERNELS), set(), f"{where}: attention")
    for name, att in profile.attention.items():
        rising = list(att.head_dims) == sorted(set(att.head_dims))
        if not rising or {len(att.efficiency), len(att.row_overhead)} != {len(att.head_dims)}:
            raise InputError(
                f"{where}: attention.{name} needs rising head_dims and as many of efficiency and row_overhead"
            )
    check_keys(profile.collectives, {*OPS, "p2p"}, set(), f"{where}: collectives")
    for op, times in profile.collectives.items():
        _check_collective(times, op, f"{where}: collectives.{op}")
    check_keys(profile.across, {*OPS, "p2p"}, set(), f"{where}: across")
    for op, wide in profile.across.items():
        _check_across(wide, f"{where}: across.{op}")


def _check_across(curve: AcrossCurve, where: str) -> None:
    rows = (curve.ranks, curve.per_node, curve.seconds)
    if len({len(r) for r in rows}) != 1 or any(len(s) != len(curve.sizes) for s in curve.seconds):
        raise InputError(f"{where} needs a row of seconds for each of ranks and per_node, as long as sizes")
    if len(curve.sizes) < 2 or list(curve.sizes) != sorted(set(curve.sizes)):
        raise InputError(f"{where}.sizes must be two or more, rising")
    for row in curve.seconds:
        if list(row) != sorted(row) or row[-1] <= row[-2]:
            raise InputError(f"{where}.seconds must rise with size")


def _check_collective(curve: CollectiveCurve, op: str, where: str) -> None:
    for name, numbers in (("ranks", curve.ranks), ("sizes", curve.sizes)):
        if list(numbers) != sorted(set(numbers)):
            raise InputError(f"{where}.{name} must rise")
    if len(curve.sizes) < 2 or curve.ranks[0] < 2:
        raise InputError(f"{where} needs two sizes or more, and ranks from 2")
    if len(curve.seconds) != len(curve.ranks) or any(len(row) != len(curve.sizes) for row in curve.seconds):
        raise InputError(
            f"{where}.seconds must hold a list for each of ranks with a number for each of sizes"
        )
    for ranks, row in zip(curve.ranks, curve.seconds, strict=True):
        if list(row) != sorted(row) or row[-1] <= row[-2]:
            raise InputError(f"{where}.seconds for {ranks} ranks must rise with size")
        # In a switch that adds up (NVLS) each GPU still sends its whole buffer once.
        share = 1.0 if op == "all_reduce" else (ranks - 1) / ranks
        for size, seconds in zip(curve.sizes, row, strict=True):
            if share * size / seconds > curve.link_bandwidth:
                raise InputError(
                    f"{where}.seconds: {ranks} ranks move {size:g} bytes at {share * size / seconds:.3g} "
                    f"bytes/s, above the link's {curve.link_bandwidth:.3g}"
                )
