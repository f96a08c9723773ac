"""``meshplan validate``: the cost model held against measured runs."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json, option, read_count
from meshplan.cost.full.stack import load_stack
from meshplan.errors import InputError, UnknownNameError, shown
from meshplan.report.screen import Screen
from meshplan.report.validation_view import validation_data, validation_text
from meshplan.validation.figures import NAME, own_rows
from meshplan.validation.rows import Row, read_rows
from meshplan.validation.run import Run, run
from meshplan.validation.summary import family_key, summarise
from meshplan.validation.words import TIERS

app = cyclopts.App(
    name="validate", help_formatter=HelpFormatter(), usage="Usage: meshplan validate [OPTIONS] [FILE]"
)


def read_words(text: str, what: str) -> tuple[str, ...]:
    """Comma-separated words; ``what`` names them in the message of the ``InputError``."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise InputError(f"{what} lists nothing")
    return words


def read_zero_or_more(text: str, what: str) -> int:
    """A whole number from 0."""
    if text.strip().startswith("-") and text.strip()[1:].isdecimal():
        raise InputError(f"{what} must be at least 0, not {shown(text)}")
    return 0 if text.strip() == "0" else read_count(text, what)


Words = Annotated[tuple[str, ...] | None, option(read_words, metavar="NAMES")]


@app.default
def validate(
    file: str | None = None,
    /,
    *,
    by: Words = None,
    tier: Words = None,
    stack: Annotated[str | None, Parameter(metavar="NAME")] = None,
    cost_model: Annotated[Literal["full", "handbook"], Parameter(metavar="NAME")] = "full",
    worst: Annotated[int, option(read_zero_or_more)] = 0,
    json_: Json = False,
) -> int:
    """Hold the cost model against measured training runs: errors of time and memory, ranking, verdicts.

    Errors are estimated over measured, less 1. `signed` is the median with its sign, the others are of
    the absolute error.

    FILE is separated by commas. Its first line names the columns, in any order; others may stand between
    them. An empty cell is a value not given.

    Columns that must be there, with cells that must be filled for a row to be priced: model; gpu, a name of
    `meshplan gpus`; layers, hidden, heads, vocab; ffn, unless all layers have experts; seq, in tokens; gbs,
    sequences a step; gpus, tp, pp; and one of step_s, in seconds, tokens_s_gpu, tokens a second and GPU,
    and peak_gib, GiB of the fullest GPU.

    Columns that must be there, whose cells may be empty: id, source (who measured), kv_heads, head_dim,
    gpus_per_node, mbs (sequences a micro-batch), cp, dp.

    Columns that may be there, counts: vp, ep, etp, experts, topk, moe_ffn, shared_ffn, dense_layers (the
    first layers, without experts); 1 or 0: gated, mla, sp.

    Columns that may be there, words: sharding (none, ddp, zero1, zero2, zero3, fsdp, hsdp), recompute (none,
    selective, full, unknown), precision (bf16, fp16, fp32, fp8, mxfp8, nvfp4), tier (A, B, C), release
    (YYYY-MM), ref, and notes, which tell the software and its switches, or OOM for a run out of memory.

    Other words for recompute, precision (then bf16) and tier are taken as not given and listed, in the JSON
    under `not_understood`; rows that cannot be priced are counted with the reason.

    Parameters
    ----------
    file
        A CSV file of measured runs with the columns above (default: the table that comes with meshplan).
    by
        Group rows by source, gpu, model, precision, sharding, recompute, release, tier, stack, kind
        (dense or moe), or several: source,gpu.
    tier
        Only rows of these tiers: A (complete), B (something inferred), C (approximate).
    stack
        Price every row with this software stack instead of the one of its source.
    cost_model
        full, or handbook alone.
    worst
        Show so many of the largest errors of step time.
    """
    groups = by or ("source",)
    family_key(groups)
    if stack is not None:
        load_stack(stack)
    where = NAME if file is None else file
    found = run(own_rows() if file is None else read_rows(file), keep=_keep(tier), stack=stack)
    _refuse_nothing(found, where)
    summary = summarise(found, by=groups, worst=worst, cost_model=cost_model)
    if json_:
        print(json.dumps(validation_data(summary, where), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        sys.stdout.write(validation_text(summary, where, Screen.of()))
    return 0


class _Keep:
    """Rows of the chosen tiers."""

    def __init__(self, tiers: Sequence[str] | None) -> None:
        self.tiers = None if tiers is None else frozenset(t.upper() for t in tiers)
        for name in self.tiers or ():
            if name not in TIERS:
                raise UnknownNameError("tier", name, TIERS, f"known: {', '.join(TIERS)}")

    def __call__(self, row: Row) -> bool:
        return self.tiers is None or row.text["tier"] in self.tiers


def _keep(tiers: Sequence[str] | None) -> _Keep:
    return _Keep(tiers)


def _refuse_nothing(found: Run, where: str) -> None:
    """Raise ``InputError`` when no row could be used: the first obstacle, with line and column."""
    if found.outcomes:
        return
    if not found.rows:
        raise InputError(f"{where} has no rows")
    if found.first_skip is None:
        raise InputError(f"{where}: of {found.rows:,} rows none is of the tiers asked for")
    line, column, reason = found.first_skip
    place = f"line {line}, column {column}" if column else f"line {line}"
    raise InputError(f"{where}, {place}: {reason}; none of the {found.rows:,} rows can be used")
