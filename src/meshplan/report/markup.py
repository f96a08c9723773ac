"""Elements of HTML and SVG as functions: text is escaped unless it was made here, so nothing can slip in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
SHAPES = frozenset({"rect", "path", "circle"})
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:.-]*")


class Html(str):
    """Text that is markup already; any other text is escaped where it is put in."""

    __slots__ = ()


Child = Html | str | int | None | Iterable["Child"]
"""What an element holds: markup, text, nothing, or several of them."""
Attribute = str | int | float | bool | None


def plain(text: object) -> str:
    """``text`` without the characters that XML does not allow."""
    return _ILLEGAL.sub("\ufffd", str(text))


def h(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """One element. ``class_`` is ``class``, ``aria_label`` is ``aria-label``; ``True`` is an attribute
    without value, ``None`` and ``False`` leave it out. Names come from code, values may come from people.

    >>> h("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    head = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Html(f"<{head}>")
    body = join(children)
    return Html(f"<{head}/>" if tag in SHAPES and not body else f"<{head}>{body}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """The markup of all children, one after the other."""
    return Html("".join(_markup(child) for child in children))


def num(value: float, digits: int = 2) -> str:
    """A coordinate: at most ``digits`` decimals, no more zeros than needed.

    >>> num(12.0), num(3.456)
    ('12', '3.46')
    """
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _markup(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int):
        return escape(plain(child), quote=False)
    return "".join(_markup(each) for each in child)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.removesuffix("_").replace("_", "-")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an attribute")
    if value is True:
        return f" {name}"
    text = num(value) if isinstance(value, float) else plain(value)
    return f' {name}="{escape(text)}"'
