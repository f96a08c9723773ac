"""Parameter counts: per layer by how parallelism splits them, per model by part.

Counts are exact: they equal the parameters of the same architecture in ``transformers`` (a tied
embedding once, buffers not at all, multi-token-prediction layers apart, since ``transformers`` does not
build those).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from meshplan.errors import InputError
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParameters:
    """Parameters of one layer. What ``tp`` splits, what it repeats, and what ``ep`` splits are apart.

    ``attention_sharded``: q, k, v, gate and output projections with their column biases (split by tp).
    ``attention_replicated``: MLA down projections, q, k and latent norms, the output bias (on every tp rank).
    ``sinks``: one logit a head (split by tp). ``mlp``: the dense MLP and ``shared`` the shared experts
    (split by tp; their output biases are counted here although tp repeats those few).
    ``router``: router, its bias and the shared expert's gate; ``norms``: the layer's norms (both repeated).
    ``experts``: all routed experts (split by ep and etp); ``experts_active``: those one token visits.
    """

    attention_sharded: int = 0
    attention_replicated: int = 0
    sinks: int = 0
    mlp: int = 0
    shared: int = 0
    router: int = 0
    norms: int = 0
    experts: int = 0
    experts_active: int = 0

    @property
    def attention(self) -> int:
        """All of the attention block: projections, their norms and sinks."""
        return self.attention_sharded + self.attention_replicated + self.sinks

    @property
    def dense(self) -> int:
        """All but the routed experts: what data parallelism shards over every data-parallel rank."""
        return self.attention + self.mlp + self.shared + self.router + self.norms

    @property
    def total(self) -> int:
        """Every parameter of the layer."""
        return self.dense + self.experts

    @property
    def active(self) -> int:
        """The parameters one token meets: all but the routed experts it is not sent to."""
        return self.dense + self.experts_active


def layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    """Parameters of ``layer`` in a model of width ``hidden``."""
    return _layer_parameters(layer, hidden)


@cache
def _layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    sharded, replicated, sinks = _attention(layer.attention, hidden)
    mlp = shared = router = experts = active = 0
    match layer.mlp:
        case Mlp() as dense:
            mlp = _feed_forward(hidden, dense.width, gated=dense.gated, bias=dense.bias)
        case Moe() as moe:
            one = _feed_forward(hidden, moe.width, gated=moe.gated, bias=moe.bias)
            experts, active = moe.experts * one, moe.topk * one
            shared = _feed_forward(hidden, moe.shared_width, gated=moe.gated, bias=False)
            router = moe.experts * (hidden + moe.router_bias) + moe.shared_gate * hidden + moe.router_extra
        case None:
            pass
    return LayerParameters(
        attention_sharded=sharded,
        attention_replicated=replicated,
        sinks=sinks,
        mlp=mlp,
        shared=shared,
        router=router,
        norms=layer.norms * hidden * (1 + layer.norm_bias) + layer.extra_norm,
        experts=experts,
        experts_active=active,
    )


def _attention(attention: Attention | LatentAttention | None, hidden: int) -> tuple[int, int, int]:
    """Parameters (split by tp, repeated on every tp rank, sinks)."""
    match attention:
        case Attention() as a:
            v_width = 0 if a.shared_kv else a.v_width
            gates = a.out_width * a.gate + a.heads * a.head_gate
            columns = a.q_width + a.k_width + v_width + gates
            biases = a.qkv_bias * (columns - gates)
            norm = {"none": 0, "head": 2 * a.head_dim, "full": a.q_width + a.k_width}[a.qk_norm]
            return (
                hidden * (columns + a.out_width) + biases,
                norm * (1 + a.qk_norm_bias) + a.out_bias * hidden,
                a.heads * a.sinks,
            )
        case LatentAttention() as m:
            queries_from = hidden if m.q_rank is None else m.q_rank
            up = m.q_width * queries_from + m.kv_rank * m.heads * (m.nope_dim + m.v_dim)
            down = (m.kv_rank + m.rope_dim) * (hidden + m.qkv_bias) + m.kv_rank
            if m.q_rank is not None:
                down += m.q_rank * (hidden + m.qkv_bias) + m.q_rank
            return up + m.out_width * hidden, down + m.out_bias * hidden, 0
        case None:
            return 0, 0, 0


def _feed_forward(hidden: int, width: int, *, gated: bool, bias: bool) -> int:
    """Weights of a feed-forward block; a width of 0 is no block."""
    if width == 0:
        return 0
    inner = 2 * width if gated else width
    return hidden * (inner + width) + bias * (inner + hidden)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParameters:
    """Parameters of a whole model by part; the parts sum to ``total``.

    ``embedding``: the token table (also the head when tied, then ``head`` is 0); ``positions``: a learned
    position table; ``norms``: all layers' norms and ``final_norm`` those of the model's ends.
    ``experts``: all routed experts; ``experts_active``: those one token visits. ``mtp``: the
    multi-token-prediction modules, *not* in ``total``. ``buffers``: numbers that are stored but not
    trained by gradient (the balancing biases of DeepSeek-V3's routers), in no count.
    """

    embedding: int
    positions: int
    attention: int
    mlp: int
    shared: int
    router: int
    experts: int
    experts_active: int
    norms: int
    final_norm: int
    head: int
    mtp: int
    buffers: int
    tied: bool

    @property
    def parts(self) -> Mapping[str, int]:
        """Part → parameters, in the order of the forward pass; the values sum to ``total``."""
        return {name: getattr(self, name) for name in _PARTS}

    @property
    def active_parts(self) -> Mapping[str, int]:
        """Part → active parameters; the values sum to ``active``."""
        if self.experts == 0:
            return self.parts
        looked_up = {"positions": 0} if self.tied else {"embedding": 0, "positions": 0}
        return {**self.parts, **looked_up, "experts": self.experts_active}

    @property
    def total(self) -> int:
        """Every parameter, a tied embedding once, multi-token prediction left out."""
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """What is published as "active parameters", the N of 6N.

        A dense model: every parameter. A mixture of experts: what one token is multiplied by, that is
        all but the routed experts it is not sent to and the input tables, of which it only reads a
        row (a tied embedding counts, as the head). DeepSeek-V3: 36.6 billion.
        """
        return sum(self.active_parts.values())

    @property
    def active_with_embedding(self) -> int:
        """``active`` with the input tables counted, as Qwen and Mistral publish it."""
        return self.total - self.experts + self.experts_active


_PARTS = (
    "embedding",
    "positions",
    "attention",
    "mlp",
    "shared",
    "router",
    "experts",
    "norms",
    "final_norm",
    "head",
)


def model_parameters(model: Model, padded_vocab: int | None = None) -> ModelParameters:
    """Parameters of ``model`` by part; ``padded_vocab`` (see the function) replaces its vocabulary."""
    vocab = model.vocab if padded_vocab is None else padded_vocab
    layers = [layer_parameters(layer, model.hidden) for layer in model.layers]
    final_norm = model.final_norm * model.hidden * (1 + model.final_norm_bias)
    embedding_norm = model.embedding_norm * model.hidden * (1 + model.final_norm_bias)
    head = 0 if model.tied_embeddings else vocab * model.hidden
    return ModelParameters(
        embedding=vocab * model.hidden,
        positions=model.positions * model.hidden,
        attention=sum(p.attention for p in layers),
        mlp=sum(p.mlp for p in layers),
        shared=sum(p.shared for p in layers),
        router=sum(p.router for p in layers),
        experts=sum(p.experts for p in layers),
        experts_active=sum(p.experts_active for p in layers),
        norms=sum(p.norms for p in layers),
        final_norm=final_norm + embedding_norm,
        head=head + model.head_bias * vocab,
        mtp=sum(mtp_parameters(layer, model.hidden) for layer in model.mtp),
        buffers=sum(_buffers(layer) for layer in model.layers),
        tied=model.tied_embeddings,
    )


def mtp_parameters(layer: Layer, hidden: int) -> int:
    """Parameters of one multi-token-prediction module (DeepSeek-V3 report, section 2.2).

    One layer, the projection of two hidden states to one (2h·h), a norm for each of the two and a final
    one. Embedding and head are the model's own.
    """
    return layer_parameters(layer, hidden).total + 2 * hidden * hidden + 3 * hidden


def _buffers(layer: Layer) -> int:
    return layer.mlp.experts if isinstance(layer.mlp, Moe) and layer.mlp.balance_bias else 0


def padded_vocab(vocab: int, tp: int, multiple: int = 128) -> int:
    """``vocab`` rounded up to a multiple of ``multiple · tp``, as Megatron-LM pads it.

    Source: Megatron-LM ``core/tokenizers/utils/build_tokenizer.py`` (``make_vocab_size_divisible_by``,
    128 by default); torchtitan does not pad. Raises ``InputError`` when a number is below 1.
    """
    if min(vocab, tp, multiple) < 1:
        raise InputError(f"vocabulary {vocab}, tp {tp} and multiple {multiple} must all be at least 1")
    step = multiple * tp
    return -(-vocab // step) * step
