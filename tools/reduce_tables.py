"""Make the tables that ``fit_profiles.py`` reads out of aiconfigurator's parquet files.

    python tools/reduce_tables.py SYSTEMS_DATA --out TABLES [--gpu l40s]

SYSTEMS_DATA is ``systems/data`` of github.com/ai-dynamo/aiconfigurator at commit 095f58a5 (Apache-2.0). Needs
pyarrow. Kept is what training has: products from 64 rows up, causal attention in bf16 without a window from
512 tokens up, NCCL in 16 bits. Times in µs. ``SOURCES`` says which framework's files serve for which GPU.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

SOURCES: dict[str, dict[str, Any]] = {
    "l40s": {
        "folder": "l40s",
        "gemm": {"vllm/0.24.0": ("bfloat16", "fp8")},
        "attention": "vllm/0.24.0",
        "nccl": "2.27.3",
    },
    "rtx-pro-6000-server": {
        "folder": "rtx_pro_6000_server",
        "gemm": {"vllm/0.24.0": ("bfloat16", "fp8", "nvfp4"), "trtllm/1.3.0rc20": ("fp8_block",)},
        "attention": "vllm/0.24.0",
        "nccl": "2.29.2",
    },
}


def rows_of(path: Path) -> list[Row]:
    """The rows of a parquet file."""
    from pyarrow import parquet

    rows: list[Row] = parquet.read_table(path).to_pylist()
    return rows


def write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A ``.csv.gz`` that a rerun writes byte for byte."""
    with gzip.GzipFile(path, "wb", mtime=0) as packed, io.TextIOWrapper(packed, "utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def gemm(folder: Path, sources: dict[str, Sequence[str]]) -> list[tuple[Any, ...]]:
    """Products: dtype, m, n, k, µs; the first of rows that repeat."""
    found: dict[tuple[Any, ...], float] = {}
    for framework, dtypes in sources.items():
        for row in rows_of(folder / "gemm" / framework / "gemm_perf.parquet"):
            if row["gemm_dtype"] in dtypes and row["m"] >= 64 and min(row["n"], row["k"]) >= 32:
                key = (row["gemm_dtype"], row["m"], row["n"], row["k"])
                found.setdefault(key, round(row["latency"] * 1e3, 2))
    return sorted((*key, value) for key, value in found.items())


def attention(folder: Path, framework: str) -> list[tuple[Any, ...]]:
    """FlashAttention-2 of vLLM: kernel, batch, seq, heads, heads of keys, head size, µs."""
    file = folder / "attention" / framework / "context_attention_perf.parquet"
    names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    found = set()
    for row in rows_of(file):
        plain = (row["kernel_source"], row["attn_dtype"], row["kv_cache_dtype"])
        if plain != ("vllm_flash_attn_fa2", "bfloat16", "bfloat16") or row["window_size"] or row["step"]:
            continue
        if row["isl"] >= 512:
            keys = row["num_key_value_heads"] or row["num_heads"]
            shape = [keys if n == "num_key_value_heads" else row[n] for n in names]
            found.add(("flash_attention", *shape, round(row["latency"] * 1e3, 2)))
    return sorted(found)


def nccl(folder: Path, version: str) -> list[tuple[Any, ...]]:
    """Collectives: operation, GPUs, elements, bytes, µs."""
    rows = rows_of(folder / "comm" / "nccl" / version / "nccl_perf.parquet")
    return sorted(
        (row["op_name"], row["num_gpus"], size, 2 * size, round(row["latency"] * 1e3, 2))
        for row in rows
        if row["nccl_dtype"] == "half" and (size := row["message_size"])
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Reduce aiconfigurator's tables to what the fits read.")
    parser.add_argument("data", type=Path, help="systems/data of aiconfigurator")
    parser.add_argument("--out", type=Path, required=True, help="folder the .csv.gz files go to")
    parser.add_argument("--gpu", choices=sorted(SOURCES), action="append", help="only this GPU")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    for gpu in options.gpu or sorted(SOURCES):
        source = SOURCES[gpu]
        folder, out = options.data / source["folder"], options.out
        columns = ("dtype", "m", "n", "k", "latency_us")
        write(out / f"{gpu}.gemm.csv.gz", columns, gemm(folder, source["gemm"]))
        columns = ("kernel_source", "batch", "seq", "heads", "kv_heads", "head_dim", "latency_us")
        write(out / f"{gpu}.attention.csv.gz", columns, attention(folder, source["attention"]))
        columns = ("op", "num_gpus", "message_size", "message_bytes", "latency_us")
        write(out / f"{gpu}.nccl.csv.gz", columns, nccl(folder, source["nccl"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
