"""The page of ``measured_accuracy.py``: measured steps beside three estimates, and what they are worth."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from meshplan.calibrate.from_results import read_cases
from meshplan.calibrate.profile import calibration
from meshplan.calibrate.samples import read_samples
from meshplan.calibrate.stack_fit import Case, StackFit, fit_stack, prices, scalars
from meshplan.calibrate.write import profile_path, write
from meshplan.cluster.cluster import Cluster
from meshplan.cluster.files import cluster_of_table
from meshplan.cost.full.stack import load_stack
from meshplan.measure.results import read

STACK = "torchtitan"
APART = 0.15
"""Pairs of plans measured at least this far apart must be ranked rightly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """How good one list of times is as a prediction of another."""

    error: float
    pairs: int
    right: int
    regret: float
    tau: float

    @classmethod
    def of(cls, said: Sequence[float], seen: Sequence[float]) -> Worth:
        """Median relative error; pairs ``APART`` and how many are in the right order; what the choice costs
        over the best; Kendall's tau."""
        far, right, score, every = 0, 0, 0, 0
        for i, j in itertools.combinations(range(len(seen)), 2):
            agree = (said[i] - said[j]) * (seen[i] - seen[j])
            every += 1
            score += (agree > 0) - (agree < 0)
            if max(seen[i], seen[j]) / min(seen[i], seen[j]) - 1 >= APART:
                far += 1
                right += agree > 0
        chosen = min(range(len(said)), key=lambda i: said[i])
        return cls(
            error=median(abs(a / b - 1) for a, b in zip(said, seen, strict=True)),
            pairs=far,
            right=right,
            regret=seen[chosen] / min(seen) - 1,
            tau=score / every,
        )

    def row(self, name: str) -> str:
        """A line of the table."""
        share = f"{self.right} of {self.pairs} ({self.right / self.pairs:.0%})" if self.pairs else "–"
        return f"| {name} | {self.error:.1%} | {share} | {self.regret:.1%} | {self.tau:.2f} |"


def page(folder: Path, *, rate: str) -> tuple[str, dict[str, Any]]:
    """Markdown and the numbers in it."""
    samples, about = read_samples(folder / "samples.json")
    path = folder / "box.yaml"
    made = calibration(samples, about, name="box", profile_file=profile_path(path).name)
    box = write(made, path)
    cases = read_cases([folder / "results.jsonl"], box)
    seen = [c.step_s for c in cases]
    plain = prices(cases, datasheet(rate, about), load_stack(STACK)).tolist()
    fit = fit_stack(cases, box, load_stack(STACK), name="box")
    calibrated = [r.before_s for r in fit.rows]
    fitted, held = [r.after_s for r in fit.rows], [r.held_back_s for r in fit.rows]
    first, second = halves(folder / "results.jsonl", cases)
    worth = {
        "datasheet": Worth.of(plain, seen),
        "calibrated curves": Worth.of(calibrated, seen),
        "curves and stack": Worth.of(fitted, seen),
        "the same, each plan held back": Worth.of(held, seen),
        "one half of the rounds for the other": Worth.of(first, second),
    }
    mesh = order_rows(folder / "order") if (folder / "order" / "results.jsonl").exists() else None
    best = worth["the same, each plan held back"]
    met = {
        "median error of a step at most 15 %": best.error <= 0.15,
        f"pairs {APART:.0%} apart ranked rightly in at least 90 %": best.right >= 0.9 * best.pairs,
        "the chosen plan within 10 % of the best measured": best.regret <= 0.10,
        "calibrating at least halves the error": best.error <= worth["datasheet"].error / 2,
    }
    if mesh:
        met["TP inside or across the hosts: the same winner"] = mesh["winner"]
        met["and the ratio of the two within 25 %"] = mesh["ratio"]
    numbers = {
        "plans": len(cases),
        **{
            k: {f: getattr(w, f) for f in ("error", "pairs", "right", "regret", "tau")}
            for k, w in worth.items()
        },
        "met": met,
        "order": mesh,
    }
    return "\n".join(
        _lines(folder, about, made.fits, box, cases, fit, plain, worth, met, mesh, rate)
    ) + "\n", numbers


