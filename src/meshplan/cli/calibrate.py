"""``meshplan calibrate``: a cluster measured into a file that ``--cluster`` takes."""

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from meshplan.calibrate.nccl_tests import read_log
from meshplan.calibrate.profile import calibration
from meshplan.calibrate.samples import Sample, read_samples
from meshplan.calibrate.write import profile_path, write
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Count, Json
from meshplan.errors import InputError
from meshplan.measure.failures import MachineError
from meshplan.measure.needs import need_torch
from meshplan.report.calibrate_view import calibration_text
from meshplan.report.screen import Screen

app = cyclopts.App(name="calibrate", help_formatter=HelpFormatter())
LIMIT_S = 900.0


@app.default
def calibrate(
    *,
    out: Annotated[Path, Parameter(metavar="FILE", help="Cluster file to write (.yaml).")],
    processes: Annotated[Count, Parameter(help="Ranks on this host; on GPUs one each.")] = 2,
    nodes: Annotated[Count, Parameter(help="Hosts; start the same command on each.")] = 1,
    node_rank: Annotated[int, Parameter(help="Which of the hosts this is, from 0.")] = 0,
    address: Annotated[str, Parameter(metavar="HOST:PORT", help="Where the hosts meet: host 0's.")] = "",
    samples: Annotated[
        Path | None, Parameter(metavar="FILE", help="Samples of an earlier calibration instead of measuring.")
    ] = None,
    from_: Annotated[
        tuple[Path, ...],
        Parameter(
            name="--from", metavar="FILE", help="A log of nccl-tests; its times replace measured ones."
        ),
    ] = (),
    json_: Json = False,
) -> int:
    """Time kernels and collectives on this machine, fit the curves of a profile, write a cluster file.

    Products, attention, a copy and the launch of an operator on every rank at once; every collective by size,
    inside a host and across hosts; messages between two ranks. Beside FILE stand its profile
    (.profile.toml) and the samples (.samples.json). Needs PyTorch, unless --samples is given. Exit code 2:
    the samples are noise, or faster than physics.
    """
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"--out must be a .yaml file, not '{out}'")
    if samples is not None:
        found, about = read_samples(samples)
    else:
        measured = _measure(out, processes, nodes, node_rank, address)
        if measured is None:
            return 0
        found, about = measured
    for log in from_:
        found = _with(found, read_log(log))
    made = calibration(found, about, name=out.stem, profile_file=profile_path(out).name)
    cluster = write(made, out)
    if json_:
        data: dict[str, Any] = {
            "schema_version": 1, "cluster": str(out), "profile": str(profile_path(out)),
            "tiers": [asdict(t) for t in cluster.tiers], "fits": [asdict(f) for f in made.fits],
        }  # fmt: skip
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(calibration_text(made, cluster, out, Screen.of()))
    return 0


def _measure(
    out: Path, processes: int, nodes: int, node_rank: int, address: str
) -> tuple[list[Sample], dict[str, object]] | None:
    """Run the benchmark; ``None`` on hosts that do not write."""
    need_torch("calibrate")
    from meshplan.measure.launch import LocalLauncher

    cores = os.cpu_count() or 1
    if shutil.which("nvidia-smi") is None and processes > cores:
        print(
            f"warning: {processes} ranks on {cores} cores take turns; this is no measurement of a network",
            file=sys.stderr,
        )
    if nodes > 1 and not address:
        raise InputError("--nodes needs --address HOST:PORT, where the hosts meet")
    launcher = LocalLauncher(nodes=nodes, node_rank=node_rank, address=address)
    with tempfile.TemporaryDirectory(prefix="meshplan-") as name:
        folder = Path(name)
        target, log = folder / "samples.json", folder / "log.txt"
        ended = launcher.run(
            processes * nodes, ["meshplan.calibrate.bench.worker", str(target)], log, limit_s=LIMIT_S
        )
        if ended.code != 0:
            told = [x for x in log.read_text(errors="replace").splitlines() if "Error" in x]
            how = "did not end in time" if ended.code is None else f"ended with code {ended.code}"
            raise MachineError(f"the benchmark {how}{': ' + told[-1].strip()[:300] if told else ''}")
        if node_rank > 0:
            return None
        found = read_samples(target)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, out.with_suffix(".samples.json"))
        return found


def _with(found: list[Sample], logged: list[Sample]) -> list[Sample]:
    """Samples with those of a log in the place of the same collective among as many ranks."""
    kinds = {(s.op, s.ranks, s.per_host) for s in logged}
    return [s for s in found if (s.op, s.ranks, s.per_host) not in kinds] + logged
