"""Models for people and for programs: a list, and one with its parameters, layers and FLOP a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from textwrap import wrap
from typing import Any

from meshplan.model.counts import ModelParameters, layer_parameters, model_parameters
from meshplan.model.flops import CONVENTIONS, flop_per_token, forward_flops
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.report.screen import Screen, bar
from meshplan.report.table import Column, table
from meshplan.units import format_count, format_percent

SCHEMA_VERSION = 1
DEFAULT_SEQ = 8192
_CONVENTION_NOTES = {
    "causal": "3 × forward, causal attention counted once (Megatron-LM, NeMo)",
    "full": "without the input embedding, attention over the whole sequence (torchtitan)",
    "palm": "6N + attention over the whole sequence (PaLM)",
    "6n": "6 × active parameters",
}


def default_seq(model: Model) -> int:
    """The sequence length to show FLOP for when none is asked: 8,192, or less if the model takes less."""
    return min(DEFAULT_SEQ, model.max_seq or DEFAULT_SEQ)


def model_summary(model: Model) -> dict[str, Any]:
    """One entry of the list of models."""
    counted = model_parameters(model)
    return {
        "name": model.name,
        "parameters": counted.total,
        "active_parameters": counted.active,
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "max_seq": model.max_seq,
        "source": model.source,
    }


def model_dict(model: Model, seq: int) -> dict[str, Any]:
    """All that ``models show`` knows, as plain data; FLOP are forward and backward, of one token."""
    counted = model_parameters(model)
    forward = forward_flops(model, seq)
    return {
        "name": model.name,
        "parameters": counted.total,
        "active_parameters": counted.active,
        "active_parameters_with_embedding": counted.active_with_embedding,
        "parts": dict(counted.parts),
        "active_parts": dict(counted.active_parts),
        "mtp_parameters": counted.mtp,
        "buffers": counted.buffers,
        "seq": seq,
        "flop_per_token": {name: flop_per_token(model, seq, name) for name in CONVENTIONS},
        "flop_per_token_with_mtp": {name: flop_per_token(model, seq, name, mtp=True) for name in CONVENTIONS},
        "forward_flop_per_token": {name: getattr(forward, name) for name in forward.__slots__},
        "hidden": model.hidden,
        "vocab": model.vocab,
        "tied_embeddings": model.tied_embeddings,
        "max_seq": model.max_seq,
        "layers": [_kind_dict(model, kind, count) for kind, count in Counter(model.layers).items()],
        "mtp_layers": len(model.mtp),
        "rope": None if model.rope is None else asdict(model.rope),
        "alibi": model.alibi,
        "norm_eps": model.norm_eps,
        "activation": model.activation or None,
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
        "init_std": model.init_std,
        "source": model.source,
        "notes": list(model.notes),
    }


def model_table(models: Sequence[Model], screen: Screen) -> str:
    """One line a model."""
    counts = [model_parameters(model) for model in models]
    columns = [
        Column(title="name", cells=[m.name for m in models]),
        Column(title="parameters", cells=[format_count(c.total) for c in counts], right=True),
        Column(title="active", cells=[_active(c) for c in counts], right=True),
        Column(title="layers", cells=[str(len(m.layers)) for m in models], right=True, priority=1),
        Column(title="hidden", cells=[f"{m.hidden:,}" for m in models], right=True, priority=2),
        Column(title="attention", cells=[_attentions(m) for m in models], priority=1),
        Column(title="MLP", cells=[_mlps(m) for m in models], priority=3),
        Column(title="vocabulary", cells=[f"{m.vocab:,}" for m in models], right=True, priority=4),
    ]
    head, *rows = table(columns, screen.width)
    note = "Active: what one token is multiplied by, where that is less; 'models show NAME' says more."
    return screen.text("\n".join([screen.bold(head), *rows, "", *wrap(note, screen.width)]))


def model_sheet(model: Model, seq: int, screen: Screen) -> str:
    """One model: parameters by part, kinds of layer, FLOP a token by convention."""
    counted = model_parameters(model)
    lines = [
        screen.bold(model.name),
        *wrap(_headline(model, counted), screen.width),
        "",
        *_titled(_parts_columns(counted), screen),
        "",
        *_titled(_layer_columns(model), screen),
        "",
        *_titled(_flop_columns(model, seq), screen),
        "",
        *wrap(_numerics(model), screen.width),
        *wrap(f"source: {model.source}", screen.width, break_long_words=False, break_on_hyphens=False),
    ]
    for note in model.notes:
        lines += wrap(f"note: {note}", screen.width)
    return screen.text("\n".join(lines))


def _numerics(model: Model) -> str:
    """What costs nothing and launch files have to say: positions, norms, activation."""
    rope = model.rope
    parts = ["positions " + ("learned" if model.positions else "ALiBi" if model.alibi else "not known")]
    if rope is not None:
        parts = [f"rotary base {rope.base:,.0f}"]
        parts += [f"{rope.fraction:.0%} of a head"] if rope.fraction != 1 else []
        parts += [f"{rope.kind} by {rope.factor:g}"] if rope.kind != "plain" else []
        parts += [f"{rope.local_base:,.0f} in sliding layers"] if rope.local_base else []
        parts += [f"none in {sum(rope.skips)} layers"] if rope.skips else []
    parts += [f"norm epsilon {model.norm_eps:g}"] if model.norm_eps is not None else []
    parts += [f"activation {model.activation}"] if model.activation else []
    return ", ".join(parts)


def _headline(model: Model, counted: ModelParameters) -> str:
    rounded, exact = format_count(counted.total), _exact(counted.total)
    text = f"{rounded} parameters" + (f" ({exact})" if rounded != exact else "")
    if counted.active != counted.total:
        text += f", {format_count(counted.active)} active"
    text += f"; {len(model.layers)} layers of width {model.hidden:,}, vocabulary {model.vocab:,}"
    text += " (head tied to it)" if model.tied_embeddings else ""
    if model.mtp:
        text += f"; {len(model.mtp)} multi-token-prediction module"
        text += f"{'s' * (len(model.mtp) > 1)} apart ({format_count(counted.mtp)})"
    return text


def _titled(columns: Sequence[Column], screen: Screen) -> list[str]:
    head, *rows = table(columns, screen.width)
    return [screen.bold(head), *rows]


def _parts_columns(counted: ModelParameters) -> list[Column]:
    shown = {name: count for name, count in counted.parts.items() if count}
    active = counted.active_parts
    columns = [
        Column(title="part", cells=[*(name.replace("_", " ") for name in shown), "total"]),
        Column(title="parameters", cells=[*map(_exact, shown.values()), _exact(counted.total)], right=True),
        Column(title="share", cells=[*(_share(n, counted.total) for n in shown.values()), ""], right=True),
        Column(title="", cells=[*(bar(n / counted.total, 20) for n in shown.values()), ""], priority=1),
    ]
    if counted.active != counted.total:
        cells = [*(_exact(active[name]) for name in shown), _exact(counted.active)]
        columns.append(Column(title="active", cells=cells, right=True))
    return columns


def _layer_columns(model: Model) -> list[Column]:
    kinds = Counter(model.layers)
    each = [layer_parameters(kind, model.hidden) for kind in kinds]
    return [
        Column(title="layers", cells=[str(n) for n in kinds.values()], right=True),
        Column(title="attention", cells=[describe_attention(kind.attention) for kind in kinds]),
        Column(title="MLP", cells=[describe_mlp(kind.mlp) for kind in kinds]),
        Column(title="each", cells=[format_count(p.total) for p in each], right=True, priority=1),
    ]


def _flop_columns(model: Model, seq: int) -> list[Column]:
    values = [flop_per_token(model, seq, name) / 1e9 for name in CONVENTIONS]
    return [
        Column(title=f"FLOP a token, s = {seq:,}", cells=list(CONVENTIONS)),
        Column(title="GFLOP", cells=[f"{v:,.1f}" if v >= 10 else f"{v:.3g}" for v in values], right=True),
        Column(title="counted as", cells=[_CONVENTION_NOTES[name] for name in CONVENTIONS], priority=1),
    ]


def describe_attention(attention: Attention | LatentAttention | None) -> str:
    """A few words: ``GQA 64/8 × 128, window 4,096``."""
    if attention is None:
        return "none"
    if isinstance(attention, LatentAttention):
        return f"MLA {attention.heads} × {attention.head_dim}, latent {attention.kv_rank:,}"
    a = attention
    name = "MHA" if a.kv_heads == a.heads else "MQA" if a.kv_heads == 1 else "GQA"
    heads = f"{a.heads}" if a.kv_heads == a.heads else f"{a.heads}/{a.kv_heads}"
    text = f"{name} {heads} × {a.head_dim}"
    if a.window is not None:
        text += f", {'chunk' if a.chunked else 'window'} {a.window:,}"
    return text


def describe_mlp(mlp: Mlp | Moe | None) -> str:
    """A few words: ``gated 28,672`` or ``MoE 8 of 256 × 2,048 + 2,048 shared``."""
    if mlp is None:
        return "none"
    if isinstance(mlp, Mlp):
        return f"{'gated' if mlp.gated else 'plain'} {mlp.width:,}"
    shared = f" + {mlp.shared_width:,} shared" if mlp.shared_width else ""
    return f"MoE {mlp.topk} of {mlp.experts:,} × {mlp.width:,}{shared}"


def _attentions(model: Model) -> str:
    """The attention of most layers, shortened, ``+`` when there are others."""
    kinds = Counter(layer.attention for layer in model.layers if layer.attention is not None)
    if not kinds:
        return "none"
    return describe_attention(kinds.most_common(1)[0][0]).partition(",")[0] + "+" * (len(kinds) > 1)


def _mlps(model: Model) -> str:
    kinds = Counter(layer.mlp for layer in model.layers if layer.mlp is not None)
    if not kinds:
        return "none"
    return describe_mlp(kinds.most_common(1)[0][0]).partition(" +")[0] + "+" * (len(kinds) > 1)


def _active(counted: ModelParameters) -> str:
    return "" if counted.active == counted.total else format_count(counted.active)


def _exact(count: int) -> str:
    return f"{count:,}"


def _share(count: int, total: int) -> str:
    return format_percent(count / total)


def _kind_dict(model: Model, kind: Layer, count: int) -> dict[str, Any]:
    parts = layer_parameters(kind, model.hidden)
    return {
        "count": count,
        "attention": _part_dict(kind.attention, {Attention: "attention", LatentAttention: "latent"}),
        "mlp": _part_dict(kind.mlp, {Mlp: "dense", Moe: "moe"}),
        "parameters": parts.total,
        "active_parameters": parts.active,
    }


def _part_dict(part: Any, kinds: dict[type[Any], str]) -> dict[str, Any] | None:
    if part is None:
        return None
    return {"kind": kinds[type(part)], **{f.name: getattr(part, f.name) for f in fields(part)}}
