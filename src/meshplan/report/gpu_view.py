"""GPUs for people and for programs: a list, and one with the source of every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from textwrap import wrap
from typing import Any

from meshplan.cluster.gpu import Gpu
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.units import format_bandwidth, format_bytes, format_flops

SCHEMA_VERSION = 1


def gpu_dict(gpu: Gpu) -> dict[str, Any]:
    """All of a GPU as plain data, in bytes, bytes/s, FLOP/s and watts."""
    found = {field.name: getattr(gpu, field.name) for field in fields(gpu)}
    tables = {"peak_flops": dict(gpu.peak_flops), "aliases": list(gpu.aliases), "sources": dict(gpu.sources)}
    return found | tables


def gpu_table(gpus: Sequence[Gpu], screen: Screen) -> str:
    """One line a GPU; columns that do not fit the screen are left out, the least important first."""
    columns = [
        Column(title="name", cells=[g.name for g in gpus]),
        Column(title="memory", cells=[format_bytes(g.hbm_bytes) for g in gpus], right=True),
        Column(
            title="bandwidth", cells=[format_bandwidth(g.hbm_bandwidth) for g in gpus], right=True, priority=2
        ),
        Column(title="16-bit", cells=[_peak(g, "bf16", "fp16") for g in gpus], right=True),
        Column(title="fp8", cells=[_peak(g, "fp8") for g in gpus], right=True, priority=1),
        Column(title="fp4", cells=[_peak(g, "fp4") for g in gpus], right=True, priority=4),
        Column(title="scale-up", cells=[_scaleup(g) for g in gpus], right=True),
        Column(title="kind", cells=[g.scaleup for g in gpus], priority=5),
        Column(
            title="network", cells=[format_bandwidth(g.nic_bandwidth) for g in gpus], right=True, priority=1
        ),
        Column(title="power", cells=[f"{g.watts:,.0f} W" for g in gpus], right=True, priority=3),
    ]
    head, *rows = table(columns, screen.width)
    note = (
        "Dense peaks in TFLOP/s; links per GPU and direction, '× 8' the GPUs that the scale-up network joins."
    )
    return screen.text("\n".join([screen.bold(head), *rows, "", *wrap(note, screen.width)]))


def gpu_sheet(gpu: Gpu, screen: Screen) -> str:
    """Every number of one GPU, with notes that name its source and where sources disagree."""
    numbers: dict[str, int] = {}
    rows = [(label, value, _note(gpu, field, numbers)) for label, value, field in _rows(gpu)]
    columns = [
        Column(title="", cells=[label for label, _, _ in rows]),
        Column(title="", cells=[value for _, value, _ in rows], right=True),
        Column(title="", cells=[note for _, _, note in rows]),
    ]
    lines = [screen.bold(f"{gpu.title} ({gpu.name})")]
    if gpu.aliases:
        lines += wrap(f"also known as {', '.join(gpu.aliases)}", screen.width)
    lines += ["", *table(columns, screen.width)[1:], "", screen.bold("Sources")]
    for source, number in numbers.items():
        lines += _hanging(f"[{number}] ", source, screen.width)
    if "conflict" in gpu.sources:
        lines += ["", screen.bold("Where sources disagree"), *wrap(gpu.sources["conflict"], screen.width)]
    return screen.text("\n".join(lines))


def _rows(gpu: Gpu) -> list[tuple[str, str, str]]:
    """Label, value for people, and the field that its source is kept under."""
    usable = f"{format_bytes(gpu.usable_hbm_bytes)} usable"
    rows = [(f"peak {name}", format_flops(value), "peak_flops") for name, value in gpu.peak_flops.items()]
    rows += [
        ("memory", format_bytes(gpu.hbm_bytes), "hbm_bytes"),
        ("", usable, "usable_hbm_bytes"),
        ("memory bandwidth", format_bandwidth(gpu.hbm_bandwidth), "hbm_bandwidth"),
        (f"{gpu.scaleup}, each way", format_bandwidth(gpu.scaleup_bandwidth), "scaleup_bandwidth"),
    ]
    if gpu.scaleup_peer_bandwidth is not None:
        rows.append(
            ("between two GPUs", format_bandwidth(gpu.scaleup_peer_bandwidth), "scaleup_peer_bandwidth")
        )
    return [
        *rows,
        ("GPUs it joins", str(gpu.scaleup_domain), "scaleup_domain"),
        ("GPUs of a host", str(gpu.gpus_per_host), "gpus_per_host"),
        ("network, each way", format_bandwidth(gpu.nic_bandwidth), "nic_bandwidth"),
        ("host link, each way", format_bandwidth(gpu.host_bandwidth), "host_bandwidth"),
        ("multiprocessors", str(gpu.sms), "sms"),
        ("power", f"{gpu.watts:,.0f} W", "watts"),
    ]


def _note(gpu: Gpu, field: str, numbers: dict[str, int]) -> str:
    source = gpu.sources.get(field)
    return "" if source is None else f"[{numbers.setdefault(source, len(numbers) + 1)}]"


def _peak(gpu: Gpu, *names: str) -> str:
    found = next((gpu.peak_flops[name] for name in names if name in gpu.peak_flops), None)
    return "–" if found is None else f"{found / 1e12:,.0f}"


def _scaleup(gpu: Gpu) -> str:
    return f"{format_bandwidth(gpu.scaleup_bandwidth)} × {gpu.scaleup_domain}"


def _hanging(head: str, text: str, width: int) -> list[str]:
    """``text`` after ``head``, wrapped between words with the lines under each other."""
    return wrap(
        head + text, width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )
