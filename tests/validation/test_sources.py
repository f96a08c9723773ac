"""Which software a row is priced with, where the name of its source is one that nobody has seen before."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from meshplan.validation.rows import TEXT, Row
from meshplan.validation.sources import source_of

TABLE = Path(__file__).parents[3] / "shared" / "measurements" / "measurements.csv"


def _row(**text: str) -> Row:
    return Row(line=2, text={column: text.get(column, "") for column in TEXT}, number={})


@pytest.mark.parametrize(
    ("ref", "stack"),
    [
        ("mosaicml/llm-foundry:scripts/train/benchmarking/README.md", "fsdp-2023"),
        ("NVIDIA-NeMo/Megatron-Bridge docs/performance-summary.md", "megatron-bridge"),
        ("NVIDIA/NeMo docs/source/performance/performance_summary.md", "nemo-2024"),
        ("Ascend/MindSpeed-LLM:examples/mcore/mixtral/pretrain_mixtral_8x22b.sh", "mindspeed"),
        ("huggingface/nanotron:docs/benchmark_summary.svg", "nanotron"),
        ("arXiv 2205.05198 Table 5", "megatron-2022"),
        ("arXiv:2401.10241 Table 4", "zero-bubble"),
    ],
)
def test_the_repository_or_paper_says_the_software_of_an_unknown_source(ref: str, stack: str) -> None:
    assert source_of(_row(source="somebody", ref=ref)).stack == stack


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ({"notes": "Megatron-DeepSpeed GPT, 1F1B", "release": "2022-03"}, "megatron-deepspeed-2022"),
        ({"notes": "Megatron-DeepSpeed GPT, 1F1B"}, "megatron-deepspeed-2023"),
        ({"notes": "FSDP2, compile", "release": "2024-11"}, "torchtitan-compile"),
        ({"notes": "torchtitan, no compile", "release": "2024-11"}, "torchtitan"),
        ({"notes": "FSDP2, compile", "release": "2026-02"}, "torchtitan-2026"),
        ({"notes": "DeepSpeed ZeRO-3", "release": "2024-04"}, "deepspeed"),
        ({"notes": "DeepSpeed ZeRO-3", "release": "2021-04"}, "deepspeed-2021"),
        ({"notes": "MaxText", "release": "2025-02"}, "jax"),
        ({"gpu": "Ascend 910B", "release": "2024-10"}, "mindspeed"),
        ({"gpu": "trn1", "notes": "XLA"}, "neuron"),
        ({"sharding": "fsdp", "release": "2023-08"}, "fsdp-2023"),
        ({"sharding": "zero3", "release": "2024-08"}, "deepspeed"),
        ({"sharding": "zero1", "release": "2021-04"}, "megatron-2021"),
        ({"sharding": "zero1", "release": "2026-04"}, "megatron-core-2025"),
        ({}, "megatron-core-2025"),
    ],
)
def test_notes_hardware_or_year_say_it_where_nothing_else_does(text: dict[str, str], stack: str) -> None:
    assert source_of(_row(source="somebody", **text)).stack == stack


def test_every_row_of_the_large_table_has_its_stack_without_the_name_of_its_source() -> None:
    if not TABLE.exists():
        pytest.skip(f"the table of measured runs is not there: {TABLE}")
    with TABLE.open(encoding="utf-8", newline="") as file:
        records = list(csv.DictReader(file))
    for record in records:
        row = {column: record.get(column) or "" for column in TEXT}
        named, unnamed = source_of(_row(**row)), source_of(_row(**{**row, "source": "somebody"}))
        assert unnamed.stack == named.stack, row["ref"]
