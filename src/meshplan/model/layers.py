"""What a layer is made of: attention and MLP kinds with their dimensions, nothing about GPUs.

A model is a list of layers, each with its own attention and MLP, never one layer times L.
All sizes are counts (heads, features, experts); nothing here is in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QkNorm = Literal["none", "head", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Softmax attention with grouped KV heads (MHA when ``kv_heads == heads``, MQA when 1)."""

    heads: int
    kv_heads: int
    head_dim: int
    """Width of a query and key head."""
    v_head_dim: int | None = None
    """Width of a value head; ``None``: as ``head_dim``."""
    window: int | None = None
    """Tokens a query sees (sliding window or chunk); ``None``: all earlier ones."""
    chunked: bool = False
    """``window`` cuts the sequence into chunks that do not see each other (Llama 4), instead of sliding."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNorm = "none"
    """``head``: one weight of ``head_dim`` each for q and k; ``full``: over all heads' features."""
    qk_norm_bias: bool = False
    """The q and k norms are LayerNorms, with a bias (Phi)."""
    shared_kv: bool = False
    """Values are the keys: there is no value projection (Gemma 4's global layers)."""
    gate: bool = False
    """An output gate projected from the input, as wide as the attention output."""
    head_gate: bool = False
    """An output gate of one number a head (Step-3.5)."""
    sinks: bool = False
    """One learned sink logit a head (gpt-oss)."""

    @property
    def v_dim(self) -> int:
        """Width of one value head."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def q_width(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_dim

    @property
    def k_width(self) -> int:
        """Features of all key heads."""
        return self.kv_heads * self.head_dim

    @property
    def v_width(self) -> int:
        """Features of all value heads."""
        return self.kv_heads * self.v_dim

    @property
    def out_width(self) -> int:
        """Features of the attention output, which the output projection reads."""
        return self.heads * self.v_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): K and V made from one low-rank latent (DeepSeek-V2)."""

    heads: int
    q_rank: int | None
    """Rank of the query latent; ``None``: queries are projected directly."""
    kv_rank: int
    nope_dim: int
    """Head width of q and k without rotary embedding."""
    rope_dim: int
    """Head width of q and k with rotary embedding; the key part is shared by all heads."""
    v_dim: int
    qkv_bias: bool = False
    """A bias on the down projections (``attention_bias`` of DeepSeek's configuration)."""
    out_bias: bool = False
    window: int | None = None

    @property
    def kv_heads(self) -> int:
        """Training materialises K and V for every head."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """Width of one query or key head."""
        return self.nope_dim + self.rope_dim

    @property
    def q_width(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_dim

    @property
    def k_width(self) -> int:
        """Features of all key heads, as materialised in training."""
        return self.heads * self.head_dim

    @property
    def v_width(self) -> int:
        """Features of all value heads, as materialised in training."""
        return self.heads * self.v_dim

    @property
    def out_width(self) -> int:
        """Features of the attention output."""
        return self.heads * self.v_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class Mlp:
    """A dense feed-forward block: gated (SwiGLU, three matrices) or plain (two)."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Moe:
    """A mixture of experts: ``topk`` of ``experts`` for every token, and shared experts for all."""

    experts: int
    topk: int
    width: int
    """Width of one routed expert."""
    gated: bool = True
    bias: bool = False
    """Biases in every routed expert (gpt-oss)."""
    shared_width: int = 0
    """Total width of the shared experts; 0: none."""
    shared_gate: bool = False
    """A learned gate (hidden → 1) on the shared expert's output."""
    router_bias: bool = False
    """One bias an expert in the router that counts as a parameter (gpt-oss)."""
    balance_bias: bool = False
    """One bias an expert, adjusted without gradient to balance the load (DeepSeek-V3): a buffer."""
    groups: int = 1
    """Groups of experts that routing first chooses among (``n_group`` of DeepSeek-V3)."""
    groups_used: int = 1
    """How many of them a token may use (``topk_group``)."""
    router_extra: int = 0
    """Further weights of the router (Gemma 4: a scale of its input and one for each expert)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One transformer layer: attention, then an MLP of some kind, with its norms.

    ``attention`` or ``mlp`` may be ``None``: pruned models (Nemotron-NAS) leave either out.
    """

    attention: Attention | LatentAttention | None
    mlp: Mlp | Moe | None
    norms: int = 2
    """Norm weights of the hidden width in this layer (Gemma 2 and 3 have four)."""
    extra_norm: int = 0
    """Norm weights of other widths, summed (sub-norms inside attention or MLP)."""
    norm_bias: bool = False
    """LayerNorm (weight and bias) instead of RMSNorm (weight only)."""
    parallel: bool = False
    """Attention and MLP read the same input and are added together (GPT-NeoX, Phi)."""
