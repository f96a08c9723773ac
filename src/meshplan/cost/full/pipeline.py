"""What the pipelines of plans look like to the simulation, and what a simulated step costs.

Every stage is priced by the equations that price types of rank; then the schedule's own order, not a
closed form, says how long the pipeline takes and how many micro-batches it keeps alive. Gradients are
reduced by each rank as soon as it is done, so that only the rank which is last makes the step longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshplan.cost.costs import Bools, Costs, Floats
from meshplan.cost.full.context import Context
from meshplan.cost.full.layers import Priced, price_layers
from meshplan.cost.full.memory import peak, recomputed_share
from meshplan.cost.full.narrow import rows
from meshplan.cost.full.stage_cuts import Cut, Cuts, cut_up
from meshplan.cost.full.stages import even_layout
from meshplan.cost.full.step import (
    BESIDE,
    last_backwards,
    part_means,
    reduction_window,
    shards_of,
    shared_embedding,
)
from meshplan.cost.full.sync import Shards, Transfers, beyond, gradient_transfers, reductions
from meshplan.cost.full.topology import Group
from meshplan.cost.full.work import hop_seconds, paces, rank_work
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import Ints, Plans
from meshplan.schedule.closed_form import PAIRED, SEARCHED, step_time
from meshplan.schedule.result import Simulation
from meshplan.schedule.simulate import simulate
from meshplan.schedule.steady import order_of, peak_alive, pipeline_ends

WHOLE_BACKWARD = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.LOOPED_BFS)
"""Schedules whose backward is never split: the last one goes back through all stages."""
ONCE = ("optimizer", "step overhead")
"""Parts of a step that come after everything else."""


def floor_seconds(costs: Costs) -> Floats:
    """Seconds below which no simulation of these prices can be: the busiest rank's work, and what comes once.

    Left out is what closed forms say of filling, draining, waiting and reducing.
    """
    sure = [v for name, v in costs.time.items() if name not in ("bubble", "pp", "dp", "straggler")]
    slower = costs.time.get("straggler", np.zeros(len(costs.step_s)))
    return np.asarray(sum(sure)) * (1 + slower / (costs.step_s - slower))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipelines:
    """The pipelines of a table of plans; arrays are padded to the longest with zeros."""

    plans: Plans
    layers: int
    """Of the model."""
    micro_batches: Ints
    home: Ints
    """(plans, stages): the rank of every stage, -1 where there is none."""
    forward: Floats
    """(plans, stages), seconds of one micro-batch, as the next two."""
    backward_input: Floats
    weight: Floats
    hop: Floats
    """Seconds from a stage to the next on another rank."""
    holds: Bools
    """Whether sending holds the sender."""
    pairs: bool
    """Whether DualPipe's pairs of forward and backward run as one: their durations are what is left where
    each hides the other's all-to-alls, so that a pair takes as long as both."""
    searched: Bools
    """Whether the software searches the order of passes."""
    tail: Floats
    """(plans, ranks): seconds a rank reduces gradients after its last backward."""
    gather: Floats
    """Seconds that gathering parameters delays the first forward."""
    activations: Floats
    """(plans, stages): bytes one micro-batch keeps."""
    saved: Floats
    """(plans, stages): bytes fewer it would keep for each layer recomputed on the rank."""
    memory: dict[str, Floats]
    """(plans, ranks): bytes by part, activations of micro-batches alive left out."""
    fragmentation: float
    work: dict[str, Floats]
    """Seconds of one micro-batch by part, averaged over ranks."""

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def busy(self) -> Floats:
        """(plans, ranks): seconds every rank works for all micro-batches."""
        return np.asarray(self.micro_batches[:, None] * self._on_ranks(self._work))

    @property
    def _work(self) -> Floats:
        return self.forward + self.backward_input + self.weight

    def _on_ranks(self, of_stages: Floats) -> Floats:
        """(plans, ranks): a rank's stages together; of DualPipe half of its two."""
        return _on_ranks(self.plans, self.home, of_stages, self.tail.shape[1])

    def bounds(self, costs: Costs) -> Floats:
        """Seconds below which no simulation of these plans, priced as ``costs``, can be."""
        slower = costs.time.get("straggler", np.zeros(len(self)))
        others = self._reduced() + self.gather + np.asarray(sum(costs.time[name] for name in ONCE))
        return np.asarray(others * (1 + slower / (costs.step_s - slower)))

    def _reduced(self) -> Floats:
        """Before when no gradients can be reduced, whatever the order: for each rank what comes before its
        first forward, all its work, and the way of its last gradient to the first stage."""
        pp = self.plans.pp
        ranks = self.tail.shape[1]
        real = np.arange(ranks) < pp[:, None]
        first_round = self.home[:, :ranks] == np.arange(ranks)
        zero = np.zeros((len(self), 1))

        def before(of_stages: Floats) -> Floats:
            """(plans, ranks): Σ over the stages before a rank's first, and hops between them."""
            each = np.where(first_round, of_stages[:, :ranks] + self.hop[:, None], 0.0)
            found = np.concatenate([zero, np.cumsum(each, axis=1)[:, :-1]], axis=1)
            both = self.plans.schedule == Schedule.DUALPIPE
            return np.where(both[:, None], np.minimum(found, _mirrored(self.plans, found)), found)

        # Where no rank waits for others before its optimizer step, time counts from each rank's own start.
        head, busy = np.where(self.searched[:, None], 0.0, before(self.forward)), self.busy
        whole = np.isin(self.plans.schedule, [int(s) for s in WHOLE_BACKWARD])[:, None]
        own = head + busy + self.tail
        # The last gradient goes back to the first stage. A whole backward has all work before it; of an
        # input gradient only that is sure that it has all others before it.
        gradients = self.micro_batches[:, None] * self._on_ranks(self.forward + self.backward_input)
        through = np.where(
            whole, busy + before(self.backward_input + self.weight), gradients + before(self.backward_input)
        )
        first_ends = head + through + self.tail[:, :1]
        return np.asarray(np.where(real, np.maximum(own, first_ends), 0.0).max(axis=1))

    def groups(self, rows: Ints) -> Iterator[tuple[Ints, str, int, int, bool]]:
        """Rows with one kind of order: schedule, ranks, stages a rank, and whether sending holds."""
        p = self.plans
        found: dict[tuple[int, int, int, bool], list[int]] = defaultdict(list)
        for i in rows.tolist():
            found[int(p.schedule[i]), int(p.pp[i]), int(p.vp[i]), bool(self.holds[i])].append(i)
        for (schedule, pp, vp, holds), members in found.items():
            yield np.array(members), Schedule(schedule).label, pp, vp, holds

    def simulation(self, row: int) -> Simulation:
        """The whole simulation of one plan, gradient reduction at the end of every rank included."""
        p = self.plans
        pp, vp = int(p.pp[row]), int(p.vp[row])
        schedule = Schedule.ONE_F_ONE_B if pp == 1 else Schedule(int(p.schedule[row]))
        order = order_of(schedule.label, ranks=pp, micro_batches=int(self.micro_batches[row]), vp=vp)
        return simulate(
            order,
            forward=self.forward[row, : pp * vp],
            backward_input=self.backward_input[row, : pp * vp],
            weight=self.weight[row, : pp * vp],
            p2p=self.hop[row],
            overlap_p2p=not self.holds[row],
            tail=self.tail[row, :pp],
            pair_share=self._pair_share(schedule),
        )

    def _pair_share(self, schedule: Schedule) -> float | None:
        return 1.0 if self.pairs and int(schedule) in PAIRED else None

    def layers_of(self, row: int) -> tuple[int, ...]:
        """Layers of every stage of one plan, multi-token-prediction layers left out."""
        p = self.plans
        if p.layout[row] >= 0:
            return p.layouts[int(p.layout[row])]
        return even_layout(self.layers, int(p.pp[row] * p.vp[row]))

    def rank_memory(self, row: int, alive: Floats) -> Floats:
        """(ranks,): bytes of every rank of one plan while activations of ``alive`` bytes are."""
        ranks = int(self.plans.pp[row])
        fixed = np.asarray(sum(value[row, :ranks] for value in self.memory.values()))
        return np.asarray(fixed + (1 + self.fragmentation) * alive)

    def alive(self, row: int) -> Floats:
        """(ranks,): most bytes of activations alive on every rank of one plan, as simulated."""
        return self._ranks_alive(np.array([row]), self.activations)[0, : int(self.plans.pp[row])]

    def rank_parts(self, row: int, rank: int, alive: float) -> dict[str, float]:
        """Bytes of one rank by part while activations of ``alive`` bytes are."""
        parts = {name: float(value[row, rank]) for name, value in self.memory.items()}
        parts["activations"] += alive
        parts["fragmentation"] += self.fragmentation * alive
        return parts

    def layers_to_fit(self, rows: Ints, limit: float) -> Ints:
        """Layers to recompute on every rank so that plans ``rows`` fit into ``limit`` bytes: a guess that is
        to be simulated again, as what is recomputed needs room of its own."""
        over = self._ranks_alive(rows, self.activations) * (1 + self.fragmentation)
        over += np.asarray(sum(value[rows] for value in self.memory.values())) - limit
        gain = self._ranks_alive(rows, self.saved) * (1 + self.fragmentation)
        more = np.where((over > 0) & (gain > 0), np.ceil(over / np.maximum(gain, 1.0)), 0.0).max(axis=1)
        return np.asarray(self.plans.recompute_layers[rows] + more, dtype=np.int64)

    def _ranks_alive(self, rows: Ints, each: Floats) -> Floats:
        """(rows, ranks): most bytes alive where a micro-batch keeps ``each`` on a stage, (plans, stages)."""
        found = np.zeros((len(self), self.tail.shape[1]))
        for members, name, ranks, vp, _ in self.groups(rows):
            counts, stages = self.micro_batches[members], ranks * vp
            if stages == 1:  # whatever the schedule: one micro-batch after the other
                found[members, 0] = each[members, 0]
                continue
            for count in sorted(set(counts.tolist())):
                same = members[counts == count]
                found[same, :ranks] = peak_alive(
                    name, ranks=ranks, vp=vp, micro_batches=count, activations=each[same, :stages]
                )
        return found[rows]

    def simulated(self, costs: Costs, rows: Ints) -> Costs:
        """``costs`` (as priced for these pipelines) of ``rows``, with time and memory as simulated."""
        ends = np.zeros((len(self), self.tail.shape[1]))
        free = np.zeros_like(ends)
        for members, name, ranks, vp, holds in self.groups(rows):
            stages = ranks * vp
            if stages == 1:
                ends[members, 0] = free[members, 0] = self.busy[members, 0]
                continue
            if self.searched[members[0]]:
                ends[members, :ranks], free[members, :ranks] = self._searched(members, ranks)
                continue
            times: dict[str, Any] = {
                kind: np.tile(getattr(self, kind)[members, :stages], (2, 1))
                for kind in ("forward", "backward_input", "weight")
            }
            hop = self.hop[members]
            both = pipeline_ends(
                name, ranks=ranks, vp=vp, **times, micro_batches=np.tile(self.micro_batches[members], 2),
                p2p=np.append(hop, 0.0 * hop), overlap_p2p=not holds,
                pair_share=self._pair_share(Schedule(int(self.plans.schedule[members[0]]))),
            )  # fmt: skip
            ends[members, :ranks], free[members, :ranks] = both[: len(members)], both[len(members) :]
        alive = self._ranks_alive(rows, self.activations)
        return self._costs(costs.take(rows), rows, ends[rows], free[rows], alive)

    def _searched(self, rows: Ints, ranks: int) -> tuple[Floats, Floats]:
        """Ends of all ranks of ``rows``, with hops and without, where the software searches the order: it is
        not known before, its closed form is."""
        each = [of[rows, :ranks] for of in (self.forward, self.backward_input, self.weight)]
        slowest = np.asarray(sum(each)).argmax(axis=1)[:, None]
        most = [np.take_along_axis(of, slowest, axis=1)[:, 0] for of in each]
        sums = [of.sum(axis=1) for of in each]
        (f, b, w), (f_sum, b_sum, w_sum) = most, sums

        def end(hop: Floats | float) -> Floats:
            whole, _ = step_time(
                SEARCHED, ranks, 1, self.micro_batches[rows], f, b, w, f_sum, b_sum, w_sum, hop,
                overlap_p2p=~self.holds[rows],
            )  # fmt: skip
            return whole[:, None]

        return end(self.hop[rows]), end(0.0)

    def _costs(self, base: Costs, rows: Ints, ends: Floats, free: Floats, alive: Floats) -> Costs:
        """The parts of steps whose ranks end at ``ends``, and would at ``free`` were there no transfers."""
        m = self.micro_batches[rows]
        time = {name: m * value[rows] for name, value in self.work.items()}
        mean = np.asarray(sum(time.values()))
        busiest, last, unhindered = self.busy[rows].max(axis=1), ends.max(axis=1), free.max(axis=1)
        time["imbalance"] = np.maximum(busiest - mean, 0.0)  # of equal ranks the mean may round up
        time["bubble"] = np.maximum(unhindered - busiest, 0.0)
        time["pp"] = last - unhindered
        time["dp"] = time["dp"] + (ends + self.tail[rows]).max(axis=1) - last + self.gather[rows]
        time |= {name: base.time[name] for name in ONCE}
        if "straggler" in base.time:
            others = base.step_s - base.time["straggler"]
            time["straggler"] = base.time["straggler"] / others * np.asarray(sum(time.values()))
        step = np.asarray(sum(time.values()))
        memory = {name: value[rows].copy() for name, value in self.memory.items()}
        memory["activations"] += alive
        memory["fragmentation"] += self.fragmentation * alive
        total = np.asarray(sum(memory.values()))
        real = np.arange(total.shape[1]) < self.plans.pp[rows][:, None]
        fullest = (np.arange(len(rows)), np.where(real, total, -1.0).argmax(axis=1))
        return replace(
            base,
            step_s=step,
            memory_bytes=total[fullest],
            mfu=base.mfu * base.step_s / step,
            time={name: time[name] for name in base.time},
            memory={name: memory[name][fullest] for name in base.memory},
        )


