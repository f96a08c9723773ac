"""Positions, norms, activation and dropout that Megatron-LM arguments give a model.

Defaults as in ``arguments.py`` and ``TransformerConfig`` at core_v0.16.1 and core_v0.19.0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshplan.export.found import Found, Settings
from meshplan.export.list_patterns import listed
from meshplan.export.megatron_numerics import GELUS, LLAMA3, OPENAI_SWIGLU, YARN
from meshplan.model.model import Model
from meshplan.model.rope import Rope

NUMERICS = ("rope", "alibi", "norm_eps", "activation", "attention_dropout", "hidden_dropout", "init_std")
"""Fields of a model that cost nothing and that a launch file decides."""
DROPOUT = 0.1
BASE = 10_000


def numerics_of(args: Settings, found: Found, *, layers: int, rotary: bool, latent: bool) -> dict[str, Any]:
    """These fields of ``Model``, from the arguments and the defaults of the parser."""
    eps = args.number("--norm-epsilon", 0, 1)
    old = args.number("--layernorm-epsilon", 0, 1)
    if eps is None:
        eps = old if old is not None else found.default("norm epsilon", 1e-5)
    dropouts = [args.number(f"--{name}-dropout", 0, 1) for name in ("attention", "hidden")]
    if None in dropouts:
        found.default("dropout", DROPOUT)
    attention, hidden = (DROPOUT if value is None else value for value in dropouts)
    if attention or hidden:
        found.notes.append(
            f"dropout is {attention:g} in attention and {hidden:g} on hidden states;"
            " its masks are not in the estimate"
        )
    std = args.number("--init-method-std", 0, 100)
    return {
        "rope": _rope(args, found, layers, latent=latent) if rotary else None,
        "norm_eps": float(eps),
        "activation": _activation(args),
        "attention_dropout": float(attention),
        "hidden_dropout": float(hidden),
        "init_std": 0.02 if std is None else std,
    }


def _activation(args: Settings) -> str:
    if args.truth("--swiglu"):
        return "silu"
    if args.truth("--quick-geglu"):
        return OPENAI_SWIGLU if args.number("--glu-linear-offset", -100, 100) else "quick_gelu"
    return "relu2" if args.truth("--squared-relu") else "gelu"


def _rope(args: Settings, found: Found, layers: int, *, latent: bool) -> Rope:
    base = args.number("--rotary-base", 1, 1e12)
    share = args.number("--rotary-percent", 0, 1)
    rope = Rope(
        base=float(found.default("rotary base", BASE) if base is None else base),
        fraction=1.0 if share is None or latent else share,
        interleaved=bool(args.truth("--rotary-interleaved")),
        skips=_skips(args, layers),
    )
    yarn = args.text("--position-embedding-type") == "yarn"
    if yarn or (latent and args.text("--rope-type") != "rope"):
        return _yarn(args, rope, latent=latent)
    stretch = args.number("--rotary-seq-len-interpolation-factor", 1, 1e6)
    if args.truth("--use-rope-scaling") and not latent:
        factor = args.number("--rope-scaling-factor", 1, 1e6)
        low, high, original = LLAMA3
        return replace(rope, kind="llama3", factor=factor or 8.0, low=low, high=high, original=original)
    return replace(rope, kind="linear", factor=stretch) if stretch else rope


def _skips(args: Settings, layers: int) -> tuple[int, ...]:
    """Layers without rotary embedding: every n-th, or a list."""
    text = args.text("--no-rope-freq")
    if text is None:
        return ()
    if text.strip().isdecimal():
        every = max(1, int(text))
        return tuple(int((i + 1) % every == 0) for i in range(layers))
    return tuple(listed(text, layers, "--no-rope-freq"))


def _yarn(args: Settings, rope: Rope, *, latent: bool) -> Rope:
    """Latent attention takes YaRN where nothing is said; at its factor of 1 that is a plain rotary one."""
    factor = args.number("--rotary-scaling-factor", 0, 1e6)
    if (factor is None or factor == 1) and latent:
        return rope
    original, fast, slow = YARN
    scale, every = args.number("--mscale", 0, 100), args.number("--mscale-all-dim", 0, 100)
    if not latent:
        original = args.count("--yarn-original-max-position-embeddings") or original
        fast = args.number("--yarn-beta-fast", 0, 1e6) or fast
        slow = args.number("--yarn-beta-slow", 0, 1e6) or slow
    return replace(
        rope,
        kind="yarn",
        factor=factor or 1.0,
        original=original,
        beta_fast=fast,
        beta_slow=slow,
        mscale=1.0 if scale is None else scale,
        mscale_all_dim=every or 0.0,
        truncate=latent or not args.has("--no-yarn-correction-range-round-to-int"),
    )


def differing(model: Model, known: Model) -> list[str]:
    """What of these a file gives a model otherwise than the published one has it, a clause each."""
    clauses = []
    a, b = model.rope, known.rope
    if a is not None and b is not None:
        if a.base != b.base:
            clauses.append(f"the rotary base is {a.base:,.0f}, not {b.base:,.0f}")
        if abs(a.fraction - b.fraction) > 1e-6:
            clauses.append(f"{a.fraction:.0%} of a head is rotated, not {b.fraction:.0%}")
        if (a.kind, a.factor) != (b.kind, b.factor) and "dynamic" not in (a.kind, b.kind):
            clauses.append(f"the rotary scaling is {_scaling(a)}, not {_scaling(b)}")
    elif (a is None) != (b is None) and not known.alibi:
        ours, theirs = ("rotary" if rope is not None else "not rotary" for rope in (a, b))
        clauses.append(f"positions are {ours}, not {theirs}")
    if model.norm_eps is not None and known.norm_eps is not None and model.norm_eps != known.norm_eps:
        clauses.append(f"the norms' epsilon is {model.norm_eps:g}, not {known.norm_eps:g}")
    ours, theirs = ("gelu" if m.activation in GELUS else m.activation for m in (model, known))
    if ours and theirs and ours != theirs:
        clauses.append(f"the activation is {ours}, not {theirs}")
    return clauses


def _scaling(rope: Rope) -> str:
    return "none" if rope.kind == "plain" else f"{rope.kind} by {rope.factor:g}"


def as_said(model: Model, known: Model) -> Model:
    """``known`` with these fields as a file gives them; shares of them that arguments cannot say are kept."""
    said = {name: getattr(model, name) for name in NUMERICS if name != "alibi"}
    return replace(known, **said)