def datasheet(rate: str, about: Mapping[str, Any]) -> Cluster:
    """The machine as its datasheet has it: cores at their clock with two fp32 vector units, the link's rate,
    and the shares of peak that an H100's kernels reach."""
    flops = 2.8e9 * (64 if _has("avx512f") else 32)
    bits = float(rate.removesuffix("gbit")) * 1e9
    name = f"{flops / 1e12:g} TFLOP/s"
    gpu = {
        "like": "h100-sxm", "title": "CPU core, datasheet", "hbm": f"{int(str(about['memory_bytes']))} B",
        "hbm_bandwidth": "20 GB/s", "nic_bandwidth": f"{bits / 8e9:g} GB/s", "gpus_per_host": 1,
        "peak_flops": {"bf16": name, "fp16": name, "tf32": name, "fp32": name},
    }  # fmt: skip
    tiers = [
        {"name": "host", "span": 1, "bandwidth": "20 GB/s"},
        {"name": "network", "bandwidth": f"{bits / 8e9:g} GB/s", "latency": "50 us"},
    ]
    return cluster_of_table({"name": "datasheet", "gpu": gpu, "gpus": 2, "tiers": tiers}, where="datasheet")


def _has(flag: str) -> bool:
    try:
        return flag in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def halves(path: Path, cases: Sequence[Case]) -> tuple[list[float], list[float]]:
    """Each plan's median step over the even and over the odd rounds."""
    found: tuple[list[float], list[float]] = ([], [])
    results = read(path)
    for c in cases:
        for parity in (0, 1):
            steps = [s for r in results if r.label == c.label and r.round % 2 == parity for s in r.steps_s]
            found[parity].append(median(steps))
    return found


def order_rows(folder: Path) -> dict[str, Any]:
    """TP inside the hosts against TP across them; the stack's scalars are fitted on the other plans."""
    samples, about = read_samples(folder / "samples.json")
    path = folder / "box4.yaml"
    box = write(calibration(samples, about, name="box4", profile_file=profile_path(path).name), path)
    cases = read_cases([folder / "results.jsonl"], box)
    results = read(folder / "results.jsonl")
    inside, across = (next(c for c in cases if c.label == name) for name in ("tp inside", "tp across"))
    steps = [[s for r in results if r.label == c.label for s in r.steps_s] for c in (inside, across)]
    others = [c for c in cases if c not in (inside, across)]
    start, values = scalars(others, box, load_stack(STACK))
    curves = prices([inside, across], box, start)
    said = prices([inside, across], box, replace(start, **values))
    seen, told = across.step_s / inside.step_s, float(said[1] / said[0])
    return {
        "inside_s": inside.step_s, "across_s": across.step_s, "measured_ratio": seen, "estimated_ratio": told,
        "spread": max(max(s) / min(s) - 1 for s in steps),
        "rate": json.loads((folder / "runs.json").read_text())["rate"],
        "estimated_inside_s": float(said[0]), "estimated_across_s": float(said[1]),
        "curves_inside_s": float(curves[0]), "curves_across_s": float(curves[1]),
        "fitted_on": [c.label for c in others], "scalars": values,
        "winner": bool((seen > 1) == (told > 1)), "ratio": abs(told / seen - 1) <= 0.25,
    }  # fmt: skip


