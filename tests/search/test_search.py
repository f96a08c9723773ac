"""The search against enumeration by hand: candidates, counts, order, what it says when nothing is left."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshplan
from meshplan.cluster.cluster import Cluster
from meshplan.cluster.presets import cluster_of
from meshplan.cost.costs import Costs
from meshplan.cost.handbook import Handbook
from meshplan.errors import InputError
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.plan.kinds import Recompute, Schedule, Sharding
from meshplan.plan.plans import AUTO_LAYERS, DEFAULT_ORDER, Plan, Plans
from meshplan.plan.rules import RULES, Rule, Setting, broken
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search import candidates
from meshplan.search.candidates import Funnel, blocks
from meshplan.search.search import search

LLAMA = load_model("llama-3.1-8b")
DENSE = Model(
    name="toy",
    hidden=1024,
    vocab=32000,
    layers=(Layer(attention=Attention(heads=12, kv_heads=4, head_dim=64), mlp=Mlp(width=4096)),) * 12,
)
SPARSE = replace(
    DENSE,
    layers=(Layer(attention=DENSE.layers[0].attention, mlp=Moe(experts=6, topk=2, width=768)),) * 12,
)


class Flat:
    """A cost model for tests: a second and no memory for every plan, or what ``step`` and ``memory`` say."""

    name = "flat"

    def __init__(self, step: object = None, memory: object = None) -> None:
        self.step, self.memory = step, memory
        self.priced = 0

    def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
        self.priced += len(plans)
        ones = np.ones(len(plans))
        step = self.step(plans) * ones if callable(self.step) else ones
        memory = self.memory(plans) * ones if callable(self.memory) else 0 * ones
        return Costs(
            plans=plans,
            step_s=step,
            memory_bytes=memory,
            memory_limit_bytes=1.0,
            mfu=0.5 / step,
            time={"all": step},
            memory={"all": memory},
        )


def by_hand(
    setting: Setting, space: Space, rules: tuple[Rule, ...]
) -> tuple[list[Plan], int, dict[str, int]]:
    """Every candidate by nested loops, each rule asked plan by plan."""
    values = space.values(setting)
    removed = {rule.id: 0 for rule in rules}
    plans, count = [], 0
    names = ("tp", "cp", "pp", *(["dp"] if "dp" in values else []), "mbs", "ep", "etp", "vp")
    for degrees in itertools.product(*(values[n] for n in names)):
        for schedule, sharding, (layers, modules) in itertools.product(
            space.schedule, space.sharding, space.recompute
        ):
            count += 1
            sizes = dict(zip(names, degrees, strict=True))
            dp = setting.cluster.gpus // (sizes["tp"] * sizes["cp"] * sizes["pp"])
            plan = Plan(
                **{"dp": max(dp, 1), **sizes}, schedule=schedule, sharding=sharding,
                recompute_layers=layers, recompute_modules=modules,
            )  # fmt: skip
            wrong = broken(setting, plan, rules)
            if wrong:
                removed[wrong[0].id] += 1
            else:
                plans.append(plan)
    return plans, count, removed


SPACES = [
    Space(cp=(1, 2), ep=(1, 3), etp=(1, 2), mbs=(1, 3)),
    Space(tp=(4, 1, 3), cp=(1,), pp=None, ep=None, etp=(1,), mbs=(1, 2, 5)),
    Space(cp=(1,), dp=(2, 4), etp=(1,), mbs=(1,)),
    Space(
        tp=(1, 2),
        cp=(1,),
        ep=(1,),
        etp=(1,),
        mbs=(1,),
        vp=None,
        schedule=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    ),
    Space(
        tp=(2, 4),
        cp=(1,),
        ep=(1,),
        etp=(1,),
        mbs=(1,),
        sharding=tuple(Sharding),
        recompute=((0, Recompute.NONE), (AUTO_LAYERS, Recompute.NONE), (0, Recompute.MLP)),
    ),
]


@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("space", SPACES, ids=range(len(SPACES)))
@pytest.mark.parametrize(("gpus", "block"), [(8, 1 << 16), (8, 7), (24, 1 << 16)])
def test_candidates_are_those_of_nested_loops(
    model: Model, space: Space, gpus: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "BLOCK", block)
    setting = Setting(model, cluster_of("h100-sxm", gpus), Workload(seq=4096, gbs=48))
    funnel = Funnel()
    found = [plan for table in blocks(setting, space, RULES, funnel) for plan in table]
    plans, count, removed = by_hand(setting, space, RULES)
    assert found == plans
    assert funnel.candidates == count
    assert sum(funnel.removed.values()) == count - len(plans) == sum(removed.values())


@given(
    gpus=st.sampled_from([1, 2, 3, 6, 8, 16, 24, 40, 96]),
    gbs=st.integers(1, 300),
    seq=st.sampled_from([512, 1000, 4096, 12288]),
    tp=st.none() | st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(tuple),
    pp=st.none() | st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(tuple),
    sparse=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_counts_sum_to_the_candidates(
    gpus: int, gbs: int, seq: int, tp: tuple[int, ...] | None, pp: tuple[int, ...] | None, sparse: bool
) -> None:
    model = Flat(memory=lambda plans: (plans.pp % 2) * 2.0)  # odd pp does not fit
    cluster = cluster_of("h100-sxm", gpus)
    ranking = search(
        SPARSE if sparse else DENSE,
        cluster,
        Workload(seq=seq, gbs=gbs),
        space=Space(tp=tp, pp=pp),
        cost_model=model,
        advise=False,
    )
    counts = ranking.counts
    assert counts.candidates == sum(counts.removed.values()) + counts.memory + counts.feasible
    assert len(ranking) == counts.feasible
    assert model.priced == counts.memory + counts.feasible
    for plan in ranking:
        assert plan.gpus == gpus
        assert broken(Setting(ranking.model, cluster, ranking.workload), plan, RULES) == []


def run(model: Model = LLAMA, gpus: int = 16, **kwargs: object) -> meshplan.Ranking:
    workload = Workload(seq=kwargs.pop("seq", 8192), gbs=kwargs.pop("gbs", 64))  # type: ignore[arg-type]
    kwargs.setdefault("cost_model", Handbook())
    return search(model, cluster_of("h100-sxm", gpus), workload, **kwargs)  # type: ignore[arg-type]


def test_fastest_first() -> None:
    ranking = run(cost_model=Handbook())
    assert (np.diff(ranking.costs.step_s) >= -1e-9 * ranking.costs.step_s[1:]).all()
    assert (ranking.costs.memory_bytes <= ranking.costs.memory_limit_bytes).all()
    assert ranking.best == ranking.costs.plans[0]


def test_ties_keep_the_order_of_the_space() -> None:
    # Times that differ by a rounding error count as equal; a millionth does not.
    noise = Flat(step=lambda plans: 1.0 + 1e-13 * (plans.pp % 3) + 1e-6 * (plans.tp == 1))
    ranking = run(cost_model=noise, space=Space(mbs=(1, 2)))
    keys = [(p.tp, p.cp, p.pp, p.mbs) for p in ranking]
    slower = [key for key in keys if key[0] == 1]
    assert keys == sorted(key for key in keys if key[0] != 1) + sorted(slower)


def test_values_are_tried_in_the_order_given() -> None:
    ranking = run(cost_model=Flat(), space=Space(tp=(4, 1, 2), cp=(1,), pp=(1,), mbs=(2, 1)))
    assert [(p.tp, p.mbs) for p in ranking] == [(4, 2), (4, 1), (1, 2), (1, 1), (2, 2), (2, 1)]


def test_keep_keeps_the_best_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BLOCK", 16)
    every = run(cost_model=Handbook())
    few = run(cost_model=Handbook(), keep=5)
    assert len(few) == 5
    assert list(few) == list(every)[:5]
    assert few.counts == every.counts


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BLOCK", 1 << 12)
    space = Space(
        mbs=tuple(range(1, 65)),
        sharding=tuple(Sharding),
        recompute=tuple((i, Recompute.NONE) for i in range(33)),
    )
    tracemalloc.start()
    ranking = run(gpus=64, gbs=46080, cost_model=Flat(), space=space, keep=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ranking.counts.feasible > 200_000  # a full table of these would take over 25 MB
    assert peak < 10e6


def test_closest_miss_needs_the_least_memory() -> None:
    ranking = run(cost_model=Flat(memory=lambda plans: np.where(plans.tp == 8, 0.5, 2.0 - plans.pp / 100)))
    assert ranking.closest_miss is not None
    assert ranking.closest_miss.plan.pp == 16
    assert ranking.closest_miss.excess_bytes == pytest.approx(1.0 - 0.16)
    assert run(cost_model=Flat()).closest_miss is None


class TestNothingLeft:
    def test_too_little_memory_names_the_smallest_plan_and_a_count_that_works(self) -> None:
        llama = load_model("llama-3.1-70b")
        ranking = run(llama, 8, gbs=512)
        nothing = ranking.nothing
        assert nothing is not None
        assert nothing.limit == "memory"
        assert ranking.best is None
        assert "memory: the smallest of" in nothing.reason
        # Checked by asking again: it works, and no smaller number does.
        assert nothing.smallest_gpus == nothing.more_gpus
        counts = [*range(1, 9), *range(16, nothing.smallest_gpus + 1, 8)]
        works = [n for n in counts if len(run(llama, n, gbs=512, advise=False))]
        assert works == [nothing.smallest_gpus]

    def test_a_smaller_number_can_be_the_one_that_works(self) -> None:
        # 126 layers divide over 7 or 9 stages, and 16,384 GPUs do not.
        llama = load_model("llama-3.1-405b")
        nothing = run(llama, 16384, gbs=2048).nothing
        assert nothing is not None
        assert nothing.smallest_gpus is not None
        assert nothing.smallest_gpus < 16384
        assert len(run(llama, nothing.smallest_gpus, gbs=2048, advise=False))

    def test_gpus_that_nothing_divides(self) -> None:
        nothing = run(LLAMA, 7, gbs=64).nothing
        assert nothing is not None
        assert nothing.limit == "rules"
        assert nothing.reason == "gbs 64 does not divide over dp 7 × mbs 1 = 7; gbs 63 or 70 would"
        assert nothing.more_gpus == 8
        assert nothing.fewer_gpus is not None
        assert len(run(LLAMA, nothing.fewer_gpus, gbs=64, advise=False))

    def test_values_that_can_never_work(self) -> None:
        nothing = run(LLAMA, 64, gbs=512, space=Space(tp=(3,))).nothing
        assert nothing is not None
        assert nothing.reason == "tp 3 does not divide 32 heads; tp 2 or 4 would"
        assert (nothing.smallest_gpus, nothing.fewer_gpus, nothing.more_gpus) == (None, None, None)

    def test_a_fixed_product_asks_for_its_own_number(self) -> None:
        nothing = run(LLAMA, 64, gbs=512, space=Space(tp=(4,), cp=(1,), dp=(2,), pp=(4,))).nothing
        assert nothing is not None
        assert nothing.reason == "tp 4 × cp 1 × dp 2 × pp 4 = 32, not 64 GPUs; dp 4 would"
        assert nothing.fewer_gpus == 32

    def test_a_cluster_in_one_node_grows_over_the_network(self) -> None:
        # The advice must price the larger cluster with its network, not with a larger NVLink domain.
        seen = []

        class Spy(Flat):
            def price(self, model: Model, cluster: Cluster, workload: Workload, plans: Plans) -> Costs:
                seen.append([(tier.span, tier.bandwidth) for tier in cluster.tiers])
                return super().price(model, cluster, workload, plans)

        nothing = run(LLAMA, 4, cost_model=Spy(memory=lambda plans: 16.0 / (plans.tp * plans.dp))).nothing
        assert nothing is not None
        assert nothing.more_gpus == 16
        assert seen[-1] == [(8, 450e9), (16, 50e9)]


class TestPractice:
    """Rules of good practice hold for what the search chooses, not for what the user chose."""

    def test_tp_stays_in_the_node_unless_asked(self) -> None:
        assert max(p.tp for p in run(gpus=16, cost_model=Handbook())) == 8
        asked = run(gpus=16, cost_model=Handbook(), space=Space(tp=(16,)))
        assert {p.tp for p in asked} == {16}

    def test_rules_can_be_given(self) -> None:
        free = run(gpus=16, cost_model=Flat(), rules=[r for r in RULES if r.id != "tp-kv-heads"])
        assert "tp-kv-heads" not in free.counts.removed


class TestSpace:
    @pytest.mark.parametrize(
        ("kwargs", "words"),
        [
            ({"tp": ()}, "tp: no values to try"),
            ({"mbs": (1, 0)}, "mbs must be at least 1, not 0"),
            ({"schedule": ()}, "schedule: no values to try"),
            ({"order": ("tp", "pp")}, "order must name each of tp, cp, ep, dp, pp once, not tp-pp"),
        ],
    )
    def test_refused(self, kwargs: dict[str, object], words: str) -> None:
        with pytest.raises(InputError, match=words):
            Space(**kwargs)  # type: ignore[arg-type]

    def test_all_divisors_not_powers_of_two_only(self) -> None:
        setting = Setting(DENSE, cluster_of("h100-sxm", 24), Workload(seq=4096, gbs=18))
        values = Space().values(setting)
        assert values["tp"] == (1, 2, 3, 4, 6, 8, 12, 24)
        assert values["mbs"] == (1, 2, 3, 6, 9, 18)
        assert values["ep"] == values["etp"] == (1,)
        assert Space().values(setting._replace(model=SPARSE))["ep"] == (1, 2, 3, 6)

    def test_handbook_space_is_the_chapters(self) -> None:
        setting = Setting(LLAMA, cluster_of("h100-sxm", 64), Workload(seq=8192, gbs=512))
        values = Space.handbook().values(setting)
        assert values["tp"] == (1, 2, 4, 8)
        assert values["cp"] == (1, 2, 4, 8, 16, 32)
        assert values["pp"] == (1, 2, 4, 8, 16)
        assert values["mbs"] == (1,)


class TestTables:
    def test_concatenated_tables_keep_their_layouts(self) -> None:
        a = Plans.of(Plan(pp=2, layout=(3, 1)), Plan(pp=2))
        b = Plans.of(Plan(pp=2, layout=(2, 2)), Plan(pp=2, layout=(3, 1)))
        both = Plans.concatenate([a, b])
        assert [p.layout for p in both] == [(3, 1), None, (2, 2), (3, 1)]
        assert both.layouts == ((3, 1), (2, 2))
        assert both.order == DEFAULT_ORDER


def test_the_package_can_be_called_like_its_verb() -> None:
    ranking = meshplan.search(
        meshplan.load_model("llama-3.1-8b"),
        meshplan.cluster_of("h100-sxm", 8),
        meshplan.Workload(seq=8192, gbs=64),
        space=meshplan.Space(tp=(1, 2)),
    )
    assert isinstance(ranking, meshplan.Ranking)
    assert ranking.best is not None
