"""Positions, norms, activation and dropout of a model as Megatron-LM arguments, and what has no argument.

Flag names and meanings as in ``megatron/training/arguments.py`` and the embeddings of ``megatron/core`` at
tags core_v0.16.1 and core_v0.19.0. Both take the rotary base and the interpolation factor as whole numbers;
the scaling of Llama 3 is fixed at factors 1 and 4 and 8,192 positions.
"""

from __future__ import annotations

from meshplan.export.launch import Fitting
from meshplan.export.list_patterns import list_pattern
from meshplan.export.quoting import Option, number_text
from meshplan.model.layers import LatentAttention, Mlp, Moe
from meshplan.model.model import Model
from meshplan.model.rope import Rope

LLAMA3 = (1.0, 4.0, 8192)
"""``low``, ``high`` and ``original`` of Megatron's Llama 3 scaling."""
YARN = (4096, 32.0, 1.0)
"""``original`` and the betas of its YaRN in latent attention, which have no arguments."""
GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python")
OPENAI_SWIGLU = "swigluoai"
"""gpt-oss: a gated sigmoid approximation of GELU, clamped at 7, with 1 added to the linear half."""


def numeric_options(fitting: Fitting) -> list[Option]:
    """Norms, activation and dropout."""
    model = fitting.job.model
    options: list[Option] = [("--normalization", "LayerNorm" if model.layers[0].norm_bias else "RMSNorm")]
    if model.norm_eps is not None:
        options.append(("--norm-epsilon", number_text(model.norm_eps)))
    options += _activation(fitting)
    # Megatron's own defaults are 0.1.
    options += [
        ("--attention-dropout", number_text(model.attention_dropout)),
        ("--hidden-dropout", number_text(model.hidden_dropout)),
    ]
    if model.attention_dropout or model.hidden_dropout:
        dropout = f"{model.attention_dropout:g} of attention, {model.hidden_dropout:g} of hidden states"
        fitting.say("dropout", dropout, "the same", "only the estimate leaves its masks out")
    if model.init_std is not None:
        options.append(("--init-method-std", number_text(model.init_std)))
    return options


def _activation(fitting: Fitting) -> list[Option]:
    model = fitting.job.model
    gated = any(isinstance(layer.mlp, Mlp | Moe) and layer.mlp.gated for layer in model.layers)
    name = model.activation
    if gated:
        if name == OPENAI_SWIGLU:
            return [
                ("--quick-geglu",), ("--glu-linear-offset", "1.0"), ("--activation-func-clamp-value", "7.0"),
            ]  # fmt: skip
        if name not in ("", "silu", "swish"):
            fitting.say("activation", f"gated {name}", "SwiGLU", "Megatron's arguments gate SiLU only")
        return [("--swiglu",)]
    if name in ("relu2", "squared_relu"):
        return [("--squared-relu",)]
    if name and name not in GELUS:
        fitting.say("activation", name, "GELU", "Megatron's arguments have GELU and squared ReLU")
    return []


def position_options(fitting: Fitting) -> list[Option]:
    """Positions: learned, or a rotary embedding with its base, share and extension."""
    model, seq = fitting.job.model, fitting.job.setting.workload.seq
    if model.positions:
        return [
            ("--position-embedding-type", "learned_absolute"),
            ("--max-position-embeddings", str(max(model.positions, seq))),
        ]
    if model.alibi:
        fitting.say("positions", "ALiBi", "rotary embedding", "Megatron has no ALiBi")
    options: list[Option] = [
        ("--position-embedding-type", "rope"),
        ("--max-position-embeddings", str(max(model.max_seq or seq, seq))),
    ]
    if model.rope is None:
        return options
    rope = model.rope
    options.append(("--rotary-base", str(round(rope.base))))
    if rope.fraction != 1:
        options.append(("--rotary-percent", number_text(rope.fraction)))
    if rope.interleaved:
        options.append(("--rotary-interleaved",))
    if rope.skips:
        every = rope.skip_every
        whole = bool(every) and len(rope.skips) % every == 0
        options.append(("--no-rope-freq", str(every) if whole else list_pattern(list(rope.skips))))
    if rope.local_base is not None:
        fitting.say(
            "rotary base of sliding layers",
            f"{rope.local_base:,.0f}",
            f"{rope.base:,.0f}",
            "Megatron has one base",
        )
    if is_latent(model):
        return options + _latent(fitting, rope)
    return options + _extension(fitting, rope, seq)


