"""Fit the efficiency profiles of ``src/meshplan/cluster/data/profiles`` on measured kernel times.

    python tools/fit_profiles.py TABLES --out src/meshplan/cluster/data/profiles [--gpu h100-sxm]

TABLES is a folder of ``GPU.gemm.csv.gz``, ``.attention.csv.gz``, ``.moe.csv.gz`` and ``.nccl.csv.gz``: the
aiconfigurator project's public measurements (github.com/ai-dynamo/aiconfigurator, ``systems/data``,
commit 095f58a5, Apache-2.0), times in µs, one row a shape; ``reduce_tables.py`` makes those of PCIe cards,
and a GPU without a table in TABLES is left as it is. Needs scipy. Deterministic: the sample, the
optimizer and the rounding have no freedom. Each curve is fitted on a sample of its table, and the error
written beside it is that of the rows left out; the run prints them all. What no table gives comes from
``profile_facts.toml`` beside this file.

Profiles that are ``like`` another GPU have no table, are written by hand and not touched here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fit_gemm import GEMM_FIELDS, OPERAND_BYTES, fit_gemm
from fit_kernels import collective_table, fit_attention, fit_grouped
from fit_tables import AIC, DATE, Table, facts, merged, rounded, spec_of, toml_of

from meshplan.cluster.presets import load_gpu
from meshplan.cluster.profile import profile_from
from meshplan.cluster.profile_data import OPS


def proof(provenance: str, what: str) -> Table:
    """The evidence keys of a curve from aiconfigurator's tables."""
    return {"provenance": provenance, "source": AIC.format(what=what), "date": DATE}


def start_table(tables: Path, spec: Table) -> Table:
    """The profile with what is not fitted, and rough values where a fit will write."""
    gpu, family, dims = spec["gpu"], spec["family"], spec["attention"]["head_dims"]
    known = merged(facts()["profile"]["common"], facts()["profile"][family])
    rough = {**{n: p[2] for n, p in GEMM_FIELDS.items()}, "throttle": GEMM_FIELDS["long_kernel"][2]}
    gemm = {
        name: {**rough, "operand_bytes": OPERAND_BYTES[name], **proof("fitted", f"gemm {dtype}")}
        for name, dtype in spec["precisions"].items()
    }
    attention = {
        "head_dims": [float(d) for d in dims],
        "efficiency": [0.5] * len(dims),
        "row_overhead": [300.0] * len(dims),
        "tail": 0.7,
        "start_s": 1e-5,
        "throttle": 0.9,
        **proof("fitted", f"attention, kernel {spec['attention']['kernel']}"),
    }
    sustained = {"value": rough["throttle"], **proof("fitted", f"gemm of {spec['table']}: {SUSTAINED}")}
    wires = spec_of(spec["nccl"]) if spec["nccl"] else spec
    link, nvls = load_gpu(wires["gpu"]).scaleup_bandwidth, known["network"]["nvls"]
    provenance, whose = (
        ("assumed", f" of {spec['nccl']}, as shares of the link") if spec["nccl"] else ("measured", "")
    )
    collectives = {
        op: {**collective_table(tables, wires, op, link, nvls), **proof(provenance, f"comm/nccl {op}{whose}")}
        for op in OPS
    }
    fitted = {
        "name": gpu,
        "gemm": gemm,
        "grouped": {
            name: {
                "efficiency": 0.8,
                "hbm_efficiency": 0.8,
                **known["grouped"]["bf16"],
                **proof("fitted", f"moe {spec['precisions'][name]}, kernel {spec['moe']}, balanced"),
            }
            for name in spec["grouped"]
        },
        "attention": {spec["attention"]["name"]: attention},
        "collectives": collectives,
        "factors": {"sustained": sustained},
    }
    table = merged(fitted, known)
    if gpu == "h200":  # H100's figures
        table["grouped"]["bf16"]["provenance"] = "assumed"
    return table


