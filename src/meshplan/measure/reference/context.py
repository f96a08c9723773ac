"""Attention over a sequence that several ranks share: ring and all-gather, zigzag-balanced.

A rank of ``cp`` holds chunks ``r`` and ``2·cp - 1 - r`` of the sequence, so that causal work is even
(Llama 3, arXiv 2407.21783, 3.3.2). Blocks of attention are merged by their log-sum-exp; with the merged
output and log-sum-exp each block's backward is exact on its own (ring attention, arXiv 2310.01889).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

aten = torch.ops.aten


def zigzag(seq: int, ranks: int, rank: int) -> torch.Tensor:
    """Positions that ``rank`` holds, ascending."""
    size = seq // (2 * ranks)
    one = torch.arange(rank * size, (rank + 1) * size)
    last = 2 * ranks - 1 - rank
    return torch.cat([one, torch.arange(last * size, (last + 1) * size)])


def _forward(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """Output and log-sum-exp of one block; tensors are (batch, heads, tokens, width)."""
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        return out, lse
    # Not run here: there is no GPU where this was written.
    rep = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
    found = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return found[0], found[1]


def _backward(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, causal: bool) -> tuple[Any, Any, Any]:
    if q.device.type == "cpu":
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal
        )
        return found[0], found[1], found[2]
    rep = q.shape[1] // k.shape[1]
    wide_k, wide_v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
    none = torch.empty(0, dtype=torch.int32, device=q.device)
    seed = torch.empty(0, dtype=torch.int64, device=q.device)
    dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
        grad, q, wide_k, wide_v, out, lse, none, none, q.shape[2], k.shape[2], 0.0, causal, seed, seed
    )
    b, _, s, d = k.shape
    return dq, dk.view(b, -1, rep, s, d).sum(2), dv.view(b, -1, rep, s, d).sum(2)


def _block(rank: int, other: int, size: int) -> tuple[slice, slice, bool] | None:
    """Which of this rank's queries meet which of ``other``'s keys, and whether causally."""
    whole, half, tail = slice(0, 2 * size), slice(0, size), slice(size, 2 * size)
    if other == rank:
        return whole, whole, True
    return (whole, half, False) if other < rank else (tail, whole, False)


class _Merged:
    """The running softmax over blocks, in fp32."""

    def __init__(self, q: Any) -> None:
        self.out = torch.zeros_like(q, dtype=torch.float32)
        self.lse = torch.full(q.shape[:-1], -torch.inf, dtype=torch.float32, device=q.device)

    def add(self, rows: slice, out: Any, lse: Any) -> None:
        old, new = self.lse[:, :, rows], lse.float()
        both = torch.logaddexp(old, new)
        self.out[:, :, rows] = (
            self.out[:, :, rows] * (old - both).exp()[..., None] + out.float() * (new - both).exp()[..., None]
        )
        self.lse[:, :, rows] = both

    def result(self, kind: torch.dtype) -> Any:
        """The output, laid out token by token as the projection after attention reads it."""
        whole = torch.empty_like(self.out.transpose(1, 2), dtype=kind, memory_format=torch.contiguous_format)
        return whole.copy_(self.out.transpose(1, 2)).transpose(1, 2)


def _pass_on(tensor: Any, group: Any) -> Any:
    """Send to the next rank of the ring, receive from the one before."""
    ranks = dist.get_process_group_ranks(group)
    at = ranks.index(dist.get_rank())
    into = torch.empty_like(tensor)
    ops = [
        dist.P2POp(dist.isend, tensor, ranks[(at + 1) % len(ranks)], group=group),
        dist.P2POp(dist.irecv, into, ranks[at - 1], group=group),
    ]
    with torch.profiler.record_function("cp:ring"):
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return into


class RingAttention(torch.autograd.Function):
    """Keys and values go round; forward ``cp - 1`` hops, backward as many and the gradients' ``cp``."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, group: Any) -> Any:
        """Shapes (batch, heads, tokens, width); returns the output in ``q``'s type."""
        ctx.group = group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        size, merged, kv = q.shape[2] // 2, _Merged(q), torch.stack([k, v])
        for step in range(ranks):
            _add(merged, q, kv, _block(rank, (rank - step) % ranks, size))
            if step < ranks - 1:
                kv = _pass_on(kv, group)
        out, lse = merged.result(q.dtype), merged.lse
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of q, k and v."""
        q, k, v, out, lse = ctx.saved_tensors
        grad, group = grads[0].contiguous(), ctx.group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        size, dq = q.shape[2] // 2, torch.zeros_like(q, dtype=torch.float32)
        kv = torch.stack([k, v])
        dkv = torch.zeros_like(kv, dtype=torch.float32)
        for step in range(ranks):
            _grow(dq, dkv, grad, q, kv, out, lse, _block(rank, (rank - step) % ranks, size))
            if step < ranks - 1:
                kv = _pass_on(kv, group)
            dkv = _pass_on(dkv, group)
        dkv = dkv.to(k.dtype)
        return dq.to(q.dtype), dkv[0], dkv[1], None


class GatheredAttention(torch.autograd.Function):
    """Keys and values of all ranks gathered in forward and again in backward, gradients scattered."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, group: Any) -> Any:
        """Shapes (batch, heads, tokens, width)."""
        ctx.group = group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        everyone, merged, size = _gather(k, v, group, ranks), _Merged(q), q.shape[2] // 2
        for other in range(ranks):
            _add(merged, q, everyone[other], _block(rank, other, size))
        out, lse = merged.result(q.dtype), merged.lse
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of q, k and v."""
        q, k, v, out, lse = ctx.saved_tensors
        grad, group = grads[0].contiguous(), ctx.group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        everyone, size = _gather(k, v, group, ranks), q.shape[2] // 2
        dq = torch.zeros_like(q, dtype=torch.float32)
        partial = torch.zeros_like(everyone, dtype=torch.float32)
        for other in range(ranks):
            block = _block(rank, other, size)
            _grow(dq, partial[other], grad, q, everyone[other], out, lse, block)
        mine = torch.empty_like(partial[0])
        dist.reduce_scatter_tensor(mine, partial.view(-1, *mine.shape[1:]), group=group)
        mine = mine.to(k.dtype)
        return dq.to(q.dtype), mine[0], mine[1], None


def _gather(k: Any, v: Any, group: Any, ranks: int) -> Any:
    kv = torch.stack([k, v])
    everyone = kv.new_empty((ranks, *kv.shape))
    dist.all_gather_into_tensor(everyone.view(-1, *kv.shape[1:]), kv, group=group)
    return everyone


def _add(merged: _Merged, q: Any, kv: Any, block: tuple[slice, slice, bool] | None) -> None:
    if block is None:
        return
    rows, keys, causal = block
    out, lse = _forward(q[:, :, rows], kv[0][:, :, keys], kv[1][:, :, keys], causal)
    merged.add(rows, out, lse)


def _grow(
    dq: Any, dkv: Any, grad: Any, q: Any, kv: Any, out: Any, lse: Any,
    block: tuple[slice, slice, bool] | None,
) -> None:  # fmt: skip
    """Add one block's gradients to ``dq`` and ``dkv``."""
    if block is None:
        return
    rows, keys, causal = block
    a, b, c = _backward(
        grad[:, :, rows], q[:, :, rows], kv[0][:, :, keys], kv[1][:, :, keys],
        out[:, :, rows], lse[:, :, rows], causal,
    )  # fmt: skip
    dq[:, :, rows] += a
    dkv[0][:, :, keys] += b
    dkv[1][:, :, keys] += c
