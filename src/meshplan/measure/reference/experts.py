"""A mixture of experts over ranks: route, all-to-all, grouped products, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as fn
from torch import nn

from meshplan.measure.reference.norms import local, swiglu
from meshplan.model.layers import Moe


class Exchange(torch.autograd.Function):
    """All-to-all of rows; backward is the all-to-all the other way."""

    @staticmethod
    def forward(ctx: Any, x: Any, sent: list[int], received: list[int], group: Any) -> Any:
        """``sent`` and ``received``: rows to and from each rank of ``group``."""
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Rows go home."""
        return _exchange(grads[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(x: Any, sent: list[int], received: list[int], group: Any) -> Any:
    out = x.new_empty((sum(received), x.shape[1]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


class GatherRows(torch.autograd.Function):
    """All-gather of as many rows as each rank has (padded to the most); backward reduce-scatters."""

    @staticmethod
    def forward(ctx: Any, x: Any, rows: list[int], group: Any) -> Any:
        """``rows`` of each rank of ``group``; returns all of them, rank after rank."""
        ctx.rows, ctx.group = rows, group
        most, ranks = max(rows), len(rows)
        padded = x.new_zeros((most, x.shape[1]))
        padded[: x.shape[0]] = x
        out = x.new_empty((ranks * most, x.shape[1]))
        dist.all_gather_into_tensor(out, padded, group=group)
        if len(set(rows)) == 1:
            return out
        return torch.cat([out[i * most : i * most + n] for i, n in enumerate(rows)])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Sum over ranks, each keeping its own rows."""
        return scatter_rows(grads[0], ctx.rows, ctx.group), None, None


class ScatterRows(torch.autograd.Function):
    """Sum of partial results over ranks, each keeping its own rows; backward all-gathers."""

    @staticmethod
    def forward(ctx: Any, x: Any, rows: list[int], group: Any) -> Any:
        """The reverse of ``GatherRows``."""
        ctx.rows, ctx.group = rows, group
        return scatter_rows(x, rows, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Rows of all ranks."""
        return GatherRows.apply(grads[0].contiguous(), ctx.rows, ctx.group), None, None


def scatter_rows(x: Any, rows: list[int], group: Any) -> Any:
    """Reduce-scatter with unequal rows, padded to the most."""
    most = max(rows)
    if len(set(rows)) == 1:
        padded = x.contiguous()
    else:
        padded = x.new_zeros((len(rows) * most, x.shape[1]))
        start = 0
        for i, n in enumerate(rows):
            padded[i * most : i * most + n] = x[start : start + n]
            start += n
    out = x.new_empty((most, x.shape[1]))
    dist.reduce_scatter_tensor(out, padded, group=group)
    return out[: rows[dist.get_rank(group)]]


class Experts(nn.Module):
    """The routed experts of one rank: gated MLPs held as three stacked matrices."""

    def __init__(self, moe: Moe, hidden: int, *, ep: int = 1, etp: int = 1, fused: bool = False) -> None:
        super().__init__()
        held, width = moe.experts // ep, moe.width // etp
        self.fused = fused
        self.w1 = nn.Parameter(torch.empty(held, hidden, width))
        self.w3 = nn.Parameter(torch.empty(held, hidden, width))
        self.w2 = nn.Parameter(torch.empty(held, width, hidden))
        self.keep_activation = True

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """``x``: rows grouped by expert, ``ends``: where each group ends (int32)."""
        gate = fn.grouped_mm(x, self.w1, offs=ends)
        up = fn.grouped_mm(x, self.w3, offs=ends)

        def finish(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return fn.grouped_mm(swiglu(a, b, fused=self.fused), self.w2, offs=ends)

        if self.keep_activation:
            return finish(gate, up)
        from torch.utils.checkpoint import checkpoint

        return checkpoint(finish, gate, up, use_reentrant=False)  # type: ignore[no-any-return,unused-ignore]


class MoeBlock(nn.Module):
    """Router, dispatch, experts, combine; tokens in are this rank's own."""

    def __init__(self, moe: Moe, hidden: int, *, fused: bool, ep: int = 1, etp: int = 1) -> None:
        super().__init__()
        self.moe = moe
        self.router = nn.Parameter(torch.empty(moe.experts, hidden))
        self.experts = Experts(moe, hidden, ep=ep, etp=etp, fused=fused)
        self.partial = False
        self.balanced = False
        """Send every expert equally many tokens, whatever the router says (its weights still count)."""
        self.ep_group: Any = None
        self.etp_group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, hidden) → the same shape."""
        rows = x.reshape(-1, x.shape[-1])
        weights, order, counts = self._route(rows)
        k = self.moe.topk
        sent = rows[order // k]
        out = self._visit(sent, counts)
        copies = out[torch.argsort(order)].view(-1, k, rows.shape[-1])
        return torch.bmm(weights.unsqueeze(1), copies).view_as(x)

    def _route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | list[int]]:
        """Weights (tokens, k), the order of copies by expert, and copies for each expert."""
        moe = self.moe
        scores = fn.linear(rows, local(self.router, partial=self.partial)).float().softmax(-1)
        if not self.balanced:
            weights, chosen = scores.topk(moe.topk, dim=-1)
            flat = chosen.reshape(-1)
            counts: torch.Tensor | list[int] = torch.bincount(flat, minlength=moe.experts)
        else:
            n = rows.shape[0]
            chosen = torch.arange(n * moe.topk, device=rows.device).view(n, moe.topk) % moe.experts
            weights = scores.gather(1, chosen)
            flat = chosen.reshape(-1)
            base, extra = divmod(n * moe.topk, moe.experts)
            counts = [base + (e < extra) for e in range(moe.experts)]
        weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(rows.dtype), torch.argsort(flat, stable=True), counts

    def _visit(self, x: torch.Tensor, counts: torch.Tensor | list[int]) -> torch.Tensor:
        """Rows grouped by expert go to the experts' ranks, through them, and come back in order."""
        ep = 1 if self.ep_group is None else dist.get_world_size(self.ep_group)
        etp = 1 if self.etp_group is None else dist.get_world_size(self.etp_group)
        held = self.moe.experts // ep
        table = self._received(counts, ep, held)
        mine = counts if isinstance(counts, list) else counts.tolist()
        sent = [sum(mine[i * held : (i + 1) * held]) for i in range(ep)]
        received = [sum(row) for row in table]
        if ep > 1:
            x = Exchange.apply(x, sent, received, self.ep_group)
        blocks = table
        rows = [sum(received)]
        if etp > 1:
            tables = self._tables(table, etp)
            rows = [sum(map(sum, t)) for t in tables]
            x = GatherRows.apply(x, rows, self.etp_group)
            blocks = [row for t in tables for row in t]
        order = _expert_order(blocks, x.device)
        per_expert = [sum(row[e] for row in blocks) for e in range(held)]
        ends = torch.tensor(per_expert, device=x.device).cumsum(0).to(torch.int32)
        grouped = x if order is None else x[order]
        y = self.experts(grouped, ends)
        if order is not None:
            y = y[torch.argsort(order)]
        if etp > 1:
            y = ScatterRows.apply(y, rows, self.etp_group)
        if ep > 1:
            y = Exchange.apply(y, received, sent, self.ep_group)
        return y

    def _received(self, counts: torch.Tensor | list[int], ep: int, held: int) -> list[list[int]]:
        """Rows that each rank of ep sends to each expert here."""
        if isinstance(counts, list):  # balanced: every rank sends alike
            at = 0 if self.ep_group is None else dist.get_rank(self.ep_group)
            return [counts[at * held : (at + 1) * held] for _ in range(ep)]
        if ep == 1:
            return [counts.tolist()]
        into = torch.empty_like(counts)
        dist.all_to_all_single(into, counts.contiguous(), group=self.ep_group)
        found: list[list[int]] = into.view(ep, held).tolist()
        return found

    def _tables(self, table: list[list[int]], etp: int) -> list[list[list[int]]]:
        """The tables of all ranks of etp."""
        if self.balanced:
            return [table] * etp
        mine = torch.tensor(table, device=self.router.device)
        into = mine.new_empty((etp * mine.shape[0], mine.shape[1]))
        dist.all_gather_into_tensor(into, mine, group=self.etp_group)
        found: list[list[list[int]]] = into.view(etp, *mine.shape).tolist()
        return found


def _expert_order(blocks: list[list[int]], device: torch.device) -> torch.Tensor | None:
    """Rows in the order of experts, where they came as (source, expert); ``None``: they are already."""
    if len(blocks) == 1:
        return None
    start, spans = 0, []
    for row in blocks:
        for e, n in enumerate(row):
            spans.append((e, start, n))
            start += n
    spans.sort(key=lambda s: s[0])
    return torch.cat([torch.arange(a, a + n, device=device) for _, a, n in spans])
