"""The model that Megatron-LM arguments describe.

Defaults as in ``arguments.py`` and ``TransformerConfig`` at core_v0.16.1 and core_v0.19.0. List patterns
(``([0]*3+[1]*58)``) are read as text, never evaluated as code.
"""

from __future__ import annotations

import re

from meshplan.errors import InputError
from meshplan.export.found import Found, Settings
from meshplan.export.list_patterns import MOST_LAYERS, listed
from meshplan.export.read_megatron_numerics import numerics_of
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.model.presets import preset, preset_name

_UNKNOWN_LAYERS = {
    "--hybrid-layer-pattern": "Mamba", "--hybrid-override-pattern": "Mamba",
    "--hybrid-attention-ratio": "Mamba", "--linear-attention-freq": "linear attention",
    "--experimental-attention-variant": "linear or sparse attention",
    "--heterogeneous-layers-config-path": "each layer its own", "--moe-latent-size": "latent experts",
}  # fmt: skip


def model_of_arguments(args: Settings, found: Found) -> Model | None:
    """The model, or ``None`` where the arguments do not say its sizes at all."""
    layers = args.count("--num-layers", most=MOST_LAYERS) or args.count(
        "--encoder-num-layers", most=MOST_LAYERS
    )
    hidden, heads = args.count("--hidden-size"), args.count("--num-attention-heads")
    if layers is None and hidden is None and heads is None:
        return None
    for flag, kind in _UNKNOWN_LAYERS.items():
        if args.has(flag):
            raise InputError(f"{flag} makes layers of a kind that is not known: {kind}")
    for flag, value in (
        ("--num-layers", layers),
        ("--hidden-size", hidden),
        ("--num-attention-heads", heads),
    ):
        if value is None:
            raise InputError(f"{flag} is missing, and the other sizes of the model are there")
    assert layers is not None
    assert hidden is not None
    assert heads is not None
    gated = bool(args.truth("--swiglu")) or bool(args.truth("--quick-geglu"))
    bias = not args.truth("--disable-bias-linear")
    norm_bias = (args.text("--normalization") or found.default("normalization", "LayerNorm")) == "LayerNorm"
    attention = _attention(args, found, hidden, heads, bias)
    moe = _moe(args, found, hidden, gated)
    width = args.count("--ffn-hidden-size")
    if width is None:
        width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
        if moe is None or 0 in _sparse(args, layers):
            found.default("ffn", width)
    mlp = Mlp(width=width, gated=gated, bias=bias)
    sparse = _sparse(args, layers) if moe is not None else [0] * layers
    windows = _windows(args, layers)
    stack = tuple(
        Layer(attention=_windowed(attention, window), mlp=moe if is_moe and moe else mlp, norm_bias=norm_bias)
        for is_moe, window in zip(sparse, windows, strict=True)
    )
    kind = args.text("--position-embedding-type") or found.default("positions", "learned_absolute")
    longest = args.count("--max-position-embeddings")
    rotary = kind in ("rope", "yarn", "mrope") or bool(args.truth("--use-rotary-position-embeddings"))
    learned = kind == "learned_absolute" and not rotary
    return Model(
        name="model",
        hidden=hidden,
        vocab=_vocabulary(args, found),
        layers=stack,
        tied_embeddings=not args.truth("--untie-embeddings-and-output-weights"),
        positions=(longest or 0) if learned else 0,
        final_norm_bias=norm_bias,
        mtp=(stack[-1],) * (args.count("--mtp-num-layers", low=0, most=64) or 0),
        max_seq=longest,
        source="launch arguments",
        **numerics_of(
            args, found, layers=layers, rotary=rotary, latent=isinstance(attention, LatentAttention)
        ),
    )