def pipelines(c: Context) -> Pipelines:
    """The pipelines of plans whose layouts and recomputed layers are decided."""
    p, priced = c.plans, price_layers(c)
    cuts = cut_up(c)
    stages, ranks, home = cuts.stages, cuts.ranks, cuts.home
    held = ranks.layers.sum(axis=2)
    share_of_rank = recomputed_share(p.recompute_layers[:, None], held)
    share = np.take_along_axis(share_of_rank, np.maximum(home, 0), axis=1)
    known = paces(stages, priced)
    work = rank_work(stages, known, share)
    parts, _ = part_means(stages, priced)
    extra = {"recompute": work.recompute, "host": work.host, "dp": work.gather}
    nothing = np.zeros(len(p))
    parts |= {k: nothing if v is None else v.sum(axis=1) / p.pp for k, v in extra.items()}
    m = np.rint(c.micro_batches).astype(np.int64)
    there = home >= 0
    weight = np.where(there, rows(known.gpu.weight, known.of_gpu), 0.0)
    forward = np.where(there, work.forward, 0.0)
    backward_input = np.where(there, work.busy - work.forward - weight, 0.0)
    moving = np.zeros_like(forward) if known.units is None else rows(known.units.backward, known.of_units)
    tail, gather = _reduction(c, cuts, m, forward, backward_input + weight, np.where(there, moving, 0.0))
    at = priced.of_plan
    kept = stages.per_rank([a.kept[at] for a in priced.activations])
    inputs = stages.per_rank([a.input[at] for a in priced.activations])
    holds = ((p.vp > 1) & (not c.stack.p2p_overlap)) | c.stack.p2p_blocking
    return Pipelines(
        plans=p,
        layers=len(c.model.layers),
        micro_batches=m,
        home=home,
        forward=forward,
        backward_input=backward_input,
        weight=weight,
        hop=hop_seconds(c, priced),
        holds=np.asarray(holds),
        pairs=c.stack.overlaps_experts,
        searched=c.searched,
        tail=tail,
        gather=gather,
        activations=kept + (inputs - kept) * share,
        saved=(kept - inputs) / np.maximum(np.take_along_axis(held, np.maximum(home, 0), axis=1), 1.0),
        memory=_memory(ranks, priced),
        fragmentation=c.stack.fragmentation,
        work=parts,
    )


