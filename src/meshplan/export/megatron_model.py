"""The model's dimensions as Megatron-LM arguments, and what of a model it has no argument for.

Flag names as in ``megatron/training/arguments.py`` and the fields of ``TransformerConfig``, which become
flags, at tags core_v0.16.1 and core_v0.19.0.
"""

from __future__ import annotations

from meshplan.errors import InputError
from meshplan.export.launch import Fitting
from meshplan.export.list_patterns import list_pattern
from meshplan.export.megatron_numerics import numeric_options, position_options
from meshplan.export.quoting import Option
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model


def model_options(fitting: Fitting) -> list[Option]:
    """Every argument about the model. Raises ``InputError`` where no argument list can describe it."""
    model = fitting.job.model
    attention, mlps = _one_attention(model), _mlps(model)
    dense = next((mlp for mlp in mlps if isinstance(mlp, Mlp)), None)
    moe = next((mlp for mlp in mlps if isinstance(mlp, Moe)), None)
    first = model.layers[0]
    _say_what_is_lost(fitting, attention, first)
    options: list[Option] = [
        ("--num-layers", str(len(model.layers))),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(dense.width if dense else moe.width if moe else 4 * model.hidden)),
        ("--num-attention-heads", str(attention.heads)),
    ]
    options += _latent(attention) if isinstance(attention, LatentAttention) else _grouped(attention)
    options += _windows(fitting)
    options += numeric_options(fitting)
    options += _biases(fitting, attention, dense)
    if isinstance(attention, Attention) and attention.qk_norm != "none":
        options.append(("--qk-layernorm",))
    options += position_options(fitting)
    if not model.tied_embeddings:
        options.append(("--untie-embeddings-and-output-weights",))
    options += _experts(model, moe) + (_capacity(fitting) if moe else [])
    if model.mtp:
        options.append(("--mtp-num-layers", str(len(model.mtp))))
    return options


def _one_attention(model: Model) -> Attention | LatentAttention:
    """The attention of every layer, windows aside."""
    kinds = {_without_window(layer.attention) for layer in model.layers}
    if None in kinds or len(kinds) != 1:
        raise InputError(
            f"megatron's arguments cannot describe {model.name}:"
            f" its layers have {len(kinds)} kinds of attention"
        )
    found = next(iter(kinds))
    assert found is not None
    return found


def _without_window(attention: Attention | LatentAttention | None) -> Attention | LatentAttention | None:
    from dataclasses import replace

    if isinstance(attention, Attention):
        return replace(attention, window=None, chunked=False)
    return replace(attention, window=None) if attention is not None else None


def _mlps(model: Model) -> tuple[Mlp | Moe, ...]:
    kinds = tuple(dict.fromkeys(layer.mlp for layer in model.layers))
    dense = sum(isinstance(mlp, Mlp) for mlp in kinds)
    if None in kinds or dense > 1 or len(kinds) - dense > 1:
        raise InputError(
            f"megatron's arguments cannot describe {model.name}: its layers have {len(kinds)} kinds of MLP"
        )
    return tuple(mlp for mlp in kinds if mlp is not None)


def _grouped(attention: Attention) -> list[Option]:
    options: list[Option] = []
    if attention.kv_heads != attention.heads:
        options += [("--group-query-attention",), ("--num-query-groups", str(attention.kv_heads))]
    options.append(("--kv-channels", str(attention.head_dim)))
    if attention.sinks:
        options.append(("--softmax-type", "learnable"))
    if attention.gate:
        options.append(("--attention-output-gate",))
    return options


def _latent(attention: LatentAttention) -> list[Option]:
    options: list[Option] = [("--multi-latent-attention",)]
    if attention.q_rank is not None:
        options.append(("--q-lora-rank", str(attention.q_rank)))
    return [
        *options,
        ("--kv-lora-rank", str(attention.kv_rank)),
        ("--qk-head-dim", str(attention.nope_dim)),
        ("--qk-pos-emb-head-dim", str(attention.rope_dim)),
        ("--v-head-dim", str(attention.v_dim)),
        ("--qk-layernorm",),
    ]


