"""The targets by name, and one call that makes the files of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from meshplan.errors import InputError, UnknownNameError
from meshplan.export.launch import Job, Launch
from meshplan.export.launchers import IMAGE, LAUNCHERS, with_launcher
from meshplan.plan.rules import broken, framework_rules

TARGETS: Mapping[str, str] = {
    "megatron": "meshplan.export.megatron:export_megatron",
    "megatron-bridge": "meshplan.export.bridge:export_bridge",
    "torchtitan": "meshplan.export.torchtitan:export_torchtitan",
    "deepspeed": "meshplan.export.deepspeed:export_deepspeed",
    "accelerate": "meshplan.export.accelerate:export_accelerate",
    "pytorch": "meshplan.export.plain_torch:export_pytorch",
}
"""Name → ``module:function``, imported when it is used."""


def export(job: Job, target: str, launcher: str = "torchrun", *, image: str = IMAGE) -> Launch:
    """The launch files of a job for a target, with a launcher around them.

    Raises ``UnknownNameError`` for a target or launcher nobody knows, and ``InputError`` for a model the
    target cannot be told about or a plan that it would refuse even after what it cannot express was
    changed.
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS, f"known: {', '.join(TARGETS)}")
    if launcher not in LAUNCHERS:
        raise UnknownNameError("launcher", launcher, LAUNCHERS, f"known: {', '.join(LAUNCHERS)}")
    launch = _made(job, target)
    wrong = broken(job.setting, launch.written, framework_rules(target))
    if wrong:
        raise InputError(f"{target} would refuse this plan: {wrong[0].explain(job.setting, launch.written)}")
    return with_launcher(launch, job, launcher, image)


def files_without_checks(job: Job, target: str) -> Mapping[str, str]:
    """The files of a plan, valid or not, without a launcher: to show how two plans differ in a target."""
    return _made(job, target).files


def _made(job: Job, target: str) -> Launch:
    module, _, function = TARGETS[target].partition(":")
    launch: Launch = getattr(import_module(module), function)(job)
    return launch
