"""Activation memory of a GPT as Korthikanti et al. 2022 (arXiv 2205.05198) count it, in closed form.

For a layer in 16 bits with dropout, GeLU of four times the hidden width, as many KV heads as heads and
scores kept in memory, equations 1 to 6 give bytes of one micro-batch of b sequences of s tokens::

    no sequence parallelism   s·b·h·(10 + 24/t + 5·a·s/(h·t))
    sequence parallelism      s·b·h·(34 + 5·a·s/h) / t
    core attention recomputed the term 5·a·s/h is gone
    the layer recomputed      2·s·b·h

The first rank of a pipeline holds as many micro-batches as there are ranks, so all L layers' worth,
and with v stages a rank 1 + (p - 1)/(p·v) of that (section 4.2.3). Left out, as in the paper's figure 1:
embedding dropout, final norm, head and logits (section 4.3: under 1 % from 22 B parameters on). For
today's layers (SwiGLU, grouped KV heads, flash attention) use the full model.
"""

from __future__ import annotations

from typing import Literal

Recomputed = Literal["none", "selective", "full"]


def layer_bytes(
    *,
    seq: int,
    mbs: int,
    hidden: int,
    heads: int,
    tp: int = 1,
    sp: bool = False,
    recompute: Recomputed = "none",
) -> float:
    """Bytes one layer keeps for the backward pass of one micro-batch, on one of ``tp`` ranks."""
    stream = float(seq * mbs * hidden)
    if recompute == "full":
        return 2 * stream
    scores = 0.0 if recompute == "selective" else 5.0 * heads * seq / hidden
    return stream * ((34 + scores) / tp if sp else 10 + (24 + scores) / tp)


def first_rank_bytes(
    *,
    layers: int,
    seq: int,
    mbs: int,
    hidden: int,
    heads: int,
    tp: int = 1,
    sp: bool = False,
    pp: int = 1,
    vp: int = 1,
    recompute: Recomputed = "none",
) -> float:
    """Bytes of activations on a rank of the first pipeline stage, with enough micro-batches to fill it."""
    one = layer_bytes(seq=seq, mbs=mbs, hidden=hidden, heads=heads, tp=tp, sp=sp, recompute=recompute)
    return one * layers * (1 + (pp - 1) / (pp * vp) if vp > 1 else 1)
