"""Under ``torchrun``: calibration samples and steps of several plans in turns, in one world of ranks.

    torchrun … tools/round_robin.py FOLDER

FOLDER holds ``runs.json`` (``rounds``, ``steps``, and runs as ``meshplan measure`` writes them); rank 0
writes ``samples.json`` and, a line for each round and plan, ``results.jsonl``. A machine that is slow for a
while is so for every plan and for the calibration: one after the other in processes of their own they would
see different machines.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

from accuracy_page import note_load
from cluster_in_a_box import join_part

from meshplan.calibrate.bench import worker as bench
from meshplan.calibrate.samples import Sample, write_samples
from meshplan.measure.reference.check import compare
from meshplan.measure.reference.engine import Engine
from meshplan.measure.results import OK, Result, append
from meshplan.measure.specs import RunSpec, spec_data, spec_of
from meshplan.measure.worker import _timed, die_with_parent


def main(folder: Path) -> None:
    """Calibrate, then a round of steps of every plan, and again."""
    die_with_parent()
    join_part()
    warnings.simplefilter("ignore")
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    asked = json.loads((folder / "runs.json").read_text())
    specs = [spec_of(s) for s in asked["runs"]]
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, os.environ.get("MESHPLAN_HOST") or socket.gethostname())
    engines = [_engine(s, folder) for s in specs]
    merged: dict[tuple[Any, ...], Sample] = {}
    groups = bench.made_groups(hosts)
    for turn in range(int(asked["rounds"])):
        # Computing changes with what else the machine does; a link does not.
        links = groups if turn < int(asked["link_rounds"]) else []
        for sample in (*bench.kernels("cpu"), *bench.collectives("cpu", links, float(asked["most_bytes"]))):
            key = (sample.op, sample.dtype, sample.shape, sample.size_bytes, sample.ranks, sample.per_host)
            old = merged.get(key)
            merged[key] = sample if old is None else replace(old, seconds=old.seconds + sample.seconds)
        for spec, (engine, agreement) in zip(specs, engines, strict=True):
            engine.step()
            times = _timed(engine, int(asked["steps"]), "cpu")
            if dist.get_rank() == 0:
                note_load(folder)
                append(folder / "results.jsonl", _result(spec, turn, times, agreement, hosts))
                print(f"round {turn + 1}: {spec.label}: {sorted(times)[len(times) // 2]:.3f} s", flush=True)
    if dist.get_rank() == 0:
        about = {
            "hosts": hosts, "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat(),
            "device": "cpu", "memory_bytes": bench._memory("cpu"), "cores": os.cpu_count(),
        }  # fmt: skip
        write_samples(folder / "samples.json", list(merged.values()), about)
    dist.destroy_process_group()


def _engine(spec: RunSpec, folder: Path) -> tuple[Engine, str]:
    engine = Engine(spec.model, spec.workload, spec.plan, order=spec.order, balanced=spec.balanced)
    reference = folder / f"reference-{spec.reference_key}.pt"
    agreement = compare(engine, reference)
    if not agreement.holds:
        raise SystemExit(f"{spec.label}: {agreement.sentence()}")
    engine.step()
    return engine, agreement.sentence()


def _result(spec: RunSpec, turn: int, times: list[float], agreement: str, hosts: list[str]) -> Result:
    return Result(
        key=spec.key, label=spec.label, round=turn, outcome=OK, steps_s=tuple(times), agreement=agreement,
        hosts=tuple(hosts), versions={"torch": torch.__version__}, spec=spec_data(spec),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