def _windows(fitting: Fitting) -> list[Option]:
    layers = fitting.job.model.layers
    windows = [layer.attention.window if layer.attention else None for layer in layers]
    sizes = {w for w in windows if w is not None}
    if not sizes:
        return []
    chunked = any(isinstance(a := layer.attention, Attention) and a.chunked for layer in layers)
    if chunked or len(sizes) > 1:
        fitting.say(
            "attention window",
            "chunks" if chunked else f"{len(sizes)} sizes",
            "full attention everywhere",
            "Megatron has one sliding window size and no chunks",
        )
        return []
    options: list[Option] = [("--window-size", f"{sizes.pop() - 1},0")]
    if None in windows:  # 1: sliding, 0: full
        options.append(("--window-attn-skip-freq", list_pattern([int(w is not None) for w in windows])))
    return options


def _biases(fitting: Fitting, attention: Attention | LatentAttention, dense: Mlp | None) -> list[Option]:
    mlp_bias = dense.bias if dense else False
    if attention.qkv_bias and attention.out_bias and (mlp_bias or dense is None):
        return []
    options: list[Option] = [("--disable-bias-linear",)]
    if attention.qkv_bias and isinstance(attention, Attention):
        options.append(("--add-qkv-bias",))
    if attention.out_bias or mlp_bias:
        which = "attention output" if attention.out_bias else "MLP"
        fitting.say(
            f"bias of the {which}", "one", "none", "Megatron has biases everywhere, on QKV only, or none"
        )
    return options


def _experts(model: Model, moe: Moe | None) -> list[Option]:
    if moe is None:
        return []
    sparse = [int(isinstance(layer.mlp, Moe)) for layer in model.layers]
    options: list[Option] = [
        ("--num-experts", str(moe.experts)),
        ("--moe-layer-freq", list_pattern(sparse)),
        ("--moe-ffn-hidden-size", str(moe.width)),
        ("--moe-router-topk", str(moe.topk)),
        ("--moe-grouped-gemm",),
        ("--moe-token-dispatcher-type", "alltoall"),
        ("--moe-router-load-balancing-type", "none" if moe.balance_bias else "aux_loss"),
    ]
    if moe.shared_width:
        options.append(("--moe-shared-expert-intermediate-size", str(moe.shared_width)))
    if moe.shared_gate:
        options.append(("--moe-shared-expert-gate",))
    if moe.groups > 1:
        options += [
            ("--moe-router-num-groups", str(moe.groups)),
            ("--moe-router-group-topk", str(moe.groups_used)),
        ]
    if moe.balance_bias:
        options += [("--moe-router-score-function", "sigmoid"), ("--moe-router-enable-expert-bias",)]
    return options


def _capacity(fitting: Fitting) -> list[Option]:
    """Tokens an expert takes at most; padded up to it where nothing says what routing sends."""
    workload = fitting.job.setting.workload
    if workload.capacity_factor is None:
        return []
    padded: list[Option] = [("--moe-pad-expert-input-to-capacity",)] if workload.moe_imbalance is None else []
    return [("--moe-expert-capacity-factor", f"{workload.capacity_factor:g}"), *padded]


def _say_what_is_lost(fitting: Fitting, attention: Attention | LatentAttention, layer: Layer) -> None:
    model = fitting.job.model
    if layer.parallel:
        fitting.say(
            "layer", "attention and MLP side by side", "one after the other", "Megatron runs them in turn"
        )
    if layer.norms > 2 or layer.extra_norm or model.embedding_norm:
        fitting.say(
            "norms", "more than two a layer", "two a layer", "Megatron has no argument for further norms"
        )
    if not model.final_norm:
        fitting.say("final norm", "without weight", "with weight", "Megatron's final norm has a weight")
    if model.head_bias:
        fitting.say("head", "with bias", "without", "Megatron's head has no bias")
    if isinstance(attention, Attention):
        if attention.qk_norm == "full":
            fitting.say(
                "norm of q and k", "over all heads", "a head at a time", "Megatron normalises head by head"
            )
        if attention.v_dim != attention.head_dim or attention.shared_kv or attention.head_gate:
            fitting.say(
                "attention",
                "its own kind of values or gate",
                "plain values",
                "Megatron has no argument for it",
            )
