"""``meshplan calibrate``: a cluster measured into a file that ``--cluster`` takes."""

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from meshplan.calibrate.from_results import read_cases, stack_path, write_stack
from meshplan.calibrate.kernels import read_kernels
from meshplan.calibrate.known import Bent, bent_cluster
from meshplan.calibrate.nccl_tests import read_log
from meshplan.calibrate.profile import Calibration, calibration
from meshplan.calibrate.samples import Sample, read_samples
from meshplan.calibrate.stack_fit import fit_stack
from meshplan.calibrate.write import profile_path, write
from meshplan.cli.flags import ClusterFlags, given
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Count, Json
from meshplan.cluster.cluster import Cluster
from meshplan.cluster.files import load_cluster
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.stack import load_stack
from meshplan.errors import InputError
from meshplan.measure.failures import MachineError
from meshplan.measure.needs import need_torch
from meshplan.report.calibrate_view import bent_text, calibration_text, stack_data, stack_text
from meshplan.report.screen import Screen

app = cyclopts.App(name="calibrate", help_formatter=HelpFormatter())
LIMIT_S = 900.0


@app.default
def calibrate(
    *,
    out: Annotated[Path, Parameter(metavar="FILE", help="Cluster file to write (.yaml).")],
    cluster: ClusterFlags | None = None,
    from_: Annotated[
        tuple[Path, ...],
        Parameter(
            name="--from",
            negative=(),
            metavar="FILE",
            help="What there is already: results.jsonl, a log of nccl-tests, a table of kernel times (.csv).",
        ),
    ] = (),
    processes: Annotated[Count, Parameter(help="Ranks on this host; on GPUs one each.")] = 2,
    nodes: Annotated[Count, Parameter(help="Hosts; start the same command on each.")] = 1,
    node_rank: Annotated[int, Parameter(help="Which of the hosts this is, from 0.")] = 0,
    address: Annotated[str, Parameter(metavar="HOST:PORT", help="Where the hosts meet: host 0's.")] = "",
    samples: Annotated[
        Path | None, Parameter(metavar="FILE", help="Samples of an earlier calibration instead of measuring.")
    ] = None,
    stack: Annotated[str, Parameter(metavar="NAME", help="Stack whose scalars results.jsonl sets.")] = (
        "torchtitan"
    ),
    json_: Json = False,
) -> int:
    """Time kernels and collectives on this machine, fit the curves of a profile, write a cluster file.

    Products, attention, a copy and the launch of an operator on every rank at once; every collective by size,
    inside a host and across hosts; messages between two ranks. Beside FILE stand its profile
    (.profile.toml) and the samples (.samples.json). Needs PyTorch, unless --samples is given, or a cluster to
    start from (--cluster, or --gpu and --gpus), which then takes only what --from brings.

    --from results.jsonl (of `meshplan measure`) also fits the few scalars of the stack on the measured steps,
    with every plan held back once, and writes FILE's .stack.toml for --stack. Exit code 2: the samples are
    noise, faster than physics, or a fit that does not help.
    """
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"--out must be a .yaml file, not '{out}'")
    results = [p for p in from_ if p.suffix == ".jsonl"]
    known = [s for p in from_ if p.suffix != ".jsonl" for s in _read(p)]
    data: dict[str, Any] = {"schema_version": 1}
    text, screen = "", Screen.of()
    machine = cluster or ClusterFlags()
    if given(machine):
        if not from_:
            raise InputError("a cluster to start from needs --from; without one this machine is measured")
        base = _base(machine)
        if known:
            base, bent = _bent(base, known, out, from_)
            rows = [{**asdict(b), "before": None if math.isnan(b.before) else b.before} for b in bent]
            data |= _cluster_data(base, out, rows)
            text = bent_text(bent, base, out, screen)
    else:
        measured = read_samples(samples) if samples else _measure(out, processes, nodes, node_rank, address)
        if measured is None:
            return 0
        found, about = measured
        made = calibration(_with(found, known), about, name=out.stem, profile_file=profile_path(out).name)
        base = write(made, out)
        data |= _cluster_data(base, out, [asdict(f) for f in made.fits])
        text = calibration_text(made, base, out, screen)
    if results:
        fit = fit_stack(read_cases(results, base), base, load_stack(stack), name=out.stem)
        write_stack(fit, stack_path(out))
        data["stack"] = stack_data(fit, stack_path(out))
        text += stack_text(fit, stack_path(out), screen)
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(text)
    return 0


def _cluster_data(cluster: Cluster, out: Path, fits: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cluster": str(out), "profile": str(profile_path(out)), "tiers": [asdict(t) for t in cluster.tiers],
        "fits": fits,
    }  # fmt: skip


def _read(path: Path) -> list[Sample]:
    return read_kernels(path) if ".csv" in path.suffixes else read_log(path)


def _base(machine: ClusterFlags) -> Cluster:
    if machine.cluster is not None:
        return load_cluster(machine.cluster, gpus=machine.gpus)
    if machine.gpu is None or machine.gpus is None:
        raise InputError("a cluster to start from is --gpu and --gpus, or --cluster")
    return cluster_of(machine.gpu, machine.gpus, gpus_per_node=machine.gpus_per_node, nic=machine.nic)


def _bent(
    base: Cluster, known: list[Sample], out: Path, sources: Sequence[Path]
) -> tuple[Cluster, tuple[Bent, ...]]:
    names = ", ".join(p.name for p in sources if p.suffix != ".jsonl")
    proof = {
        "provenance": "fitted",
        "date": datetime.now(UTC).date().isoformat(),
        "source": f"meshplan calibrate --from {names}",
    }
    profile, cluster, bent = bent_cluster(base, known, proof, name=out.stem, file=profile_path(out).name)
    return write(Calibration(profile=profile, cluster=cluster, fits=()), out), bent


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
    if not 0 <= node_rank < nodes:
        raise InputError(f"--node-rank {node_rank} is none of --nodes {nodes}: it counts from 0")
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
    """Samples with those of a log in the place of the same measurement among as many ranks."""
    kinds = {_kind(s) for s in logged}
    return [s for s in found if _kind(s) not in kinds] + logged


def _kind(s: Sample) -> tuple[Any, ...]:
    return (s.op, s.dtype if s.op == "matmul" else "", s.ranks, s.per_host)
