"""A plan in one word: ``tp2,pp2,zero1,1f1b``, as ``measure`` names its plans."""

from dataclasses import replace

from meshplan.cli.estimate import PlanFlags
from meshplan.cli.options import read_degree, read_recompute
from meshplan.errors import InputError, nearest, shown
from meshplan.plan.kinds import CpKind, Schedule, Sharding

DEGREES = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "mbs", "replicas")


def read_plan(text: str, base: PlanFlags) -> PlanFlags:
    """``base`` with what ``text`` says: degrees (``tp2``), ``no-sp``, a schedule, a sharding, an exchange of
    cp, ``recompute=full``; joined by commas. Raises ``InputError`` for a word it does not know."""
    found = replace(base)
    schedules = {s.label: s for s in Schedule}
    shardings = {s.label: s for s in Sharding}
    exchanges = {k.label: k for k in CpKind}
    for word in (part.strip().lower() for part in text.split(",")):
        name = word.rstrip("0123456789")
        if word in schedules:
            found.schedule = schedules[word]
        elif word in shardings:
            found.sharding = shardings[word]
        elif word in exchanges:
            found.cp_kind = exchanges[word]
        elif word == "no-sp":
            found.sp = False
        elif word.startswith("recompute="):
            found.recompute = read_recompute(word.removeprefix("recompute="), "recompute")
        elif name in DEGREES and name != word:
            setattr(found, name, read_degree(word[len(name) :], name))
        else:
            known = [*DEGREES, *schedules, *shardings, *exchanges, "no-sp", "recompute="]
            close = [n for n in nearest(word, known, 2) if n != name]
            ask = f"; did you mean {' or '.join(close)}?" if close else "; a plan is written tp2,pp2,zero1"
            raise InputError(f"--plan: unknown word {shown(word)}{ask}")
    return found
