"""The pipeline timeline as a picture among the others: the drawing of ``timeline_svg`` in their colours."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

from meshplan.report.markup import Html, h, num
from meshplan.report.svg import canvas
from meshplan.report.timeline import KIND_NAMES
from meshplan.report.timeline_svg import draw_svg
from meshplan.report.words import Words, key_of
from meshplan.schedule.result import Simulation

_SVG = "{http://www.w3.org/2000/svg}"
_CLASSES: Mapping[str | None, str] = {"n": "tiny mid dark", "h": "strong", "r": "small end", "t": "small mid"}
_IDLE = "#eeeeee"
ACROSS = 900.0
"""Width of the picture in user units, about that of a page, so that its words stay as large as the page's."""


def timeline_chart(run: Simulation, words: Words) -> Html:
    """One row a rank, time to the right, in seconds; where micro-batches are many, the begin and the end.
    Boxes of one colour and height become one path of thick strokes, so that 64 ranks stay a small file."""
    drawing = ElementTree.fromstring(draw_svg(run, across=ACROSS))
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    boxes: dict[tuple[str, str], list[str]] = {}
    written: list[Html] = []
    background = True
    for part in drawing:
        if part.tag == f"{_SVG}rect":
            if background:  # the white sheet is drawn first
                background = False
                continue
            boxes.setdefault((part.attrib["fill"], part.attrib["height"]), []).append(_stroke(part))
        elif part.tag == f"{_SVG}text":
            place = {"x": part.attrib["x"], "y": part.attrib["y"]}
            class_ = _CLASSES.get(part.get("class"), "small")
            written.append(h("text", _said(part, run, words), class_=class_, **place))
        elif part.tag == f"{_SVG}path":
            written.append(h("path", d=part.attrib["d"], class_="axis"))
    filled = [
        h(
            "path",
            d="".join(strokes),
            fill="none",
            stroke_width=thick,
            **({"class_": "sidle"} if colour == _IDLE else {"stroke": colour}),
        )
        for (colour, thick), strokes in boxes.items()
    ]
    order = run.order
    return canvas(
        "timeline", filled, written, width=width, height=height,
        title=words("timeline.title"),
        desc=words(
            "timeline.desc", schedule=order.name, ranks=order.ranks, batches=order.micro_batches,
            step=f"{run.step:.4g}", idle=f"{run.bubble:.1%}",
        ),
    )  # fmt: skip


def _said(part: ElementTree.Element, run: Simulation, words: Words) -> str:
    """The drawing's own words in this language; figures stay as they are."""
    text, order = part.text or "", run.order
    if part.get("class") == "h":
        return words(
            "timeline.head", schedule=order.name, ranks=order.ranks, batches=order.micro_batches,
            step=f"{run.step:.4g}", idle=f"{run.bubble:.1%}",
        )  # fmt: skip
    if text.startswith("rank "):
        return words("timeline.rank", rank=text.removeprefix("rank "))
    if text.startswith("right:"):
        return words("timeline.right")
    return words(f"timeline.{key_of(text)}") if text in (*KIND_NAMES.values(), "idle") else text


def _stroke(rect: ElementTree.Element) -> str:
    x, y, width, height = (float(rect.attrib[k]) for k in ("x", "y", "width", "height"))
    return f"M{num(x, 1)} {num(y + height / 2, 1)}h{num(width, 1)}"