def _lines(
    folder: Path, about: Mapping[str, Any], fits: Sequence[Any], box: Cluster, cases: Sequence[Case],
    fit: StackFit, plain: Sequence[float], worth: Mapping[str, Worth], met: Mapping[str, bool],
    mesh: Mapping[str, Any] | None, rate: str,
) -> list[str]:  # fmt: skip
    results = read(folder / "results.jsonl")
    rounds = 1 + max(r.round for r in results)
    model, work = cases[0].model, cases[0].workload
    load = json.loads((folder / "load.json").read_text()) if (folder / "load.json").exists() else []
    lines = [
        "# Measured: estimates held against real runs",
        "",
        "<!-- Made by tools/measured_accuracy.py: do not edit. -->",
        "",
        f"{len(cases)} plans of a small decoder ({model.hidden} wide, {len(model.layers)} layers, sequences"
        f" of {work.seq} tokens, {work.gbs} of them a step, fp32) were trained for real with PyTorch"
        f" {about['torch']} by the reference engine: two processes in two network namespaces of one machine"
        f" with {about['cores']} cores, joined by a link of {rate}. Loss and gradients of every plan equal"
        " those of one process before anything is timed.",
        "",
        f"The plans and the calibration took turns, {rounds} rounds of"
        f" {len(results[0].steps_s)} timed steps each, {about['date']}."
        + (
            f" The machine was shared: its load average was {load[0]:.1f} to {load[1]:.1f} while this ran."
            if load
            else ""
        ),
        "",
        "| estimate | median error | pairs 15 % apart ranked rightly | chosen plan over the best"
        " | Kendall's τ |",
        "|---|---|---|---|---|",
        *(w.row(name) for name, w in worth.items()),
        "",
        "*datasheet*: the core's clock times its vector width, 20 GB/s of memory, the link's rate, and the"
        " shares of them that an H100's kernels reach. *calibrated curves*: what `meshplan calibrate`"
        " measured beside the runs. *curves and stack*: also the stack's scalars, fitted on these"
        " runs (`meshplan calibrate --from results.jsonl`). *each plan held back*: every plan estimated by"
        " a fit on the others, which has not seen it; a plan that is alone in what it does (the only one that"
        " gathers with every second micro-batch, say) is then estimated with a scalar that nothing has set."
        " *one half for the other*: how well the measurement predicts itself, the even rounds the odd ones:"
        " no estimate can be asked for more.",
        "",
        "Asked of the plans held back:",
        "",
        *(f"- {'met' if ok else '**not met**'}: {what}" for what, ok in met.items()),
        "",
        "## Plan by plan",
        "",
        "| plan | measured | datasheet | calibrated curves | curves and stack | held back |",
        "|---|---|---|---|---|---|",
        *(
            f"| {r.label} | {r.measured_s:.2f} s | {p / r.measured_s - 1:+.0%} |"
            f" {r.before_s / r.measured_s - 1:+.0%} | {r.after_s / r.measured_s - 1:+.0%} |"
            f" {r.held_back_s / r.measured_s - 1:+.0%} |"
            for r, p in sorted(zip(fit.rows, plain, strict=True), key=lambda x: x[0].measured_s)
        ),
        "",
        f"Scalars fitted on all of them: {', '.join(f'`{k}` {v:.3g}' for k, v in fit.values.items())}.",
    ]
    if mesh:
        lines += [
            "",
            "## Which dimension crosses the link",
            "",
            f"Another small decoder, narrow and with many tokens, over a link of {mesh['rate']}: tp 2 × dp 2"
            f" on two ranks of each host takes {mesh['inside_s']:.2f} s a step with TP inside the hosts,"
            f" {mesh['across_s']:.2f} s with TP across, {mesh['measured_ratio']:.2f} times as long."
            f" Estimated, with scalars fitted on {len(mesh['fitted_on'])} other plans on the same ranks"
            f" ({', '.join(f'`{n}`' for n in mesh['fitted_on'])}): {mesh['estimated_inside_s']:.2f} s and"
            f" {mesh['estimated_across_s']:.2f} s, {mesh['estimated_ratio']:.2f} times, which is"
            f" {mesh['estimated_ratio'] / mesh['measured_ratio'] - 1:+.0%}. From the curves alone:"
            f" {mesh['curves_inside_s']:.2f} s and {mesh['curves_across_s']:.2f} s; they lack what the host"
            " does for every operator of the module.",
            "",
            "Four ranks have half a core each there, and two TP groups one link. So the calibration keeps all"
            " ranks busy while it times a kernel, and lets all groups of a kind run at once while it times a"
            " collective: one alone would find the whole link, and in a step it has half of it.",
        ]
    return [
        *lines,
        "",
        "## What was calibrated",
        "",
        f"Link found: {box.tiers[-1].bandwidth * 8 / 1e9:.3f} Gbit/s (set to {rate}).",
        "",
        "| curve | points | median error | noise |",
        "|---|---|---|---|",
        *(f"| {f.what} | {f.points} | {f.median_error:.1%} | {f.noise:.1%} |" for f in fits),
        "",
        "To run it again: `sudo python tools/measured_accuracy.py --out docs/measured.md`.",
    ]


def note_load(folder: Path) -> None:
    """Remember the least and most load average seen."""
    path, now = folder / "load.json", os.getloadavg()[0]
    low, high = json.loads(path.read_text()) if path.exists() else (now, now)
    path.write_text(json.dumps([min(low, now), max(high, now)]))
