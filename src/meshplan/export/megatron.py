"""Target ``megatron``: ``pretrain_gpt.py`` with every argument, for Megatron-Core 0.16 and the present main.

Checked against ``megatron/training/arguments.py`` at core_v0.16.1 (March 2026) and core_v0.19.0.
"""

from __future__ import annotations

from meshplan.export.environment import environment
from meshplan.export.header import header
from meshplan.export.launch import Fitting, Job, Launch
from meshplan.export.megatron_model import model_options
from meshplan.export.megatron_plan import (
    data_parallel_options,
    fit_megatron,
    offload_options,
    plan_options,
    recompute_options,
)
from meshplan.export.quoting import Option, option_lines, shell_array
from meshplan.export.torchrun import run_script

VERSION = "Megatron-Core 0.16.1 to 0.19"
_PRECISION: dict[str, list[Option]] = {
    "bf16": [("--bf16",)],
    "fp16": [("--fp16",)],
    "fp32": [],
    "fp8": [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")],
    "mxfp8": [("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")],
    "nvfp4": [("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")],
}


def megatron_arguments(fitting: Fitting) -> list[tuple[str, list[Option]]]:
    """Every argument in groups, for a plan that ``fit_megatron`` went over."""
    workload, plan = fitting.job.setting.workload, fitting.plan
    return [
        ("model", model_options(fitting)),
        ("parallelism", plan_options(fitting)),
        ("data parallel", [*data_parallel_options(plan), *offload_options(fitting)]),
        ("recompute", recompute_options(plan)),
        (
            "batch and sequence",
            [
                ("--micro-batch-size", str(plan.mbs)),
                ("--global-batch-size", str(workload.gbs)),
                ("--seq-length", str(workload.seq)),
            ],
        ),
        ("precision", _PRECISION[workload.precision]),
        ("data and tokenizer: put your own here", _data(fitting.job)),
        ("training: put your own here", _training()),
    ]


def _data(job: Job) -> list[Option]:
    # The synthetic tokenizer adds an end-of-document token up to 0.16, and not later; with one token fewer
    # the padded vocabulary is the same.
    return [
        ("--mock-data",),
        ("--tokenizer-type", "NullTokenizer"),
        ("--vocab-size", str(max(1, job.model.vocab - 1))),
        ("--make-vocab-size-divisible-by", "128"),
    ]


def _training() -> list[Option]:
    return [
        ("--train-iters", "100"),
        ("--lr", "1e-4"),
        ("--min-lr", "1e-5"),
        ("--lr-warmup-iters", "10"),
        ("--lr-decay-style", "cosine"),
        ("--eval-iters", "0"),
        ("--log-interval", "1"),
        ("--log-throughput",),
        ("--distributed-timeout-minutes", "60"),
    ]


def export_megatron(job: Job) -> Launch:
    """``run.sh``, and ``megatron.args`` with the same arguments, one option a line."""
    fitting = Fitting(job)
    fit_megatron(fitting)
    groups = megatron_arguments(fitting)
    title = f"Megatron-LM pretrain_gpt.py ({VERSION})"
    before = [
        ': "${MEGATRON:=Megatron-LM}"  # the folder of a Megatron-LM checkout',
        shell_array("ARGS", groups),
    ]
    run = run_script(
        job,
        title,
        env=environment(job, megatron=True),
        before=before,
        program='"$MEGATRON/pretrain_gpt.py" "${ARGS[@]}"',
    )
    args = header(job, f"Arguments of {title}") + "".join(
        f"{line}\n" for _, options in groups for line in option_lines(options)
    )
    return Launch(
        target="megatron",
        version=VERSION,
        files={"run.sh": run, "megatron.args": args},
        main="run.sh",
        written=fitting.plan,
        order=fitting.order,
        notes=tuple(fitting.notes),
    )
