"""Which scripts a shell command starts, and what the batch system sets for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from meshplan.export.shell_values import Word

Sibling = Callable[[str], str | None]
"""The text of a file named in the launch file, from the same folder; ``None`` where there is none."""
MOST_DEEP = 4
MOST_FOLLOWED = 20

_SHELLS = re.compile(r"(.*/)?(ba|da|z|k)?sh")
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"), "n": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), "gres": ("SLURM_GPUS_ON_NODE",),
}  # fmt: skip
"""Options of sbatch, and the variables that say them in the job."""


def started(words: Sequence[Word], sibling: Sibling) -> tuple[bool, str, str] | None:
    """The script that a command starts: whether it is sourced, its name, its text; ``None`` for none.

    A script given as text (``bash -c``) has no name.
    """
    if len(words) > 1 and words[0].text in ("source", "."):
        text = sibling(words[1].text)
        return None if text is None else (True, words[1].text, text)
    for i, word in enumerate(words):
        if word.text.endswith(".py") or word.text == "-m":  # what comes after is the program's own
            return None
        if _SHELLS.fullmatch(word.text) and (found := _of_shell(words[i + 1 :], sibling)) is not None:
            return (False, *found)
        if word.text.endswith(".sh"):
            text = sibling(word.text)
            return None if text is None else (False, word.text, text)
    return None


def _of_shell(words: Sequence[Word], sibling: Sibling) -> tuple[str, str] | None:
    for i, word in enumerate(words):
        if re.fullmatch(r"-[a-z]*c", word.text):
            return ("", words[i + 1].raw) if i + 1 < len(words) else None
        if not word.text.startswith("-"):
            text = sibling(word.text)
            return None if text is None else (word.text, text)
    return None


def slurm_variables(directive: str) -> dict[str, str]:
    """What Slurm sets in a job for a ``#SBATCH`` line."""
    found = re.match(r"--?([a-zA-Z-]+?)(?:=|\s+|(?<=^-[a-zA-Z]))(?:gpu:)?(?:\w+:)?([0-9]+)\b", directive)
    return dict.fromkeys(_SLURM.get(found[1], ()), found[2]) if found else {}