def _memory(ranks: Cut, priced: Priced) -> dict[str, Floats]:
    """(plans, ranks): bytes by part with no micro-batch alive."""
    found = peak(ranks, priced)
    parts = found.parts
    ends = found.held.ends[found.of_held]
    alive = parts["activations"] - ends
    parts["activations"] = ends
    parts["fragmentation"] = parts["fragmentation"] - found.fragmentation * alive
    return parts


def _reduction(
    c: Context, cuts: Cuts, micro_batches: Ints, forward: Floats, backward: Floats, moving: Floats
) -> tuple[Floats, Floats]:
    """(plans, ranks): seconds of gradient reduction that a rank's last backwards do not hide, where stages
    move weights and gradients for ``moving`` seconds of each backward (FSDP); and for each plan the seconds
    by which gathering parameters delays the rank that waits longest for its first forward less long than
    that."""
    p, ranks = c.plans, cuts.ranks
    on_rank = _on_ranks(p, cuts.home, forward, ranks.ranks.shape[1])
    back = _on_ranks(p, cuts.home, backward, ranks.ranks.shape[1])
    moved = _transfers(ranks)
    window, every = last_backwards(p, micro_batches)[:, None], c.scatters_each[:, None]
    times = reductions(c.scatters_each, micro_batches)[:, None]
    if c.stack.dp_overlap:
        of_rank = reduction_window(every, p.pp[:, None], window, on_rank, back)
        reduce = (times - 1) * beyond(moved.reduce, of_rank) + moved.last_reduction(of_rank)
        gathered = beyond(moved.gathered, window * on_rank)
        of_units = _on_ranks(p, cuts.home, moving, ranks.ranks.shape[1]) * (window / BESIDE)
        alone = moved.replicas_alone(window * back, of_units)
    else:
        reduce, gathered, alone = times * moved.reduce + moved.replicas, moved.gathered, moved.replicas
    once = ~c.gathers[:, None]
    # The first rank and the last add up what both hold when they have reduced the rest.
    rank = np.arange(ranks.ranks.shape[1])
    ends = (rank == 0) | (rank == p.pp[:, None] - 1)
    tail = np.where(once, reduce, alone) + ends * shared_embedding(c)[:, None]
    starts = np.cumsum(on_rank, axis=1) / p.vp[:, None] - on_rank / p.vp[:, None]
    real = ranks.ranks > 0
    delay = np.where(once & real, gathered - starts, 0.0).max(axis=1)
    return np.where(real, tail, 0.0), np.maximum(delay, 0.0)


