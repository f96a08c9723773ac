"""How runs of torchtitan are read: what its history and a row's words say of the software."""

from __future__ import annotations

import pytest

from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import ALL_LAYERS
from meshplan.validation.cases import Case, case_of
from meshplan.validation.rows import OPTIONAL_NUMBERS, REQUIRED_NUMBERS, TEXT, Row

NUMBERS = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256,
    "gated": 1, "seq": 8192, "gpus": 8, "gpus_per_node": 8, "gbs": 8, "mbs": 1, "tp": 1, "cp": 1, "pp": 1,
    "dp": 8, "step_s": 1.4,
}  # fmt: skip


def case(
    release: str, notes: str, *, precision: str = "bf16", recompute: str = "selective", **numbers: float
) -> Case:
    text = dict.fromkeys(TEXT, "")
    text |= {
        "id": "a", "source": "torchtitan-commit", "release": release, "tier": "A", "model": "llama3-8b",
        "gpu": "H100", "sharding": "fsdp", "recompute": recompute, "precision": precision, "notes": notes,
    }  # fmt: skip
    number = dict.fromkeys((*REQUIRED_NUMBERS, *OPTIONAL_NUMBERS), None) | NUMBERS | numbers
    return case_of(Row(line=2, text=text, number=number))


def test_torchtitan_copied_keys_and_values_until_january_2026():
    # pull request 2259, 2026-01-27; q, k and v are one product since 3714, 2026-06-24
    releases = ["2025-10", "2026-03", "2026-08"]
    stacks = [case(release, "compile").stack for release in releases]
    assert [s.repeats_kv for s in stacks] == [True, False, False]
    assert [s.joined_products for s in stacks] == ["none", "none", "qkv"]


def test_the_graph_trainer_ran_operator_by_operator_at_first():
    # commit f6ebe8402: backend aot_eager and no passes unless asked for; buckets from April 2026 on
    first, later, bucketed = (
        case("2026-03", "graph_trainer FSDP4 TP2").stack,
        case("2026-06", "graph_trainer aot_fx_trace").stack,
        case("2025-10", "SimpleFSDP aot_eager manual bucketing").stack,
    )
    assert (first.fused, first.fsdp_overlap, first.traced) == (False, 0.0, True)
    assert later.fused
    assert later.fsdp_overlap == bucketed.fsdp_overlap > 0.8


def test_what_runs_without_compiling():
    compiled, eager = (case("2025-10", notes).stack for notes in ("FSDP2 compile", "FSDP2"))
    assert (compiled.fused, eager.fused) == (True, False)


@pytest.mark.parametrize(
    ("precision", "rows", "gathers"),
    [("fp8-rowwise", True, False), ("fp8-tensorwise", False, True), ("fp8", False, True)],
)
def test_what_is_cast_and_gathered_in_fp8(precision, rows, gathers):
    stack = case("2025-02", "compile", precision=precision).stack
    assert (stack.fp8_rows, stack.fp8_gathers) == (rows, gathers)


def test_an_interleaved_schedule_has_two_stages_a_rank_unless_told():
    run = {"gpus": 64, "pp": 8, "dp": 8, "gbs": 64}
    plans = [case("2024-12", notes, **run).plan for notes in ("compile; Interleaved1F1B", "compile; 1F1B")]
    assert [(p.vp, p.schedule) for p in plans] == [(2, Schedule.INTERLEAVED), (1, Schedule.ONE_F_ONE_B)]
    assert case("2024-12", "compile; Interleaved1F1B", vp=4, **run).plan.vp == 4


def test_checkpointing_that_is_likely_full():
    # commit d66b72a6a: a second sequence of 4,096 in 64 layers takes 7.9 GiB more, logits and layer inputs
    run = case(
        "2025-09", 'no compile (AC mode for "unknown" rows not stated; likely full)', recompute="unknown"
    )
    assert run.plan.recompute_layers == ALL_LAYERS
    assert "recompute" in run.assumed


def test_nothing_is_sent_by_a_fake_backend():
    stack = case("2026-08", "compile; FAKE comm backend (compute-only)").stack
    assert (stack.ep_exposed, stack.fsdp_overlap) == (0.0, 1.0)