def _attention(
    args: Settings, found: Found, hidden: int, heads: int, bias: bool
) -> Attention | LatentAttention:
    if args.truth("--multi-latent-attention"):
        return LatentAttention(
            heads=heads,
            q_rank=args.count("--q-lora-rank"),
            kv_rank=args.count("--kv-lora-rank") or found.default("kv rank", 32),
            nope_dim=args.count("--qk-head-dim") or found.default("qk head", 128),
            rope_dim=args.count("--qk-pos-emb-head-dim") or found.default("qk rope head", 64),
            v_dim=args.count("--v-head-dim") or found.default("v head", 128),
        )
    groups = args.count("--num-query-groups") or 1
    kv_heads = groups if args.truth("--group-query-attention") else heads
    if heads % kv_heads:
        raise InputError(f"--num-query-groups {kv_heads} does not divide --num-attention-heads {heads}")
    width = args.count("--kv-channels")
    if width is None:
        if hidden % heads:
            raise InputError(
                f"--num-attention-heads {heads} does not divide --hidden-size {hidden}; give --kv-channels"
            )
        width = hidden // heads
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        qkv_bias=bias or bool(args.truth("--add-qkv-bias")),
        out_bias=bias,
        qk_norm="head" if args.truth("--qk-layernorm") else "none",
        sinks=args.text("--softmax-type") == "learnable",
        gate=bool(args.truth("--attention-output-gate")),
    )


def _moe(args: Settings, found: Found, hidden: int, gated: bool) -> Moe | None:
    experts = args.count("--num-experts")
    if experts is None:
        return None
    width = args.count("--moe-ffn-hidden-size") or args.count("--ffn-hidden-size")
    topk = args.count("--moe-router-topk") or found.default("top-k", 2)
    return Moe(
        experts=experts,
        topk=topk,
        width=width or found.default("expert width", 4 * hidden),
        gated=gated,
        shared_width=args.count("--moe-shared-expert-intermediate-size") or 0,
        shared_gate=bool(args.truth("--moe-shared-expert-gate")),
        balance_bias=bool(args.truth("--moe-router-enable-expert-bias")),
        groups=args.count("--moe-router-num-groups") or 1,
        groups_used=args.count("--moe-router-group-topk") or 1,
    )


def _sparse(args: Settings, layers: int) -> list[int]:
    text = args.text("--moe-layer-freq")
    if text is None:
        return [1] * layers
    if text.strip().isdecimal():
        every = max(1, int(text))
        return [int(i % every == 0) for i in range(layers)]
    return listed(text, layers, "--moe-layer-freq")


def _windows(args: Settings, layers: int) -> list[int | None]:
    text = args.raw("--window-size")
    if text is None:
        return [None] * layers
    joined = ",".join(text) if isinstance(text, list) else str(text)
    sizes = re.findall(r"-?\d+", joined)
    if not sizes or int(sizes[0]) < 0:
        return [None] * layers
    size = int(sizes[0]) + 1
    skip = args.text("--window-attn-skip-freq")
    if skip is None:
        return [size] * layers
    if skip.strip().isdecimal():
        every = max(1, int(skip))
        return [None if (i + 1) % every == 0 else size for i in range(layers)]
    return [size if flag else None for flag in listed(skip, layers, "--window-attn-skip-freq")]


def _windowed(attention: Attention | LatentAttention, window: int | None) -> Attention | LatentAttention:
    from dataclasses import replace

    return attention if window is None else replace(attention, window=window)


def _vocabulary(args: Settings, found: Found) -> int:
    padded = args.count("--padded-vocab-size")
    if padded is not None:
        return padded
    size = args.count("--vocab-size")
    kind, name = args.text("--tokenizer-type"), args.raw("--tokenizer-model") if _literal(args) else None
    if size is not None:  # the synthetic tokenizer adds an end-of-document token (up to 0.16)
        return size + 1 if kind == "NullTokenizer" else size
    known = _TOKENIZERS.get(kind or "") or _vocabulary_of(name)
    if known:
        return int(found.default("vocab", known))
    found.notes.append(
        f"the vocabulary comes from the tokenizer, which is not read; {USUAL_VOCABULARY:,} is taken"
    )
    return int(found.default("vocab", USUAL_VOCABULARY))


USUAL_VOCABULARY = 128_256
_TOKENIZERS = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000}
"""Vocabularies of tokenizers whose name decides it."""


def _literal(args: Settings) -> bool:
    return "--tokenizer-model" not in args.missing


def _vocabulary_of(name: object) -> int | None:
    """The vocabulary of the preset that a tokenizer is named after."""
    if not isinstance(name, str):
        return None
    for part in (name, name.rstrip("/").rpartition("/")[2]):
        known = preset_name(part)
        if known is not None:
            return preset(known).vocab
    return None