SUSTAINED = "rate of products of 10 ms or more over that of 0.1 ms ones"
LOW_PRECISION = (
    "throttle is that of bf16: published fp8 and fp4 training runs are faster than the table's inference "
    "kernels when those run long (long_kernel)"
)


def fit_profile(tables: Path, gpu: str) -> Table:
    """The whole profile of one GPU as a TOML table."""
    spec = spec_of(gpu)
    table = start_table(tables, spec)
    base = profile_from(table, where=f"{gpu}: start values")
    for name in spec["precisions"]:
        curve = merged(table["gemm"][name], fit_gemm(tables, spec, base, name))
        if name != "bf16":
            curve["note"] = LOW_PRECISION
        if name in spec["best_known"]:
            curve = merged(curve, library_of(spec, name, curve))
        table["gemm"][name] = curve
    steady = table["gemm"]["bf16"]["long_kernel"]
    table["factors"]["sustained"]["value"] = steady
    for name in spec["precisions"]:
        table["gemm"][name]["throttle"] = steady
    base = profile_from(table, where=f"{gpu}: with gemm")
    table["attention"][spec["attention"]["name"]] |= fit_attention(tables, spec, base)
    base = profile_from(table, where=f"{gpu}: with attention")
    for name in spec["grouped"]:
        table["grouped"][name] |= fit_grouped(tables, spec, base, name)
    profile_from(table, where=f"{gpu}: fitted")
    return table


def library_of(spec: Table, name: str, curve: Table) -> Table:
    """cuBLAS over the table's inference kernel: best of a shape search over the curve at 8192."""
    best, peak = spec["best_known"][name], load_gpu(spec["gpu"]).peak(name)
    at_8192 = peak * curve["efficiency"] * 8192 / (8192 + curve["overhead_k"])
    source = (
        f"library: {best / 1e12:.0f} TFLOP/s, cuBLAS, best of a shape search (stas00 ml-engineering, MAMF)"
    )
    return {"library": rounded(best / at_8192, 3), "note": f"{LOW_PRECISION}; {source}"}


def header(gpu: str) -> str:
    """The comment on top of the file."""
    return (
        f"# Efficiency profile of {load_gpu(gpu).title}. Made by tools/fit_profiles.py: do not edit.\n"
        "# Shares are of the datasheet in data/gpus; fit_error is |model / measured - 1|; SI units.\n\n"
    )


def errors_of(table: Table) -> list[tuple[str, Table]]:
    """Every curve with a fit error."""
    return [
        (f"{group}.{name}", curve["fit_error"])
        for group in ("gemm", "attention", "grouped", "collectives")
        for name, curve in table[group].items()
        if "fit_error" in curve
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    known = sorted(facts()["gpu"])
    parser = argparse.ArgumentParser(description="Fit the efficiency profiles on measured kernel times.")
    parser.add_argument("tables", type=Path, help="folder with GPU.gemm.csv.gz and its siblings")
    parser.add_argument("--out", type=Path, required=True, help="folder the .toml files go to")
    parser.add_argument("--gpu", choices=known, action="append", help="only this GPU (may be repeated)")
    options = parser.parse_args(argv)
    if not options.tables.is_dir():
        parser.error(f"{options.tables} is not a folder")
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{'GPU':10} {'curve':38} {'median':>7} {'mean':>7} {'points':>7}")
    for gpu in options.gpu or known:
        if not (options.tables / f"{spec_of(gpu)['table']}.gemm.csv.gz").is_file():
            print(f"{gpu:10} no tables here, left as it is")
            continue
        table = fit_profile(options.tables, gpu)
        (options.out / f"{gpu}.toml").write_text(header(gpu) + toml_of(table), encoding="utf-8")
        for curve, error in errors_of(table):
            print(f"{gpu:10} {curve:38} {error['median']:7.1%} {error['mean']:7.1%} {error['points']:7}")
            for name, (median, mean, points) in error.get("by_class", {}).items():
                print(f"{'':10}   {name:36} {median:7.1%} {mean:7.1%} {points:7}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
