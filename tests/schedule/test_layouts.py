"""Stage layouts: the exact split against enumeration, Megatron strings, cases people met."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from meshplan.errors import InputError
from meshplan.schedule.layout import MemoryLimit, Split, best_split
from meshplan.schedule.layout_string import even_split, read_layout, split_with_ends, write_layout


def smallest_bottleneck(
    costs: list[float], ranks: int, vp: int, v_shaped: bool, first: float, last: float, least: int,
    memory: MemoryLimit | None = None,
) -> float:  # fmt: skip
    """The best of all contiguous splits, one after the other."""
    n, stages = len(costs), ranks * vp
    ring = [*range(ranks)]
    home = [(ring[::-1] if v_shaped and turn % 2 else ring)[place] for turn in range(vp) for place in ring]
    best = np.inf
    for cuts in itertools.combinations_with_replacement(range(n + 1), stages - 1):
        bounds = (0, *cuts, n)
        pieces = list(itertools.pairwise(bounds))
        if any(high - low < least for low, high in pieces):
            continue
        cost, held = [0.0] * ranks, [0.0] * ranks
        for stage, (low, high) in enumerate(pieces):
            cost[home[stage]] += sum(costs[low:high]) + first * (stage == 0) + last * (stage == stages - 1)
            if memory is not None:
                kept = memory.in_flight[stage] * sum(memory.activations[low:high])
                held[home[stage]] += memory.fixed[stage] + sum(memory.states[low:high]) + kept
        if memory is None or max(held) <= memory.limit:
            best = min(best, max(cost))
    return best


@pytest.mark.parametrize("seed", range(80))
def test_exact_for_one_stage_a_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 12))
    ranks, least = int(rng.integers(1, min(n, 5) + 1)), int(rng.integers(0, 2))
    costs = (rng.choice([1.0, 2.5], n) if seed % 2 else rng.random(n)).tolist()
    first, last = (rng.random(2) * (seed % 3)).tolist()
    memory = None
    if seed % 4 == 0:
        memory = MemoryLimit(
            states=rng.random(n).tolist(), activations=rng.random(n).tolist(),
            in_flight=[ranks - i for i in range(ranks)], fixed=rng.random(ranks).tolist(),
            limit=float(rng.uniform(1, 8)),
        )  # fmt: skip
    split = best_split(costs, ranks=ranks, embedding=first, head=last, least=least, memory=memory)
    best = smallest_bottleneck(costs, ranks, 1, False, first, last, least, memory)
    if split is None:
        assert best == np.inf
    else:
        assert split.exact
        assert split.bottleneck == pytest.approx(best)
        assert sum(split.counts) == n
        assert min(split.counts) >= least


@pytest.mark.parametrize("seed", range(40))
def test_exact_for_equal_layers_over_virtual_stages(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, vp, v_shaped = int(rng.integers(1, 4)), 2, bool(seed % 2)
    n = int(rng.integers(2 * ranks, 10))
    first, last = (rng.random(2) * 2).tolist()
    split = best_split([1.0] * n, ranks=ranks, vp=vp, v_shaped=v_shaped, embedding=first, head=last)
    assert split is not None
    assert split.exact
    assert split.bottleneck == pytest.approx(
        smallest_bottleneck([1.0] * n, ranks, vp, v_shaped, first, last, 1)
    )


def test_the_local_search_is_close_and_honest() -> None:
    """Layers of different cost over two stages a rank: nearly always optimal, and never wrongly called so."""
    rng = np.random.default_rng(11)
    missed = 0
    for k in range(60):
        ranks, v_shaped = int(rng.integers(1, 4)), bool(k % 2)
        n = int(rng.integers(2 * ranks, 10))
        costs = (rng.choice([1.0, 2.5], n) if k % 3 else rng.random(n)).tolist()
        first, last = rng.random(2).tolist()
        split = best_split(costs, ranks=ranks, vp=2, v_shaped=v_shaped, embedding=first, head=last)
        assert split is not None
        best = smallest_bottleneck(costs, ranks, 2, v_shaped, first, last, 1)
        assert split.bottleneck <= best * 1.1
        missed += split.bottleneck > best * (1 + 1e-9)
        if split.exact:
            assert split.bottleneck == pytest.approx(best)
    assert missed <= 3


def test_llama_3_405b() -> None:
    """126 layers over 16 stages: one less on the first and the last (arXiv 2407.21783, section 3.3.2).

    The head is 6 h V FLOP against 6 ψ of a layer: 0.66 of one; the embedding only moves bytes.
    """
    split = best_split([1.0] * 126, ranks=16, embedding=0.02, head=0.66)
    assert split is not None
    assert split.counts == (7, *[8] * 14, 7)


@pytest.mark.parametrize("vp", [1, 4, 8])
def test_llama_3_405b_interleaved(vp: int) -> None:
    """With eight stages a rank the paper's first and last hold no layer, only embedding and head."""
    split = best_split([1.0] * 126, ranks=16, vp=vp, embedding=0.02, head=0.66, least_ends=0)
    assert split is not None
    assert split.exact
    assert split.rank_costs == pytest.approx((7.02, *[8] * 14, 7.66))
    each = 8 // vp
    assert split.counts == (each - 1, *[each] * (16 * vp - 2), each - 1)


