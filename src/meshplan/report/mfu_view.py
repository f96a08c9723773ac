"""A measured speed as MFU, in every convention of counting FLOP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.cluster.gpu import Gpu
from meshplan.errors import InputError
from meshplan.model.flops import CONVENTIONS, flop_per_token
from meshplan.model.model import Model
from meshplan.report.model_view import default_seq
from meshplan.report.parts import wrap
from meshplan.report.screen import Screen, printable
from meshplan.report.table import Column, table

SCHEMA_VERSION = 1
COUNTED = {
    "causal": "causal attention once: Megatron-LM since March 2025, NeMo, meshplan",
    "full": "attention over the whole sequence, no input embedding: torchtitan",
    "palm": "6N and attention over the whole sequence: PaLM, llm-foundry",
    "6n": "6N alone",
}


def mfu_data(
    model: Model,
    gpu: Gpu,
    seq: int | None,
    precision: str,
    *,
    tokens_per_s: float | None,
    tflops: float | None,
) -> dict[str, Any]:
    """MFU in every convention from tokens/s, or from TFLOP/s counted in each of them.

    Raises ``InputError`` for a precision that the GPU does not have, and for a speed above its peak.
    """
    length = default_seq(model) if seq is None else seq
    peak = gpu.peak(precision)
    # What a GPU cannot leave out: the model's own work, causal attention once.
    least = flop_per_token(model, length, "causal", mtp=bool(model.mtp))
    if tokens_per_s is not None and tokens_per_s * least > peak:
        raise InputError(
            f"no GPU does that: one {gpu.name} at 100 % of its {precision} peak trains {model.name} at most"
            f" at {peak / least:,.0f} tokens/s, not {tokens_per_s:,.0f}; --tokens-per-s is of one GPU"
        )
    if tflops is not None and tflops * 1e12 > peak:
        raise InputError(
            f"no GPU does that: one {gpu.name} does at most {peak / 1e12:,.0f} TFLOP/s in dense {precision},"
            f" not {tflops:,.0f}; --tflops is of one GPU"
        )
    rows = []
    for convention in CONVENTIONS:
        flop = flop_per_token(model, length, convention, mtp=bool(model.mtp))
        rate = tokens_per_s if tokens_per_s is not None else (tflops or 0.0) * 1e12 / flop
        rows.append(
            {
                "convention": convention,
                "counted": COUNTED[convention],
                "flop_per_token": flop,
                "tokens_per_s_per_gpu": rate,
                "flops_per_s": rate * flop,
                "mfu": rate * flop / peak,
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model.name,
        "seq": length,
        "gpu": gpu.name,
        "precision": precision,
        "peak_flops_per_s": peak,
        "mtp_layers": len(model.mtp),
        "from": "tokens_per_s" if tokens_per_s is not None else "tflops",
        "conventions": rows,
    }


def mfu_text(data: Mapping[str, Any], screen: Screen) -> str:
    """The same as a table."""
    rows, peak = data["conventions"], data["peak_flops_per_s"]
    first, *body = table(
        [
            Column(title="convention", cells=[row["convention"] for row in rows]),
            Column(
                title="GFLOP/token", cells=[f"{row['flop_per_token'] / 1e9:,.1f}" for row in rows], right=True
            ),
            Column(
                title="tokens/s", cells=[f"{row['tokens_per_s_per_gpu']:,.0f}" for row in rows], right=True
            ),
            Column(title="TFLOP/s", cells=[f"{row['flops_per_s'] / 1e12:,.0f}" for row in rows], right=True),
            Column(title="MFU", cells=[f"{row['mfu']:.1%}" for row in rows], right=True),
            Column(title="counted", cells=[row["counted"] for row in rows], priority=1),
        ],
        screen.width,
    )
    what = f"{data['model']}, seq {data['seq']:,}, on one {data['gpu']}"
    lines = [screen.bold(printable(what)), screen.bold(first), *body]
    lines += wrap(
        f"peak: {peak / 1e12:,.0f} TFLOP/s, dense {data['precision']}; figures with sparsity are twice that,"
        " and no training reaches them",
        screen.width,
    )
    if data["mtp_layers"]:
        text = f"multi-token prediction ({data['mtp_layers']} more layer and head) is counted in all of them"
        lines += wrap(text + "; a source that leaves it out counts less", screen.width)
    if data["from"] == "tflops":
        text = "TFLOP/s mean other tokens/s in each convention; MFU is the same share of the peak in all"
        lines += wrap(text, screen.width)
    return screen.text("\n".join(lines) + "\n")
