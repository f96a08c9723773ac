"""What a tenth more of each hardware number would change: of this plan, and of the best plan then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.report.markup import Html
from meshplan.report.svg import WIDTH, box, canvas, legend, line, shortened, text
from meshplan.report.words import Words

_LEFT, _RIGHT, _ROW, _TOP = 190.0, 60.0, 34.0, 10.0


def sensitivity_chart(rows: Sequence[Mapping[str, Any]], change: float, words: Words) -> Html:
    """Two bars a row, to the left where the step gets shorter.

    ``rows``: ``name`` (a key of the ``hardware`` texts), ``same_plan`` and ``best_plan`` (change of the
    step time as a share, ``None`` where there is no plan), for ``change`` (0.1: a tenth) more of it.
    """
    values = [v for row in rows for v in (row["same_plan"], row["best_plan"]) if v is not None]
    shrinks, grows = max([0.0, *(-v for v in values)]), max([0.0, *values])
    scale = (WIDTH - _LEFT - _RIGHT - 60) / max(shrinks + grows, 0.001)
    zero = _LEFT + 60 + shrinks * scale
    body: list[Html] = []
    base = _TOP + _ROW * len(rows)
    for i, row in enumerate(rows):
        y = _TOP + i * _ROW
        name = words(f"hardware.{row['name']}")
        body.append(text(0, y + 20, shortened(name, _LEFT - 6)))
        for value, at, fill in ((row["same_plan"], y + 4, "c1"), (row["best_plan"], y + 17, "c5")):
            if value is None:
                continue
            left = zero + min(value, 0.0) * scale
            body.append(box(left, at, max(abs(value) * scale, 0.8), 11, fill))
            label = f"{100 * value:+.2f}%" if abs(value) >= 5e-5 else "0%"
            if value <= 0:
                body.append(text(left - 5, at + 10, label, "small end"))
            else:
                body.append(text(left + value * scale + 5, at + 10, label, "small"))
    body.append(line(zero, _TOP, zero, base + 4, "axis"))
    more = f"+{change:.0%}"
    entries = [
        ("c1", "", words("sensitivity.same", more=more)),
        ("c5", "", words("sensitivity.best", more=more)),
    ]
    swatches, height = legend(entries, 0, base + 14, WIDTH)
    told = "; ".join(
        f"{words('hardware.' + row['name'])} {100 * row['same_plan']:+.2f}%"
        for row in rows
        if row["same_plan"] is not None
    )
    return canvas(
        "sensitivity", body, swatches, height=base + 20 + height,
        title=words("sensitivity.title"), desc=words("sensitivity.desc", more=more, rows=told),
    )  # fmt: skip
