"""Fits the few scalars of a software stack on published runs: ``fit_stacks.py RUNS.csv STACK [PARAMETER …]``.

Every scalar is shared by all runs of the stack. Minimises a robust (soft L1) sum of squared log ratios
of estimated and measured step time over the rows of tiers A and B whose configuration is known, inside
physical bounds, and prints the errors before and after and the lines for the stack's TOML file. Needs
SciPy besides meshplan.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from meshplan.cost.full.stack import load_stack
from meshplan.validation.cases import Case, SkippedError, case_of
from meshplan.validation.metrics import Errors
from meshplan.validation.rows import read_rows
from meshplan.validation.run import price_cases

BOUNDS = {
    "matmul": (0.4, 1.0),
    "grouped_rate": (0.1, 1.0),
    "attention_rate": (0.3, 1.0),
    "memory_rate": (0.3, 1.0),
    "permute_rate": (0.1, 0.8),
    "network_rate": (0.2, 1.0),
    "scaleup_rate": (0.2, 1.0),
    "tp_exposed": (0.1, 1.0),
    "tp_wait_s": (0.0, 10e-3),
    "ep_exposed": (0.05, 1.0),
    "fsdp_overlap": (0.3, 1.0),
    "cast_share": (0.0, 1.0),
    "host_layer_s": (0.0, 20e-3),
    "host_moe_s": (0.0, 20e-3),
    "host_overlap": (1.0, 3.0),
    "host_backward": (0.5, 3.0),
    "host_tp_s": (0.0, 3e-3),
    "host_micro_s": (0.0, 50e-3),
    "partial_graph_host": (0.0, 1.0),
    "kernel_gap_s": (0.0, 30e-6),
    "step_s": (0.0, 1.0),
    "straggler": (0.0, 0.03),
}
"""Smallest and largest value that physics allows."""


def cases_of(path: Path, stack: str) -> list[Case]:
    """The usable rows of the stack that have a step time and leave nothing open."""
    cases = []
    for row in read_rows(path):
        if row.text["tier"] not in ("A", "B"):
            continue
        try:
            case = case_of(row)
        except SkippedError:
            continue
        if case.stack.name == stack and case.step_s and "micro-batch" not in case.assumed:
            cases.append(case)
    return cases


def with_values(cases: list[Case], values: dict[str, float]) -> list[Case]:
    """The same cases on the stack with other scalars."""
    return [replace(case, stack=replace(case.stack, **values)) for case in cases]


def log_ratios(cases: list[Case]) -> np.ndarray:
    """ln(estimated / measured) step time."""
    return np.array([np.log(o.step_s / o.case.step_s) for o in price_cases(cases) if o.case.step_s])


def main() -> int:
    """Runs the fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("stack")
    parser.add_argument("parameters", nargs="*", default=["matmul", "memory_rate", "host_layer_s", "step_s"])
    parser.add_argument("--sample", type=int, default=400, help="at most so many rows, evenly picked")
    parser.add_argument("--write", type=Path, help="put the values into this TOML file")
    parser.add_argument("--source", default="", help="only rows whose source contains this")
    options = parser.parse_args()
    cases = [c for c in cases_of(options.runs, options.stack) if options.source in c.row.text["source"]]
    if not cases:
        print(f"no rows of stack {options.stack}", file=sys.stderr)
        return 1
    sample = cases[:: max(1, -(-len(cases) // options.sample))]
    stack = load_stack(options.stack)
    names = options.parameters
    low, high = (np.array([BOUNDS[n][i] for n in names]) for i in (0, 1))
    start = np.array([getattr(stack, n) for n in names])

    def residuals(unit: np.ndarray) -> np.ndarray:
        values = low + unit * (high - low)
        return log_ratios(with_values(sample, dict(zip(names, values.tolist(), strict=True))))

    begin = np.clip((start - low) / (high - low), 0.02, 0.98)
    fit = least_squares(
        residuals, begin, bounds=(0, 1), loss="soft_l1", f_scale=0.05, diff_step=1e-3, max_nfev=12
    )
    values = dict(zip(names, (low + fit.x * (high - low)).tolist(), strict=True))
    for label, some in (("before", cases), ("after", with_values(cases, values))):
        errors = Errors.of(np.expm1(log_ratios(some)))
        print(f"{label}: {errors}")
    for name, value in values.items():
        print(f"{name} = {value:.3g}")
    if options.write:
        write(options.write, values)
    return 0


def write(path: Path, values: dict[str, float]) -> None:
    """Replaces the values' lines in a stack file, or adds them; all else stays as it is."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for name, value in values.items():
        line = f"{name} = {float(f'{value:.3g}')}"
        at = [i for i, old in enumerate(lines) if old.split("=")[0].strip() == name]
        if at:
            lines[at[0]] = line
        else:
            lines.insert(next((i for i, old in enumerate(lines) if old == "[sources]"), len(lines)), line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