def is_latent(model: Model) -> bool:
    """Whether the model's attention is latent, whose rotary embedding Megatron makes elsewhere."""
    return any(isinstance(layer.attention, LatentAttention) for layer in model.layers)


def _latent(fitting: Fitting, rope: Rope) -> list[Option]:
    """Latent attention has YaRN where nothing is said, with a factor of 1."""
    if rope.kind != "yarn":
        if rope.kind != "plain":
            _lost(fitting, rope, "Megatron's latent attention has YaRN only")
        return [("--rope-type", "rope"), ("--no-rope-fusion",)]  # its fused kernel is for YaRN only
    own = (rope.original or YARN[0], rope.beta_fast, rope.beta_slow)
    if own != YARN:
        fitting.say(
            "YaRN", f"{own[0]:,} positions, betas {own[1]:g} and {own[2]:g}",
            f"{YARN[0]:,} positions, betas {YARN[1]:g} and {YARN[2]:g}",
            "Megatron has no argument for them",
        )  # fmt: skip
    return [
        ("--rope-type", "yarn"),
        ("--rotary-scaling-factor", number_text(rope.factor)),
        ("--mscale", number_text(rope.mscale)),
        ("--mscale-all-dim", number_text(rope.mscale_all_dim)),
    ]


def _extension(fitting: Fitting, rope: Rope, seq: int) -> list[Option]:
    match rope.kind:
        case "plain":
            return []
        case "llama3":
            own = (rope.low, rope.high, rope.original or LLAMA3[2])
            if own != LLAMA3:
                fitting.say(
                    "rotary scaling", f"factors {own[0]:g} and {own[1]:g}, {own[2]:,} positions",
                    f"factors {LLAMA3[0]:g} and {LLAMA3[1]:g}, {LLAMA3[2]:,} positions",
                    "Megatron has one Llama 3 scaling",
                )  # fmt: skip
            return [("--use-rope-scaling",), ("--rope-scaling-factor", number_text(rope.factor))]
        case "linear" if rope.local_base is None and rope.factor == round(rope.factor):
            return [("--rotary-seq-len-interpolation-factor", str(round(rope.factor)))]
        case "dynamic" if seq <= (rope.original or fitting.job.model.max_seq or 0):
            return []  # it changes nothing up to the sequence the model was made for
        case "yarn":
            flags = " ".join(" ".join(option) for option in yarn_options(rope))
            _lost(fitting, rope, f"Megatron has it since 0.19 only; there replace the position type: {flags}")
        case _:
            _lost(fitting, rope, "Megatron has no argument for it")
    return []


def yarn_options(rope: Rope) -> list[Option]:
    """YaRN for grouped attention, as the parser of 0.19 and later has it."""
    return [
        ("--position-embedding-type", "yarn"),
        ("--rotary-scaling-factor", number_text(rope.factor)),
        ("--yarn-original-max-position-embeddings", str(rope.original or YARN[0])),
        ("--yarn-beta-fast", number_text(rope.beta_fast)),
        ("--yarn-beta-slow", number_text(rope.beta_slow)),
        *([] if rope.truncate else [("--no-yarn-correction-range-round-to-int",)]),
    ]


def _lost(fitting: Fitting, rope: Rope, why: str) -> None:
    fitting.say(
        "rotary scaling",
        f"{rope.kind}, factor {rope.factor:g}",
        "none",
        f"{why}; base {rope.base:,.0f} is kept",
    )