def test_few_kinds_of_layers_are_proven() -> None:
    """DeepSeek-V3: 3 dense and 58 MoE layers, head and MTP block worth 1.7, two stages on each of 16 ranks.

    59.8 over 16 ranks is 3.74 and 0.11 for the ends; a rank without ends and dense layers costs whole
    numbers, so fewer than 4 cannot do.
    """
    split = best_split([0.6] * 3 + [1.0] * 58, ranks=16, vp=2, embedding=0.02, head=1.7, least_ends=0)
    assert split is not None
    assert split.exact
    assert split.bottleneck == pytest.approx(4.0)


@pytest.mark.parametrize("seed", range(30))
def test_ends_may_be_empty(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, vp = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    n = int(rng.integers(ranks * vp - 2, 8)) if ranks * vp < 9 else 8
    n = max(n, ranks * vp - 2)
    first, last = (rng.random(2) * 3).tolist()
    split = best_split([1.0] * n, ranks=ranks, vp=vp, embedding=first, head=last, least_ends=0)
    assert split is not None
    assert min(split.counts[1:-1], default=1) >= 1
    assert sum(split.counts) == n
    free = smallest_bottleneck([1.0] * n, ranks, vp, False, first, last, 0)
    held = smallest_bottleneck([1.0] * n, ranks, vp, False, first, last, 1) if n >= ranks * vp else np.inf
    assert free - 1e-9 <= split.bottleneck <= held + 1e-9


@pytest.mark.parametrize("layers", [61, 94, 126, 30])
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_layers_that_do_not_divide(layers: int, ranks: int) -> None:
    split = best_split([1.0] * layers, ranks=ranks, embedding=0.02, head=0.6)
    assert split is not None
    assert sum(split.counts) == layers
    assert max(split.counts) - min(split.counts) <= 2
    assert split.bottleneck <= -(-layers // ranks) + 0.6


def test_deepseek_like_stack_with_mtp() -> None:
    """3 dense layers, 58 MoE layers, an MTP block; it stays after the last layer, on one stage."""
    split = best_split([0.6] * 3 + [1.0] * 58, ranks=16, embedding=0.02, head=0.5, mtp=1.1)
    assert split is not None
    assert sum(split.counts) == 61
    assert split.mtp_stage in (14, 15)
    assert split.bottleneck == pytest.approx(4.0)


def test_memory_moves_layers_back() -> None:
    """1F1B keeps p - i micro-batches on rank i: where memory binds, the first ranks get fewer layers."""
    free = best_split([1.0] * 16, ranks=4)
    bound = best_split(
        [1.0] * 16, ranks=4,
        memory=MemoryLimit(
            states=[1.0] * 16, activations=[1.0] * 16, in_flight=[4, 3, 2, 1], fixed=[0.0] * 4, limit=15.0
        ),
    )  # fmt: skip
    assert free is not None
    assert bound is not None
    assert free.counts == (4, 4, 4, 4)
    # room for 15 / 5 = 3, 15 / 4 = 3, 15 / 3 = 5, 15 / 2 = 7 layers
    assert bound.counts == (3, 3, 5, 5)
    tight = MemoryLimit(states=[1.0] * 4, activations=[1.0] * 4, in_flight=[1, 1], fixed=[0.0] * 2, limit=3.0)
    assert best_split([1.0] * 4, ranks=2, memory=tight) is None


def test_fast_enough_for_a_search() -> None:
    """126 layers over 16 stages take less than a millisecond (best of several, 5 ms allowed here)."""
    rng = np.random.default_rng(0)
    costs = rng.random(126).tolist()

    def took() -> float:
        began = time.process_time()
        best_split(costs, ranks=16, embedding=0.1, head=0.5)
        return time.process_time() - began

    assert min(took() for _ in range(20)) < 0.005


@pytest.mark.parametrize("costs", [[1.0, float("nan")], [1.0, -1.0], [1.0, float("inf")]])
def test_bad_costs(costs: list[float]) -> None:
    with pytest.raises(InputError, match="0 or more"):
        best_split(costs, ranks=2)


def test_too_few_layers() -> None:
    with pytest.raises(InputError, match="3 layers cannot put 1 on each of 4 stages: use at most 3 stages"):
        best_split([1.0] * 3, ranks=4)
    empty = best_split([1.0] * 3, ranks=4, head=1.0, least=0)
    assert isinstance(empty, Split)
    assert empty.bottleneck == 1.0


def test_megatron_string_of_megatron_bridge_5391() -> None:
    """Llama 3 70B, PP8 VP5: 40 stages, 2 + 68 + 3 + 6 + 1 = 80 layers."""
    text = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"
    layout = read_layout(text, layers=80, ranks=8)
    assert layout.stages == 40
    assert layout.layers == (2, *[2] * 34, 3, *[2] * 3, 1)
    assert write_layout(layout.layers) == text


def test_megatron_string_with_mtp() -> None:
    """Megatron-LM's own example: DeepSeek-V3 over PP16 VP2, MTP and loss on stages of their own."""
    layout = read_layout("Et*3|(tt|)*29,m|L", layers=61, ranks=16)
    assert layout.stages == 32
    assert layout.layers == (3, *[2] * 29, 0, 0)
    assert (layout.mtp.index(1), layout.loss_stage) == (30, 31)
    again = write_layout(layout.layers, mtp_layers=1, mtp_stage=30)
    assert read_layout(again) == layout


@pytest.mark.parametrize("seed", range(20))
def test_strings_survive_writing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = tuple(rng.integers(0, 4, int(rng.integers(1, 12))).tolist())
    assert read_layout(write_layout(counts)).layers == counts


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Et|t", "0 L (loss)"),
        ("EtE|L", "2 E (embedding)"),
        ("t|EtL", "out of order"),
        ("EtmtL", "out of order"),
        ("Etm|mL", "MTP layers over stages"),
        ("E(t|*3L", "'(' without ')'"),
        ("Et)L", "character 3: ')' without '('"),
        ("*3EtL", "character 1: '*' needs"),
        ("Et*L", "character 3: '*' needs"),
        ("Et*3|x|L", "character 6: 'x' is none of"),
        ("E" + "(" * 5 + "t" + "*9999)" * 5 + "L", "more than 100000 letters"),
        ("", "0 E"),
    ],
)
def test_broken_strings(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        read_layout(text)
    assert sentence in str(error.value)


def test_strings_must_fit_the_model() -> None:
    with pytest.raises(InputError, match="has 3 layers, the model 4"):
        read_layout("Et|t|tL", layers=4)
    with pytest.raises(InputError, match="has 3 stages, which 2 ranks do not divide"):
        read_layout("Et|t|tL", ranks=2)


def test_even_split_spares_the_ends() -> None:
    assert even_split(126, 16) == (7, *[8] * 14, 7)
    assert even_split(30, 4) == (7, 8, 8, 7)
    assert even_split(32, 4) == (8, 8, 8, 8)


def test_ends_as_megatron() -> None:
    assert split_with_ends(30, ranks=4, first=8, last=8) == (8, 7, 7, 8)
    assert split_with_ends(46, ranks=4, first=12, last=12) == (12, 11, 11, 12)
    assert split_with_ends(80, ranks=8, vp=5) == (2,) * 40
    assert split_with_ends(8, ranks=2, first=3, last=5) == (3, 5)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        # NVIDIA/Megatron-LM 1304: 4 × 7 of 30 layers were built.
        ({"layers": 30, "ranks": 4}, "first 8, last 8 and 7 on each rank between"),
        # modelscope/ms-swift 5737
        ({"layers": 46, "ranks": 4}, "use 2 ranks or first 11, last 11 and 12 on each"),
        # NVIDIA/Megatron-LM 468: 64 of 80 layers were built.
        ({"layers": 80, "ranks": 16, "vp": 2}, "5 layers a rank do not divide over 2 stages"),
        ({"layers": 30, "ranks": 4, "first": 9}, "with first 9 and"),
    ],
)  # fmt: skip
def test_splits_that_lose_layers_are_refused(asked: dict[str, int], sentence: str) -> None:
    if "first" in asked:
        asked = {**asked, "last": 8}
    with pytest.raises(InputError) as error:
        split_with_ends(**asked)
    assert sentence in str(error.value)
