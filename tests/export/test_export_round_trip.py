"""Export → read gives the same plan, for every target and a random sample of plans.

A target cannot express everything: what it writes is ``Launch.written``, and that is what must come back.
Where the target expresses all of a plan there are no notes, and then ``written`` is the plan itself.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import export_samples as samples
import pytest

from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.launch import Job, Launch, counted, plain
from meshplan.export.reading import Given, resolve
from meshplan.export.recognise import recognise
from meshplan.export.targets import TARGETS, export

TRIES = 300
READABLE = {
    "megatron": ("run.sh", "megatron.args"),
    "megatron-bridge": ("run.sh", "meshplan_recipe.py"),
    "torchtitan": ("run.sh", "meshplan_titan.py", "torchtitan.flags"),
    "deepspeed": ("run.sh", "ds_config.json"),
    "accelerate": ("run.sh",),
    "pytorch": ("run.sh", "meshplan_mesh.py"),
}


def launches(target: str, count: int) -> list[tuple[Job, Launch]]:
    """Jobs that the target takes, from a fixed seed."""
    rng, found = random.Random(f"round trip {target}"), []
    for _ in range(count):
        job = samples.random_job(rng)
        try:
            found.append((job, export(job, target)))
        except InputError:
            continue
    return found


def read_back(files: Mapping[str, str], name: str, given: Given | None = None):
    found = recognise(files[name], where=name, sibling=lambda other: files.get(other.rpartition("/")[2]))
    assert isinstance(found, Found)
    return resolve(found, given or Given())


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_written_is_read_back(target: str) -> None:
    taken = launches(target, TRIES)
    assert len(taken) >= 40, f"only {len(taken)} of {TRIES} random plans can be exported to {target}"
    for job, launch in taken:
        for name in READABLE[target]:
            if name not in launch.files:
                continue
            reading = read_back(launch.files, name)
            where = f"{target} {name} of {job.plan} for {job.model.name}"
            assert reading.plan == launch.written, where
            assert reading.kind == target, where
            assert reading.setting.workload.gbs == job.setting.workload.gbs, where
            assert reading.setting.workload.seq == job.setting.workload.seq, where
            assert reading.setting.cluster.gpus == job.setting.cluster.gpus, where
            assert reading.setting.model.name == job.model.name, where
            assert [d for d in reading.order if d != "ep"] == [d for d in launch.order if d != "ep"], where
            assert reading.problems == (), where
            assert reading.unknown == (), where


@pytest.mark.parametrize("target", TARGETS)
def test_without_notes_the_plan_itself_comes_back(target: str) -> None:
    """Nothing changes silently: a plan that is written otherwise has a note for it."""
    free = 0
    for job, launch in launches(target, TRIES):
        asked, written = plain(job.plan, job.model), launch.written
        if not any(note.change for note in launch.notes):
            same = asked == written or (target == "torchtitan" and equal_on_one_rank(asked, written))
            assert same, f"{target} changed {asked} into {written} without saying so"
            free += 1
        elif asked != written:
            changed = {c for note in launch.notes for c in note.change}
            differing = {
                f for f in ("tp", "sp", "cp", "cp_kind", "pp", "vp", "schedule", "layout", "dp", "ep", "etp",
                          "mbs", "recompute_layers", "recompute_modules")
                if getattr(asked, f) != getattr(written, f)
            }  # fmt: skip
            if asked.recompute_layers >= counted(written, len(job.model.layers)).recompute_layers > 0:
                differing -= {"recompute_layers", "recompute_modules"}  # all layers of a new, smaller stage
            assert differing <= changed, f"{target} changed {differing - changed} without saying so"
    if target in ("megatron", "megatron-bridge", "pytorch"):
        assert free > 10


def equal_on_one_rank(a, b) -> bool:
    """Sharding over one rank is no sharding: torchtitan's DDP and FSDP are then the same."""
    from dataclasses import replace

    return replace(a, sharding=b.sharding, replicas=b.replicas) == b


def test_the_yaml_of_accelerate_alone_keeps_all_but_the_batch() -> None:
    """The configuration has no place for the micro-batch; it is filled in and marked."""
    from dataclasses import replace

    for _job, launch in launches("accelerate", TRIES):
        reading = read_back(launch.files, "accelerate.yaml")
        assert replace(reading.plan, mbs=launch.written.mbs) == launch.written
        assert reading.defaults["micro batch"] == "1"
