"""What every part of one pricing shares: the question, the table of plans, and who sits where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.profile import Profile
from meshplan.cost.costs import Bools, Floats
from meshplan.cost.full.comm import Links
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.narrow import rows, total, zeros
from meshplan.cost.full.stack import Stack
from meshplan.cost.full.stages import Splits, splits_of
from meshplan.cost.full.topology import Group, group, joint_group, spans
from meshplan.model.counts import LayerParameters, layer_parameters, padded_vocab
from meshplan.model.layers import Layer
from meshplan.model.model import Model
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import Ints, Plans, chooser
from meshplan.plan.workload import Workload
from meshplan.schedule.closed_form import SEARCHED


@dataclass(frozen=True, kw_only=True)
class Context:
    """One call of ``price``. Two-dimensional arrays are (plans, rank types)."""

    model: Model
    cluster: Cluster
    workload: Workload
    plans: Plans
    stack: Stack
    profile: Profile
    gbs: Ints | None = None
    """Sequences a step for each plan, where plans of several batches are priced together."""

    def take(self, index: Ints | slice) -> Context:
        """The same question about the plans ``index`` selects."""
        pick = chooser(index)
        gbs = None if self.gbs is None else pick(self.gbs)
        some = replace(self, plans=self.plans.take(index), gbs=gbs)
        # What does not depend on the plans, or only row by row, is not worked out again.
        shared = {name: getattr(self, name) for name in ("kinds", "parameters", "links")}
        shared["splits"] = replace(self.splits, of_plan=pick(self.splits.of_plan))
        shared |= {name: pick(getattr(self, name)) for name in ("gathers", "micro_batches")}
        some.__dict__.update(shared)
        return some

    @cached_property
    def links(self) -> Links:
        """What a collective's time depends on."""
        return Links(
            cluster=self.cluster,
            profile=self.profile,
            network_rate=self.stack.network_rate,
            scaleup_rate=self.stack.scaleup_rate,
            all_to_all_rate=self.stack.all_to_all_rate or self.stack.network_rate,
        )

    @property
    def searched(self) -> Bools:
        """Plans whose order of passes the software searches for."""
        return np.asarray((self.plans.schedule == Schedule.ZB_H2) & self.stack.searches_order)

    @property
    def orders(self) -> Ints:
        """The code of every plan's closed form."""
        found = self.plans.schedule
        return np.where(self.searched, SEARCHED, found) if self.stack.searches_order else found

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """Distinct layers."""
        return self.model.kinds

    @property
    def usual_kind(self) -> int:
        """The most frequent of them."""
        return int(np.bincount(self.model.kind_ids, minlength=len(self.kinds)).argmax())

    @cached_property
    def parameters(self) -> tuple[LayerParameters, ...]:
        """Parameters of each kind."""
        return tuple(layer_parameters(layer, self.model.hidden) for layer in self.kinds)

    @cached_property
    def mesh(self) -> Ints:
        """A number for each plan, equal where ``tp``, ``cp``, ``ep`` and ``etp`` are."""
        p = self.plans
        return distinct((p.tp, p.cp, p.ep, p.etp))[1]

    @cached_property
    def scale(self) -> tuple[Ints, ...]:
        """``dp``, or nothing where all plans have as many GPUs, so that it follows from mesh and ``pp``."""
        gpus = self.plans.gpus
        return () if gpus.min() == gpus.max() else (self.plans.dp,)

    @cached_property
    def spans(self) -> dict[str, Ints]:
        """Distance between neighbours of each dimension, in ranks."""
        return spans(self.plans)

    @cached_property
    def splits(self) -> Splits:
        """Distinct cuts of the stack over ranks."""
        return splits_of(self.plans, self.model, self.kinds)

    @cached_property
    def layers(self) -> Floats:
        """(plans, types, kinds): layers each rank type holds."""
        return rows(self.splits.layers, self.splits.of_plan)

    @cached_property
    def held_layers(self) -> Floats:
        """(plans, types): layers of any kind each rank type holds."""
        return rows(total(self.splits.layers), self.splits.of_plan)

    @cached_property
    def first(self) -> Floats:
        """1 where the rank type holds the embedding (0.5: one of its two stages does, DualPipe)."""
        return rows(self.splits.first, self.splits.of_plan)

    @cached_property
    def last(self) -> Floats:
        """The same of the head."""
        return rows(self.splits.last, self.splits.of_plan)

    @cached_property
    def ranks(self) -> Floats:
        """How many pipeline ranks are of the type; 0 for padding."""
        return rows(self.splits.ranks, self.splits.of_plan)

    @cached_property
    def earliest(self) -> Floats:
        """The first pipeline rank of the type."""
        return rows(self.splits.earliest, self.splits.of_plan)

    @cached_property
    def micro_batches(self) -> Floats:
        """Micro-batches a pipeline runs each step."""
        p = self.plans
        return np.maximum(self.sequences / (p.dp * p.mbs), 1.0)

    @property
    def sequences(self) -> Ints:
        """Sequences in a step, for each plan."""
        return np.full(len(self.plans), self.workload.gbs) if self.gbs is None else self.gbs

    @property
    def domain(self) -> int:
        """GPUs in a scale-up domain."""
        return self.cluster.gpus_per_node

    def per_rank(self, per_kind: list[Floats], *, keeping: bool = False) -> Floats:
        """(plans, types): Σ over kinds of layers held × a value for each plan; with ``keeping`` layers count
        as micro-batches alive count them."""
        total = zeros(len(self.plans), self.splits.ranks.shape[1])
        layers, splits = self.layers, self.splits
        if keeping and splits.keeping is not splits.layers:
            layers = rows(splits.keeping, splits.of_plan)
        for k, value in enumerate(per_kind):
            total += layers[:, :, k] * value[:, None]
        return total

    def padded_vocab(self, tp: Ints) -> Floats:
        """Vocabulary as the stack shards it (``Stack.vocabulary``), a multiple of tp."""
        how = self.stack.vocabulary or ("padded" if self.stack.family == "megatron" else "uneven")
        if how == "uneven":
            return np.asarray(np.ceil(self.model.vocab / tp) * tp)
        if how == "cut":
            return np.asarray(np.floor(self.model.vocab / tp) * tp)
        least, most = int(tp.min()), int(tp.max())
        padded = [padded_vocab(self.model.vocab, t) for t in range(least, most + 1)]
        return np.array(padded, dtype=np.float64).take(tp - least)

    @cached_property
    def copies(self) -> Ints:
        """Ranks of a pipeline that hold each stage: two in DualPipe, which feeds it from both ends."""
        return np.where(self.plans.schedule == Schedule.DUALPIPE, 2, 1)

    @cached_property
    def joined_copies(self) -> Ints:
        """How many of them share gradients and optimizer: all, but without data parallelism each is alone."""
        return np.where(self.plans.dp * self.plans.cp > 1, self.copies, 1)

    @cached_property
    def dense_group(self) -> Group:
        """Ranks that reduce dense gradients: dp · cp."""
        p = self.plans
        return joint_group(p.cp, p.dp, self.spans["cp"], self.spans["dp"], self.domain)

    @cached_property
    def shard_group(self) -> Group:
        """Ranks that share one copy of the dense states: all of ``dense_group``, or a replica of HSDP."""
        p = self.plans
        return joint_group(
            p.cp, p.dp // np.maximum(p.replicas, 1), self.spans["cp"], self.spans["dp"], self.domain
        )

    @cached_property
    def replica_group(self) -> Group:
        """Ranks that hold the same shard in every replica; they stand a whole replica apart."""
        p = self.plans
        return group(p.replicas, self.spans["dp"] * (p.dp // np.maximum(p.replicas, 1)), self.domain)

    @cached_property
    def expert_group(self) -> Group:
        """Ranks that hold the same experts."""
        return group(self.plans.edp, self.spans["edp"], self.domain)

    @cached_property
    def fully_sharded(self) -> Bools:
        """Plans that shard parameters too, over more than one rank."""
        p = self.plans
        return np.asarray((p.sharding >= Sharding.ZERO3) & (p.dp * p.cp > 1))

    @cached_property
    def keeps_gathered(self) -> Bools:
        """Plans that gather parameters once a step and keep them, and whole gradients until the last
        micro-batch scatters them: torch's pipeline tells FSDP to (``backward_maybe_with_nosync`` of
        ``torch/distributed/pipelining/stage.py``), and torchtitan does not reshard under one
        (``reshard_after_forward: default``). ZeRO-2 is the same there."""
        p, keeps = self.plans, self.stack.family == "torch" and self.stack.keeps_gathered
        return np.asarray((p.sharding >= Sharding.ZERO2) & (p.dp * p.cp > 1) & (p.pp > 1) & keeps)

    @cached_property
    def gathers(self) -> Bools:
        """Plans that gather parameters and scatter gradients every micro-batch."""
        return np.asarray(self.fully_sharded & ~self.keeps_gathered)

    @property
    def scatters_each(self) -> Bools:
        """Plans that scatter gradients with every micro-batch though they gather parameters once a step."""
        return np.asarray((self.plans.sharding == Sharding.ZERO2) & ~self.keeps_gathered)

    @cached_property
    def dense_parameters(self) -> Floats:
        """(plans, types): parameters a rank holds besides routed experts."""
        p, n = self.plans, len(self.plans)
        sharded = [
            np.full(n, q.attention_sharded + q.sinks + q.mlp + q.shared) / p.tp for q in self.parameters
        ]
        repeated = [np.full(n, float(q.attention_replicated + q.router + q.norms)) for q in self.parameters]
        held = self.per_rank([a + b for a, b in zip(sharded, repeated, strict=True)])
        return held + self.end_parameters

    @cached_property
    def vocabulary_parameters(self) -> Floats:
        """Parameters of one vocabulary matrix on one rank, for each plan."""
        return np.asarray(self.padded_vocab(self.plans.tp) * self.model.hidden / self.plans.tp)

    @cached_property
    def end_parameters(self) -> Floats:
        """(plans, types): embedding, positions, final norm and head. A tied head on another rank than
        the embedding is a copy of it; a tied head on the same rank is free."""
        model, vocab = self.model, self.vocabulary_parameters[:, None]
        head = np.where(self.first, 0.0, vocab) if model.tied_embeddings else vocab
        first = self.first * (vocab + model.positions * model.hidden)
        # A multi-token-prediction layer's projection is column-parallel in Megatron-Core, whole elsewhere.
        split = self.plans.tp[:, None] if self.stack.family == "megatron" else 1.0
        mtp = len(model.mtp) * (2.0 * model.hidden**2 / split + 3 * model.hidden)
        copies = np.where(self.first, 0.0, vocab) if model.mtp else 0.0
        return np.asarray(first + self.last * (head + model.hidden + mtp + copies))

    @cached_property
    def expert_parameters(self) -> Floats:
        """(plans, types): parameters of the routed experts a rank holds."""
        p = self.plans
        return self.per_rank([float(q.experts) / (p.ep * p.etp) for q in self.parameters])
