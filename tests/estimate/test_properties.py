"""What must hold for every plan: parts sum to the whole, and more of a good thing never hurts."""

import inspect
import re
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.explain import explain
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import FITTED, Stack, load_stack, stack_names
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan, Plans
from meshplan.plan.workload import Workload

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-2-xl")
GPUS = ("h100-sxm", "a100-80gb", "b200", "h800")
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
POWERS = st.sampled_from([1, 2, 4, 8])


@dataclass(frozen=True, repr=False)
class Question:
    """Everything ``price`` takes; shown by names, as hypothesis prints it."""

    model: object
    cluster: object
    workload: Workload
    plan: Plan
    full: FullModel

    def __repr__(self):
        return f"{self.model.name} {self.cluster.name} {self.workload} {self.plan} {self.full.stack.name}"

    def cost(self, **changes):
        asked = replace(self, **changes)
        return asked.full.price(asked.model, asked.cluster, asked.workload, Plans.of(asked.plan))


@st.composite
def questions(draw):
    """A model, a cluster that the plan fills, a workload it divides, the plan and a stack."""
    model = load_model(draw(st.sampled_from(MODELS)))
    heads = model.layers[0].attention.heads
    tp = draw(st.sampled_from([t for t in (1, 2, 4, 8) if heads % t == 0]))
    cp, dp = draw(POWERS), draw(POWERS)
    pp = draw(st.sampled_from([1, 2, 4]))
    vp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    experts = getattr(model.layers[-1].mlp, "experts", 1)
    ep = draw(st.sampled_from([e for e in (1, 2, 4, 8) if experts % e == 0 and tp * cp * dp % e == 0]))
    schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    mbs = draw(st.sampled_from([1, 2]))
    plan = Plan(
        tp=tp,
        sp=draw(st.booleans()),
        cp=cp,
        cp_kind=draw(st.sampled_from(list(CpKind))),
        pp=pp,
        vp=vp,
        schedule=schedule,
        dp=dp,
        ep=ep,
        mbs=mbs,
        sharding=draw(st.sampled_from(list(Sharding))),
        recompute_layers=draw(st.sampled_from([0, 1, 3, ALL_LAYERS, -1])),
        recompute_modules=Recompute(draw(st.integers(0, 511))),
    )
    cluster = cluster_of(draw(st.sampled_from(GPUS)), plan.gpus, gpus_per_node=min(plan.gpus, 8))
    workload = Workload(
        seq=draw(st.sampled_from([2048, 8192])), gbs=dp * mbs * draw(st.sampled_from([1, 4, 16]))
    )
    stack = load_stack(draw(st.sampled_from(stack_names())))
    return Question(model, cluster, workload, plan, FullModel(stack=stack))


@QUICK
@given(questions())
def test_parts_sum_to_the_whole(q):
    found = explain(q.full, q.model, q.cluster, q.workload, q.plan)
    costs = found.costs
    for parts, whole in ((costs.time, costs.step_s), (costs.memory, costs.memory_bytes)):
        values = np.array([float(v[0]) for v in parts.values()])
        assert np.isfinite(values).all()
        assert (values >= -1e-12).all(), parts
        assert values.sum() == pytest.approx(float(whole[0]), rel=1e-9)
    assert all(float(v[0]) >= -1e-12 for v in costs.hidden.values())
    assert max(stage.memory_bytes for stage in found.stages) == pytest.approx(float(costs.memory_bytes[0]))
    assert sum(stage.ranks for stage in found.stages) == q.plan.pp
    layers = sum(stage.layers * stage.ranks for stage in found.stages)
    assert layers == len(q.model.layers) + len(q.model.mtp)
    assert 0 < float(costs.mfu[0]) <= found.hfu * (1 + 1e-12)
    assert found.hfu < 1


