"""The decoder: any stage of it, from a model's layers. Plain modules; ``parallel`` spreads them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as fn
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from meshplan.measure.reference.experts import MoeBlock
from meshplan.measure.reference.norms import RmsNorm, swiglu
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.model import Model

ROPE_BASE = 500_000.0
Core = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal softmax attention with grouped heads; (batch, heads, tokens, width)."""
    return fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class AttentionBlock(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, att: Attention, hidden: int) -> None:
        super().__init__()
        bias = att.qkv_bias
        self.width = att.head_dim
        self.wq = nn.Linear(hidden, att.q_width, bias=bias)
        self.wk = nn.Linear(hidden, att.k_width, bias=bias)
        self.wv = nn.Linear(hidden, att.v_width, bias=bias)
        self.wo = nn.Linear(att.out_width, hidden, bias=False)
        self.q_norm = RmsNorm(att.head_dim) if att.qk_norm == "head" else None
        self.k_norm = RmsNorm(att.head_dim) if att.qk_norm == "head" else None
        self.core: Core = causal_attention
        self.keep_core = True

    def forward(self, x: Any, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, hidden) → the same; ``cos`` and ``sin`` are (tokens, width)."""
        q, k, v = (self._heads(w(x)) for w in (self.wq, self.wk, self.wv))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.keep_core:
            out = self.core(q, k, v)
        else:
            from torch.utils.checkpoint import checkpoint

            out = checkpoint(self.core, q, k, v, use_reentrant=False)
        out = out.transpose(1, 2)
        return self.wo(out.reshape(*out.shape[:2], -1))  # type: ignore[no-any-return,unused-ignore]

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self.width)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions on (batch, tokens, heads, width), halves rotated against each other."""
    a, b = x.chunk(2, dim=-1)
    turned = torch.cat((-b, a), dim=-1)
    return x * cos[:, None].to(x.dtype) + turned * sin[:, None].to(x.dtype)


