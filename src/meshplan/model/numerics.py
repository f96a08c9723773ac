"""The facts of a configuration that cost nothing and that a launch file still has to say right.

Rotary embedding, epsilon of the norms, activation, dropout and the spread of the first weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from meshplan.errors import InputError
from meshplan.model.class_defaults import DEFAULTS, USUAL
from meshplan.model.fields import Fields
from meshplan.model.layers import Attention, LatentAttention
from meshplan.model.model import Model
from meshplan.model.rope import Rope, rope_of

_EPS: Final = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "layernorm_epsilon",
)  # fmt: skip
_ACTIVATION: Final = (
    "hidden_act", "hidden_activation", "activation_function", "activation", "mlp_hidden_act",
)  # fmt: skip
_HIDDEN_DROPOUT: Final = (
    "hidden_dropout", "resid_pdrop", "residual_dropout", "resid_dropout", "hidden_dropout_prob", "dropout",
)  # fmt: skip
_OWN_ACTIVATION: Final = {"gpt_oss": "swigluoai"}
"""What a class computes whatever its configuration calls it (gpt-oss: ``silu``, but clamped and shifted)."""
_ATTENTION_DROPOUT: Final = ("attention_dropout", "attn_pdrop", "attn_dropout_prob")


def with_numerics(f: Fields, model: Model) -> Model:
    """``model`` with what ``f`` (the fields of its language model) says of these, defaults of the class
    where it says nothing. A value that cannot be read is left out with a note: no plan depends on it."""
    try:
        return _with_numerics(f, model)
    except InputError as error:
        reason = str(error).removeprefix(f"{f.where}: ")
        return replace(model, notes=(*model.notes, f"rotary embedding and norms were not read: {reason}"))


def _with_numerics(f: Fields, model: Model) -> Model:
    kind = f.word("model_type")
    default = DEFAULTS.get(kind, USUAL)
    alibi = kind in ("bloom", "mpt") or (kind == "falcon" and f.flag("alibi", default=False))
    rope = None
    if default.rope is not None and not alibi and not model.positions:
        rope = _rope(f, model, default.rope, default.skip_every)

    def number(names: tuple[str, ...], usual: float, high: float) -> float:
        return float(f.number(*names, low=0, high=high)) if f.has(*names) else usual

    return replace(
        model,
        rope=rope,
        alibi=alibi,
        norm_eps=number(_EPS, default.eps, 1),
        activation=_OWN_ACTIVATION.get(kind) or f.word(*_ACTIVATION, default=default.activation),
        attention_dropout=number(_ATTENTION_DROPOUT, default.attention_dropout, 1),
        hidden_dropout=number(_HIDDEN_DROPOUT, default.dropout, 1),
        init_std=number(("initializer_range", "init_std"), default.std, 1e3),
    )


def _rope(f: Fields, model: Model, default: Rope, skip_every: int) -> Rope:
    head = next(
        (layer.attention.head_dim for layer in model.layers if isinstance(layer.attention, Attention)), 1
    )
    if skip_every and not f.has("no_rope_layers", "no_rope_layer_interval"):
        f = Fields({**f.data, "no_rope_layer_interval": skip_every}, f.where)
    rope = rope_of(f, len(model.layers), head, default)
    latent = any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    # Latent attention has a part of its own for positions, all of which is rotated.
    return replace(rope, fraction=1.0) if latent else rope
