"""Memory of every kind of pipeline rank, stacked by part, against what a GPU has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.report.markup import Html
from meshplan.report.palette import MEMORY_FILLS, memory_fill
from meshplan.report.svg import WIDTH, across, box, canvas, legend, line, shortened, text
from meshplan.report.words import Words

GIB = 2.0**30
MOST_ROWS = 12
_LEFT, _RIGHT, _ROW, _TOP = 132.0, 56.0, 34.0, 30.0


def memory_chart(stages: Sequence[Mapping[str, Any]], limit_bytes: float, words: Words) -> Html:
    """One bar for each kind of pipeline rank.

    ``stages``: ``first_rank``, ``ranks``, ``embedding``, ``head`` and ``memory`` (bytes by part), as in
    ``stages`` of ``estimate --json``. Of more than ``MOST_ROWS`` kinds the fullest are drawn.
    """
    shown, left = _fullest(stages)
    totals = [_total(stage) for stage in shown]
    top = 1.04 * max(limit_bytes, *totals)
    scale = (WIDTH - _LEFT - _RIGHT) / top
    parts = _parts(shown)
    letters = {part: "abcdefghijklmnopqrstuvwxyz"[i % 26] for i, part in enumerate(parts)}
    base = _TOP + _ROW * len(shown)
    body = across(_LEFT, base, scale * GIB, top / GIB, base - _TOP, "GiB")
    for i, (stage, total) in enumerate(zip(shown, totals, strict=True)):
        body += _bar(stage, total, limit_bytes, _TOP + i * _ROW, scale, letters, words)
    at = _LEFT + limit_bytes * scale
    body.append(line(at, _TOP - 6, at, base, "cut"))
    limit = words("memory.limit", size=f"{limit_bytes / GIB:.1f}")
    body.append(text(min(at + 4, WIDTH - 4), _TOP - 12, limit, "small limit end"))
    entries = [(memory_fill(part), letters[part], words.part(part)) for part in parts]
    y = base + 44
    if left:
        body.append(text(0, y, words("memory.more", count=left), "small soft"))
        y += 18
    swatches, height = legend(entries, 0, y, WIDTH)
    worst = max(range(len(shown)), key=totals.__getitem__)
    return canvas(
        "memory", body, swatches, height=y + height + 4,
        title=words("memory.title"),
        desc=words(
            "memory.desc", kinds=len(stages), stage=stage_name(shown[worst], words),
            size=f"{totals[worst] / GIB:.1f}", limit=f"{limit_bytes / GIB:.1f}",
            parts=_listed(shown[worst], words),
        ),
    )  # fmt: skip


def stage_name(stage: Mapping[str, Any], words: Words) -> str:
    """A kind of pipeline rank in words: its first rank, how many more, what ends it holds."""
    name = words("memory.rank", rank=stage["first_rank"])
    if stage["ranks"] > 1:
        name = words("memory.ranks", rank=stage["first_rank"], more=stage["ranks"] - 1)
    ends = [words(f"memory.{end}") for end in ("embedding", "head") if stage[end]]
    return f"{name} ({', '.join(ends)})" if ends else name


def _bar(
    stage: Mapping[str, Any], total: float, limit: float, y: float, scale: float, letters: Mapping[str, str],
    words: Words,
) -> list[Html]:  # fmt: skip
    found = [text(0, y + 18, shortened(stage_name(stage, words), _LEFT - 8, 12), "small")]
    x = _LEFT
    for part, letter in letters.items():
        size = stage["memory"].get(part, 0.0)
        if size <= 0:
            continue
        width = size * scale
        hint = f"{words.part(part)}: {size / GIB:.2f} GiB"
        found.append(box(x, y + 2, max(width - 0.8, 0.3), 24, memory_fill(part), hint))
        if width >= 13:
            found.append(text(x + width / 2, y + 18, letter, "on mid"))
        x += width
    mark = " ✗" if total > limit else ""
    found.append(text(WIDTH, y + 19, f"{total / GIB:.1f}{mark}", "limit end" if mark else "end"))
    return found


def _fullest(stages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    """The fullest ``MOST_ROWS`` kinds in the order of their ranks, and how many are left out."""
    by_size = sorted(range(len(stages)), key=lambda i: -_total(stages[i]))[:MOST_ROWS]
    return [stages[i] for i in sorted(by_size)], max(len(stages) - MOST_ROWS, 0)


def _total(stage: Mapping[str, Any]) -> float:
    return float(sum(stage["memory"].values()))


def _parts(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Parts that any stage has, the lasting ones first."""
    present = dict.fromkeys(part for stage in stages for part, size in stage["memory"].items() if size > 0)
    known = [part for part in MEMORY_FILLS if part in present]
    return [*known, *(part for part in present if part not in MEMORY_FILLS)]


def _listed(stage: Mapping[str, Any], words: Words) -> str:
    found = sorted(stage["memory"].items(), key=lambda item: -item[1])
    return ", ".join(f"{words.part(part)} {size / GIB:.1f} GiB" for part, size in found if size > 0)