class MlpBlock(nn.Module):
    """Gated (SwiGLU) or plain (GELU) feed-forward block."""

    def __init__(self, mlp: Mlp, hidden: int, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.w1 = nn.Linear(hidden, mlp.width, bias=False)
        self.w3 = nn.Linear(hidden, mlp.width, bias=False) if mlp.gated else None
        self.w2 = nn.Linear(mlp.width, hidden, bias=False)
        self.keep_activation = True

    def forward(self, x: Any) -> torch.Tensor:
        """(batch, tokens, hidden) → the same."""
        gate = self.w1(x)
        up = None if self.w3 is None else self.w3(x)
        if self.keep_activation:
            return self._finish(gate, up)
        from torch.utils.checkpoint import checkpoint

        # The product after the activation belongs to the checkpoint: it is what keeps the activation.
        return checkpoint(self._finish, gate, up, use_reentrant=False)  # type: ignore[no-any-return,unused-ignore]

    def _finish(self, gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
        wide = fn.gelu(gate) if up is None else swiglu(gate, up, fused=self.fused)
        return self.w2(wide)  # type: ignore[no-any-return,unused-ignore]


class LayerBlock(nn.Module):
    """Attention and MLP with a norm before and a residual around each."""

    def __init__(self, layer: Layer, hidden: int, *, fused: bool, ep: int, etp: int) -> None:
        super().__init__()
        if not isinstance(layer.attention, Attention):
            raise TypeError("only grouped-query attention")
        self.attention_norm = RmsNorm(hidden)
        self.attention = AttentionBlock(layer.attention, hidden)
        self.mlp_norm = RmsNorm(hidden)
        self.shared: MlpBlock | None = None
        self.mlp: MlpBlock | MoeBlock
        if isinstance(layer.mlp, Moe):
            self.mlp = MoeBlock(layer.mlp, hidden, fused=fused, ep=ep, etp=etp)
            if layer.mlp.shared_width:
                self.shared = MlpBlock(Mlp(width=layer.mlp.shared_width), hidden, fused=fused)
        elif isinstance(layer.mlp, Mlp):
            self.mlp = MlpBlock(layer.mlp, hidden, fused=fused)
        self.keep_mlp = True

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, hidden) → the same."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y = self.mlp_norm(x)
        if self.keep_mlp:
            return x + self._feed(y)
        from torch.utils.checkpoint import checkpoint

        return x + checkpoint(self._feed, y, use_reentrant=False)

    def _feed(self, y: torch.Tensor) -> torch.Tensor:
        out = self.mlp(y)
        return out if self.shared is None else out + self.shared(y)  # type: ignore[no-any-return,unused-ignore]


class Table(nn.Module):
    """The token embedding; under tp split over the vocabulary, its output scattered under SP."""

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, hidden))
        self.tp_mesh: Any = None
        self.sp = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) → (batch, own tokens, hidden)."""
        table: Any = self.weight
        if self.tp_mesh is None:
            return fn.embedding(tokens, table)
        rows = table.to_local(grad_placements=[Shard(0)])
        start = rows.shape[0] * self.tp_mesh.get_local_rank()
        own = (tokens >= start) & (tokens < start + rows.shape[0])
        found = fn.embedding((tokens - start) * own, rows) * own.unsqueeze(-1).to(rows.dtype)
        placed = [Shard(1) if self.sp else Replicate()]
        whole = DTensor.from_local(found, self.tp_mesh, [Partial()], run_check=False)
        return whole.redistribute(placements=placed).to_local()  # type: ignore[no-any-return,unused-ignore]


class Decoder(nn.Module):
    """Layers ``start`` to ``stop`` of a model, with the embedding if first and the head if last."""

    def __init__(
        self, model: Model, start: int, stop: int, *, seq: int, fused: bool = False, ep: int = 1, etp: int = 1
    ) -> None:
        super().__init__()
        self.first, self.last = start == 0, stop == len(model.layers)
        self.tied = model.tied_embeddings and self.first and self.last
        self.embedding = Table(model.vocab, model.hidden) if self.first else None
        self.layers = nn.ModuleDict({
            str(i): LayerBlock(model.layers[i], model.hidden, fused=fused, ep=ep, etp=etp)
            for i in range(start, stop)
        })  # fmt: skip
        self.norm = RmsNorm(model.hidden) if self.last else None
        self.head = nn.Linear(model.hidden, model.vocab, bias=False) if self.last and not self.tied else None
        att = model.layers[start].attention
        width = att.head_dim if att is not None else 64
        self.rope_width, self.seq = width, seq
        self.register_buffer("cos", torch.empty(seq, width), persistent=False)
        self.register_buffer("sin", torch.empty(seq, width), persistent=False)
        self.whole: set[str] = set()
        """Layers recomputed whole."""
        self.context_fn: Any = None

    def set_positions(self, positions: torch.Tensor) -> None:
        """Fill the rotary tables for these token positions."""
        half = torch.arange(0, self.rope_width, 2, dtype=torch.float32)
        angle = positions.float()[:, None] * torch.exp(-math.log(ROPE_BASE) * half / self.rope_width)
        angle = torch.cat([angle, angle], dim=-1)
        self.cos.copy_(angle.cos())
        self.sin.copy_(angle.sin())

    def forward(self, x: torch.Tensor) -> Any:
        """Token ids (batch, tokens) or a stage's input → a stage's output or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for name, layer in self.layers.items():
            if name in self.whole:
                from torch.utils.checkpoint import checkpoint

                more = {} if self.context_fn is None else {"context_fn": self.context_fn}
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False, **more)
            else:
                x = layer(x, self.cos, self.sin)
        if self.norm is None:
            return x
        return self.logits(self.norm(x))

    def logits(self, x: torch.Tensor) -> Any:
        """Head; under tp a DTensor split over the vocabulary."""
        if self.head is not None:
            return self.head(x)
        assert self.embedding is not None
        table: Any = self.embedding.weight
        mesh = self.embedding.tp_mesh
        if mesh is None:
            return fn.linear(x, table)
        placed = [Shard(1) if self.embedding.sp else Replicate()]
        spread = DTensor.from_local(x, mesh, placed, run_check=False)
        return fn.linear(spread.redistribute(placements=[Replicate()]), table)