@QUICK
@given(questions())
def test_recomputing_more_keeps_less(q):
    nothing = replace(q.plan, recompute_layers=0, recompute_modules=Recompute.NONE)
    chain = [nothing, replace(q.plan, recompute_layers=0)]
    chain += [replace(q.plan, recompute_layers=n) for n in (1, 2, 5, ALL_LAYERS)]
    found = [explain(q.full, q.model, q.cluster, q.workload, plan) for plan in chain]
    for stages in zip(*(f.stages for f in found), strict=True):
        kept = [stage.memory["activations"] for stage in stages]
        assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(kept)), kept
    again = [float(f.costs.time["recompute"][0]) for f in found]
    assert again[0] == 0
    assert again[-1] > 0


@QUICK
@given(questions())
def test_tensor_parallelism_with_sp_spreads_memory(q):
    heads = q.model.layers[0].attention.heads
    found = []
    for tp in (t for t in (1, 2, 4, 8) if heads % t == 0):
        wider = replace(q.plan, tp=tp, sp=True, ep=1, recompute_layers=0)
        machine = cluster_of(q.cluster.gpu.name, wider.gpus, gpus_per_node=min(wider.gpus, 8))
        found.append(explain(q.full, q.model, machine, q.workload, wider).stages[0].memory)
    for part in ("weights", "gradients", "optimizer", "activations"):
        values = [memory[part] for memory in found]
        # Megatron pads the vocabulary to 128 · tp: up to a few tenths of a per cent more in all.
        assert all(b <= a * 1.005 for a, b in pairwise(values)), (part, values)


@QUICK
@given(questions())
def test_sharding_more_states_holds_less(q):
    assume(not q.full.stack.zero2_whole_gradients)  # the point of that stack
    # One stage: of several another may be the fullest then, and its parts are those told.
    one = replace(q.plan, pp=1, vp=1, dp=q.plan.dp * q.plan.pp, schedule=Schedule.ONE_F_ONE_B, layout=None)
    found = [q.cost(plan=replace(one, sharding=s)).memory for s in Sharding]
    held = [sum(float(m[p][0]) for p in ("weights", "gradients", "optimizer")) for m in found]
    if q.full.stack.family == "torch":
        held = held[1:]  # plain DDP there casts the fp32 weights on the fly: no copy in bf16 to hold
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(held)), held


@QUICK
@given(questions(), st.sampled_from([1.5, 2.0, 8.0]))
def test_more_bandwidth_is_never_slower(q, factor):
    """Where the GPU sets the pace. Where the host does, a step's micro-batches take as long as it needs; what
    links save is waited for, and forward, which the host launches first, gets the waiting. The backward that
    a reduction hides under is shorter by as much at most."""
    slow = q.cost()
    tiers = q.cluster.tiers
    for i in range(len(tiers)):
        faster = tuple(
            replace(t, bandwidth=t.bandwidth * factor) if i == j else t for j, t in enumerate(tiers)
        )
        fast = q.cost(cluster=replace(q.cluster, tiers=faster))
        waits = max(float(fast.time["host"][0] - slow.time["host"][0]), 0.0)
        assert fast.step_s[0] <= slow.step_s[0] * (1 + 1e-9) + waits, tiers[i].name


@QUICK
@given(questions(), st.sampled_from([2, 3, 8]))
def test_more_sequences_take_longer_but_not_disproportionately(q, factor):
    plan = replace(q.plan, recompute_layers=0)
    one = float(q.cost(plan=plan).step_s[0])
    more = replace(q.workload, gbs=q.workload.gbs * factor)
    many = float(q.cost(plan=plan, workload=more).step_s[0])
    assert one < many <= factor * one * (1 + 1e-9)


def test_every_scalar_marked_fitted_is_counted():
    """``meshplan validate`` prints how many scalars of a stack were fitted: none may hide."""
    source = inspect.getsource(Stack)
    marked = set(re.findall(r'^    (\w+): [^\n]+\n    """\*Fitted\*', source, flags=re.MULTILINE))
    assert len(marked) > 5
    assert marked <= set(FITTED)
    assert set(FITTED) <= {f.name for f in fields(Stack)}
    neutral = Stack(name="x", title="x")
    assert neutral.fitted == {}
    assert replace(neutral, matmul=0.9, step_s=0.1).fitted == {"matmul": 0.9, "step_s": 0.1}
