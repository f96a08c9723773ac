"""Rotary position embeddings: the facts that decide the angles, and the readers of both forms of them.

A rotary embedding turns pair ``i`` of a head's ``d`` rotated features at position ``p`` by
``p · base^(-2i/d)`` (Su et al., 2104.09864). Extensions to longer sequences change the frequencies:
``linear`` and ``dynamic`` divide positions, ``yarn`` (Peng et al., 2309.00071) and ``llama3`` divide the low
frequencies only, ``longrope`` (2402.13753) has a list of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from meshplan.model.fields import MAX_HEADS, MAX_LAYERS, MAX_TOKENS, Fields

KINDS: Final = ("plain", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
_NAMES: Final = {"default": "plain", "mrope": "plain", "su": "longrope"}
"""Other names of the kinds in configurations; multimodal positions are plain ones for text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """The rotary embedding of a model. Fields that a ``kind`` does not use keep their defaults."""

    base: float = 10_000.0
    fraction: float = 1.0
    """Share of a head's features that is rotated."""
    kind: str = "plain"
    factor: float = 1.0
    """How much longer than ``original`` sequences may be."""
    original: int | None = None
    """Longest sequence before the extension."""
    low: float = 1.0
    high: float = 4.0
    """``llama3``: wavelengths above ``original / low`` are divided, those below ``original / high`` kept."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """``yarn``: turns over ``original`` from which a frequency is kept, and up to which it is divided."""
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    """``yarn``: temperatures of attention, ``0.1 · mscale · ln(factor) + 1``, one over the other."""
    truncate: bool = True
    """``yarn``: the range between the betas ends at whole features."""
    local_base: float | None = None
    """Base in sliding layers, where it is another."""
    interleaved: bool = False
    """Pairs are neighbours (GPT-J), not halves of the head."""
    skips: tuple[int, ...] = field(default=())
    """One entry a layer, 1 where it has no rotary embedding; empty: all have one."""

    @property
    def skip_every(self) -> int:
        """``n`` where every n-th layer has no rotary embedding and all others have; else 0."""
        first = self.skips.index(1) + 1 if 1 in self.skips else 0
        regular = first and all(skip == ((i + 1) % first == 0) for i, skip in enumerate(self.skips))
        return first if regular else 0


def rope_of(f: Fields, layers: int, head_dim: int, default: Rope) -> Rope:
    """The rotary embedding that a configuration describes; ``default`` is what its class has.

    Reads ``rope_parameters`` (flat, or a table for each kind of attention), and the older ``rope_theta``,
    ``rope_scaling`` and partial factors beside it. A kind that nobody knows is taken under its own name.
    """
    new = f.table("rope_parameters")
    tables = [
        name for name in ("full_attention", "sliding_attention") if isinstance(new.data.get(name), dict)
    ]
    found = default
    f = _of_layers(f, layers)
    if tables:
        main = new.table(tables[0])
        found = _scaled(main, replace(found, base=_base(main, found.base)))
        found = replace(found, fraction=_fraction(main, head_dim, found.fraction))
        local = _base(new.table(tables[-1]), found.base)
        found = replace(found, local_base=local if local != found.base else None)
    elif new.data:
        found = _scaled(new, replace(found, base=_base(new, found.base), local_base=_local(f, found)))
        found = replace(found, fraction=_fraction(new, head_dim, found.fraction))
    else:
        found = replace(
            found, base=_base(f, found.base), local_base=_local(f, found),
            fraction=_fraction(f, head_dim, found.fraction),
        )  # fmt: skip
        scaling = f.data.get("rope_scaling")
        if isinstance(scaling, dict):
            found = _scaled(f.table("rope_scaling"), found)
            found = replace(found, fraction=_fraction(f.table("rope_scaling"), head_dim, found.fraction))
        elif "rope_scaling" in f.data:
            found = replace(found, kind="plain", factor=1.0, original=None)
    if found.original is None and f.has("original_max_position_embeddings"):
        found = replace(found, original=f.integer("original_max_position_embeddings", high=MAX_TOKENS))
    return replace(found, skips=_skips(f, layers))


def _of_layers(f: Fields, layers: int) -> Fields:
    """The fields with one value where Step-3.5 lists the base or the share of every layer.

    The larger base is that of the full layers; where there are two, the smaller is that of sliding ones.
    """
    data = dict(f.data)
    for name in ("rope_theta", "partial_rotary_factor", "partial_rotary_factors"):
        values = data.get(name)
        if isinstance(values, list) and values and all(isinstance(v, int | float) for v in values):
            data[name.removesuffix("s")] = max(values) if name == "rope_theta" else min(values)
            if name == "rope_theta" and min(values) != max(values):
                data["rope_local_base_freq"] = min(values)
    return Fields(data, f.where)


def _base(f: Fields, default: float) -> float:
    names = ("rope_theta", "rotary_emb_base", "rope_base", "global_rope_theta")
    if not f.has(*names):
        return default * (f.number("rope_ratio", low=1e-3, high=1e6) if f.has("rope_ratio") else 1.0)
    return float(f.number(*names, low=1, high=1e12))


def _local(f: Fields, default: Rope) -> float | None:
    names = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
    return float(f.number(*names, low=1, high=1e12)) if f.has(*names) else default.local_base


def _fraction(f: Fields, head_dim: int, default: float) -> float:
    names = ("partial_rotary_factor", "rotary_pct", "rope_pct")
    if f.has(*names):
        return float(f.number(*names, low=0, high=1))
    if f.has("rotary_dim"):
        return min(1.0, f.integer("rotary_dim", high=MAX_HEADS) / head_dim)
    return default


def _scaled(f: Fields, rope: Rope) -> Rope:
    """``rope`` with the extension of a ``rope_scaling`` or ``rope_parameters`` table."""
    name = f.word("rope_type", "type", default="default")
    kind = _NAMES.get(name, name)
    if kind == "plain":
        return replace(rope, kind="plain", factor=1.0, original=None)

    def number(field_name: str, default: float) -> float:
        return float(f.number(field_name, low=0, high=1e9)) if f.has(field_name) else default

    return replace(
        rope,
        kind=kind,
        factor=number("factor", 1.0),
        original=f.optional("original_max_position_embeddings", high=MAX_TOKENS),
        low=number("low_freq_factor", 1.0),
        high=number("high_freq_factor", 4.0),
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        mscale=number("mscale", 1.0),
        mscale_all_dim=number("mscale_all_dim", 0.0),
        truncate=f.flag("truncate", default=True),
    )


def _skips(f: Fields, layers: int) -> tuple[int, ...]:
    """Layers without a rotary embedding: Llama 4 and SmolLM3 name those that have one."""
    if f.has("no_rope_layers") and f.items("no_rope_layers"):
        listed = f.items("no_rope_layers", layers)
        skips = tuple(int(not has) for has in f.integers("no_rope_layers")) if listed else ()
    elif f.has("no_rope_layer_interval"):
        every = f.integer("no_rope_layer_interval", high=MAX_LAYERS)
        skips = tuple(int((i + 1) % every == 0) for i in range(layers))
    else:
        return ()
    return skips if 1 in skips else ()


_DECIMALS: Final = {f.name for f in fields(Rope) if str(f.type).startswith("float")}


def rope_of_table(table: Mapping[str, Any], layers: int) -> Rope:
    """The rotary embedding of a preset's table; ``skip_every`` in it stands for the list of layers."""
    rest: dict[str, Any] = {
        name: float(value) if isinstance(value, int) and name in _DECIMALS else value
        for name, value in table.items()
        if name != "skip_every"
    }
    every = int(table.get("skip_every", 0))
    skips = tuple(int((i + 1) % every == 0) for i in range(layers)) if every else ()
    return Rope(**rest, skips=skips)