def _on_ranks(p: Plans, home: Ints, of_stages: Floats, ranks: int) -> Floats:
    """(plans, ranks): a rank's stages together; of DualPipe half of its two."""
    out = np.zeros((len(home), ranks))
    plan = np.broadcast_to(np.arange(len(home))[:, None], home.shape)
    there = home >= 0
    np.add.at(out, (plan[there], home[there]), of_stages[there])
    both = np.flatnonzero(p.schedule == Schedule.DUALPIPE)
    if len(both):
        out[both] = (out[both] + _mirrored(p, out)[both]) / 2
    return out


def _mirrored(p: Plans, of_ranks: Floats) -> Floats:
    """(plans, ranks): the value of the rank that lies as far from the other end."""
    rank = np.arange(of_ranks.shape[1])
    return np.take_along_axis(of_ranks, np.clip(p.pp[:, None] - 1 - rank, 0, None), axis=1)


def _transfers(ranks: Cut) -> Transfers:
    """(plans, ranks): what every rank reduces and gathers."""
    shape = ranks.ranks.shape
    row = np.repeat(np.arange(shape[0]), shape[1])
    whole = shards_of(ranks)
    table: dict[str, Any] = {}
    for f in fields(Shards):
        value = getattr(whole, f.name)
        if isinstance(value, Group):
            table[f.name] = Group(size=value.size[row], per_node=value.per_node[row])
        else:
            table[f.name] = value[row]
    table["dense"] = (ranks.dense_parameters * ranks.copies[:, None]).ravel()
    table["experts"] = (ranks.expert_parameters * ranks.copies[:, None]).ravel()
    found = gradient_transfers(
        Shards(**table), ranks.plans.sharding[row], ranks.links, ranks.profile, ranks.stack
    )
    return Transfers(**{f.name: getattr(found, f.name).reshape(shape) for f in fields(Transfers)})
