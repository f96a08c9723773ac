"""How many processes a script starts, from torchrun, Slurm, DeepSpeed or accelerate words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from meshplan.export.found import Found
from meshplan.export.shell_expand import Script

_NODES = {"--nnodes", "--nodes", "-N", "--num_nodes", "--num-nodes", "--num_machines"}
_PER_NODE = {
    "--nproc-per-node", "--nproc_per_node", "--gpus-per-node", "--ntasks-per-node", "--num_gpus",
    "--num-gpus", "--gpus", "-G",
}  # fmt: skip
_WORLD = {"--num_processes", "--ntasks", "-n"}
_VARIABLES = {
    "NNODES": "nodes", "NUM_NODES": "nodes", "GPUS_PER_NODE": "per_node", "NPROC_PER_NODE": "per_node",
    "WORLD_SIZE": "world", "N_NODES": "nodes", "GPUS_PER_NODES": "per_node",
}  # fmt: skip


def environment_of(script: Script) -> dict[str, str]:
    """Variables that have one literal value at the end of the script."""
    return {
        name: words[0].text
        for name, words in script.variables.items()
        if len(words) == 1 and not words[0].missing
    }


def take_launcher(found: Found, script: Script) -> None:
    """Fill the number of GPUs and of GPUs in a node, where the script says them literally."""
    numbers: dict[str, int] = {}
    for name, value in environment_of(script).items():
        if name in _VARIABLES and value.isdecimal():
            numbers.setdefault(_VARIABLES[name], int(value))
    for words in [*(d.replace("=", " ").split() for d in script.directives), *_launch_words(script)]:
        for flag, value in zip(words, [*words[1:], ""], strict=True):
            _take(flag, value, numbers)
    per_node, nodes, world = numbers.get("per_node"), numbers.get("nodes"), numbers.get("world")
    if found.gpus_per_node is None and per_node and 1 <= per_node <= 1024:
        found.gpus_per_node = per_node
    if found.gpus is None:
        if per_node and (nodes or (not world and _one_node(script))):
            nodes = nodes or 1
            found.gpus = per_node * nodes
        elif world:
            found.gpus = world


def _launch_words(script: Script) -> Iterable[list[str]]:
    """Words of launchers up to the program they start."""
    for command in script.commands:
        words = [word.text for word in command]
        text = " ".join(words[:6])
        if re.search(r"(torchrun|torch\.distributed|srun|deepspeed|accelerate launch)", text):
            end = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
            yield [part for word in words[:end] for part in word.split("=", 1)]


def _one_node(script: Script) -> bool:
    """Whether torchrun starts the program and is told of no nodes: then there is one."""
    words = [part for words in _launch_words(script) for part in words]
    directives = [part for line in script.directives for part in line.replace("=", " ").split()]
    several = _NODES.intersection([*words, *directives]) or "srun" in words or directives
    starts = any(word.endswith(("torchrun", "torch.distributed.run")) for word in words)
    return starts and not several


def _take(flag: str, value: str, numbers: dict[str, int]) -> None:
    gpus = re.fullmatch(r"gpu(:\w+)?:(\d+)", value)
    if flag in ("--gres", "--gpus-per-node") and gpus:
        numbers["per_node"] = int(gpus[2])
    if not value.isdecimal() or not 1 <= int(value) <= 10**7:
        return
    if flag in _NODES:
        numbers["nodes"] = int(value)
    elif flag in _PER_NODE:
        if flag != "--ntasks-per-node" or int(value) > 1:
            numbers.setdefault("per_node", int(value))
            if flag != "--ntasks-per-node":
                numbers["per_node"] = int(value)
    elif flag in _WORLD:
        numbers.setdefault("world", int(value))
