"""Which software stack a source of measurements ran, and what its machines were."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from meshplan.validation.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One rule: rows whose columns match get ``stack``; ``skip`` says why such rows cannot be used."""

    stack: str
    source: str = ""
    id: str = ""
    model: str = ""
    notes: str = ""
    gpu: str = ""
    release: str = ""
    precision: str = ""
    sharding: str = ""
    nic_bytes: float = 0.0
    memory: str = "reserved"
    """What the source's peak memory is where the row does not say."""
    recompute: str = ""
    """What the source's defaults recompute where the row does not say: ``operators``, or nothing known."""
    dispatcher: str = ""
    """The experts' dispatcher that the source's recipes switch on, where the row does not say."""
    cuda_graph: str = ""
    """The same of CUDA graphs."""
    overlaps_experts: bool = False
    """Whether they run the all-to-all under another micro-batch."""
    vocab: int = 0
    """Its models' vocabulary, where rows do not print it and the source's code says it."""
    tied: bool = False
    """Whether its models' heads share the embedding's weights."""
    grouped: str = ""
    """How they multiply experts, where not as the stack does."""
    skip: str = ""
    why: str = ""

    def matches(self, row: Row, said: str) -> bool:
        """Whether every pattern of the rule is found in its column, and ``source`` in ``said``."""
        return bool(re.search(self.source, said, flags=re.IGNORECASE)) and all(
            not pattern or re.search(pattern, row.text[column], flags=re.IGNORECASE)
            for column, pattern in (
                ("id", self.id),
                ("model", self.model),
                ("notes", self.notes),
                ("gpu", self.gpu),
                ("release", self.release),
                ("precision", self.precision),
                ("sharding", self.sharding),
            )
        )


@cache
def _rules() -> dict[str, tuple[Source, ...]]:
    text = (resources.files("meshplan.validation") / "data" / "sources.toml").read_text(encoding="utf-8")
    return {part: tuple(Source(**rule) for rule in rules) for part, rules in tomllib.loads(text).items()}


def source_of(row: Row) -> Source:
    """The first rule that fits the source's name, or else the repository or paper it refers to; for one
    that no rule names the first that fits its notes, its hardware or the year.
    """
    for part, said in (("rule", row.text["source"]), ("rule", row.text["ref"]), ("unnamed", "")):
        for rule in _rules()[part]:
            if rule.matches(row, said):
                return rule
    raise AssertionError("the last rule of sources.toml fits every row")
