"""FLOP per token: the forward pass by part, and the training step in the conventions sources use.

A multiply and an add are two FLOP; a matrix of n weights costs 2n a token. Norms, activations,
rotary embedding, softmax and the embedding lookup are left out (under 1 % of a layer of hidden width
4096 or more).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from meshplan.errors import InputError, UnknownNameError
from meshplan.model.counts import model_parameters
from meshplan.model.layers import Attention, LatentAttention, Layer, Mlp, Moe
from meshplan.model.model import Model

Convention = Literal["causal", "full", "palm", "6n"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardFlops:
    """Forward FLOP of one token, by part; the parts sum to ``total``.

    ``attention_linear``: projections; ``attention_core``: scores and weighted values; ``mlp``: dense MLP;
    ``shared``: shared experts; ``router``; ``experts``: the routed experts one token visits; ``head``.
    """

    attention_linear: float = 0.0
    attention_core: float = 0.0
    mlp: float = 0.0
    shared: float = 0.0
    router: float = 0.0
    experts: float = 0.0
    head: float = 0.0

    @property
    def moe(self) -> float:
        """Shared experts, router and routed experts."""
        return self.shared + self.router + self.experts

    @property
    def linear(self) -> float:
        """Every matrix multiplication with a weight except the head: all but ``attention_core``."""
        return self.attention_linear + self.mlp + self.moe

    @property
    def total(self) -> float:
        """The whole forward pass of one token."""
        return self.linear + self.attention_core + self.head

    def __add__(self, other: ForwardFlops) -> ForwardFlops:
        return ForwardFlops(**{f: getattr(self, f) + getattr(other, f) for f in self.__slots__})

    def __mul__(self, times: float) -> ForwardFlops:
        return ForwardFlops(**{f: getattr(self, f) * times for f in self.__slots__})


def visible_tokens(attention: Attention | LatentAttention, seq: int, *, causal: bool = True) -> float:
    """Keys a query meets, on average over a sequence of ``seq`` tokens.

    Causal: ``seq / 2``; with a sliding window w shorter than the sequence ``w − w(w−1) / 2·seq``
    (Megatron-Bridge ``flop_utils.py``); with chunks of c tokens ``c / 2``. Not causal: ``seq``, whatever the
    window, as torchtitan counts (``models/utils.py``, commit b5bcd76c) and PaLM's formula does.
    """
    window = attention.window
    if window is None or window >= seq or not causal:
        return seq / 2 if causal else float(seq)
    if isinstance(attention, Attention) and attention.chunked:
        whole, rest = divmod(seq, window)
        return (whole * window**2 + rest**2) / (2 * seq)
    return window - window * (window - 1) / (2 * seq)


def layer_flops(layer: Layer, hidden: int, seq: int, *, causal: bool = True) -> ForwardFlops:
    """Forward FLOP of one token in ``layer``, averaged over a sequence of ``seq`` tokens."""
    linear = core = mlp = shared = router = experts = 0.0
    if layer.attention is not None:
        visible = visible_tokens(layer.attention, seq, causal=causal)
        linear = 2.0 * attention_weights(layer.attention, hidden)
        core = 2.0 * visible * (layer.attention.q_width + layer.attention.out_width)
    match layer.mlp:
        case Mlp() as dense:
            mlp = 2.0 * hidden * dense.width * (3 if dense.gated else 2)
        case Moe() as moe:
            matrices = 3 if moe.gated else 2
            experts = 2.0 * hidden * moe.width * matrices * moe.topk
            shared = 2.0 * hidden * moe.shared_width * matrices
            router = 2.0 * hidden * (moe.experts + moe.shared_gate)
        case None:
            pass
    return ForwardFlops(
        attention_linear=linear, attention_core=core, mlp=mlp, shared=shared, router=router, experts=experts
    )


def attention_weights(attention: Attention | LatentAttention, hidden: int) -> int:
    """Weights of the attention projections, without biases and norms: half their FLOP a token."""
    match attention:
        case Attention() as a:
            v_width = 0 if a.shared_kv else a.v_width
            gates = a.out_width * a.gate + a.heads * a.head_gate
            return hidden * (a.q_width + a.k_width + v_width + gates + a.out_width)
        case LatentAttention() as m:
            q = hidden * m.q_width if m.q_rank is None else m.q_rank * (hidden + m.q_width)
            kv = hidden * (m.kv_rank + m.rope_dim) + m.kv_rank * m.heads * (m.nope_dim + m.v_dim)
            return q + kv + m.out_width * hidden


def forward_flops(model: Model, seq: int, *, causal: bool = True, vocab: int | None = None) -> ForwardFlops:
    """Forward FLOP of one token through ``model``, averaged over a sequence of ``seq`` tokens.

    ``vocab`` replaces the model's (``padded_vocab``). Multi-token prediction is left out (``mtp_flops``).
    Raises ``InputError`` for a ``seq`` below 1.
    """
    if seq < 1:
        raise InputError(f"seq must be at least 1, not {seq}")
    flops = ForwardFlops(head=2.0 * model.hidden * (vocab or model.vocab))
    for kind, layer in enumerate(model.kinds):
        if count := model.kind_ids.count(kind):
            flops += layer_flops(layer, model.hidden, seq, causal=causal) * count
    return flops


def mtp_flops(model: Model, seq: int, *, causal: bool = True, vocab: int | None = None) -> ForwardFlops:
    """Forward FLOP a token of the multi-token-prediction modules: layer, 2h → h projection and head each."""
    flops = ForwardFlops()
    for layer in model.mtp:
        joined = ForwardFlops(mlp=4.0 * model.hidden**2, head=2.0 * model.hidden * (vocab or model.vocab))
        flops += layer_flops(layer, model.hidden, seq, causal=causal) + joined
    return flops


def flop_per_token(
    model: Model, seq: int, convention: Convention = "causal", *, mtp: bool = False, vocab: int | None = None
) -> float:
    """Training FLOP of one token, forward and backward, recompute left out, as sources count it.

    ``causal``: Megatron-LM since March 2025 and NeMo: 3 × the forward pass, a causal query meeting half
    the sequence, the router left out. ``full``: torchtitan: 6 × the active parameters without the input
    embedding + attention over the whole sequence. ``palm``: 6N + attention over the whole sequence
    (PaLM, appendix B). ``6n``: 6N alone. N is ``ModelParameters.active``; windows count in ``causal``
    alone. ``mtp`` adds the multi-token-prediction modules, ``vocab`` replaces the vocabulary.
    Raises ``UnknownNameError`` for another convention, ``InputError`` for a ``seq`` below 1.
    """
    if convention not in CONVENTIONS:
        raise UnknownNameError("FLOP convention", convention, CONVENTIONS, f"one of {', '.join(CONVENTIONS)}")
    forward = forward_flops(model, seq, causal=convention == "causal", vocab=vocab)
    extra = mtp_flops(model, seq, causal=convention == "causal", vocab=vocab) if mtp else ForwardFlops()
    if convention == "causal":
        return 3.0 * (forward.total - forward.router + extra.total - extra.router)
    parameters = model_parameters(model, vocab)
    n: float = parameters.active + (extra.linear + extra.head) / 2
    if convention == "full" and not parameters.tied:
        n -= parameters.active_parts["embedding"]
    core = forward.attention_core + extra.attention_core
    return 6.0 * n + (0.0 if convention == "6n" else 3.0 * core)
