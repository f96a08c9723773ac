"""Help in two aligned columns, readable without colour or boxes."""

import io
import textwrap
from typing import TYPE_CHECKING, Any

from cyclopts.help.formatters import PlainFormatter

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

LABEL_WIDTH = 26
WIDEST = 100


class HelpFormatter(PlainFormatter):
    """cyclopts' plain formatter, with the descriptions aligned and wrapped under one another."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print one panel: arguments, a group of flags, or commands."""
        if not panel.entries:
            return
        lines = [f"{panel.title}:"] if panel.title else []
        for entry in panel.entries:
            label = ", ".join(entry.display_labels_with_metavar)
            lines += _two_columns(label, _description(entry), min(console.width, WIDEST))
        self._print_plain(console, "\n".join(lines) + "\n")


def _description(entry: "HelpEntry") -> str:
    parts = [_plain(entry.description)]
    if entry.choices:
        parts.append(f"[{', '.join(entry.choices)}]")
    if entry.default is not None and str(entry.default) not in ("False", "None", "()"):
        parts.append(f"[default: {entry.default}]")
    return " ".join(" ".join(parts).split())


def _plain(text: Any) -> str:
    """What cyclopts holds as rich text or as a string, as a string."""
    if text is None or isinstance(text, str):
        return text or ""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=10_000, color_system=None, highlight=False).print(text)
    return out.getvalue()


def _two_columns(label: str, text: str, width: int) -> list[str]:
    indent = " " * (LABEL_WIDTH + 2)
    wrapped = textwrap.wrap(text, max(width - len(indent), 20)) or [""]
    head = f"  {label:<{LABEL_WIDTH}}"
    if len(label) >= LABEL_WIDTH:
        return [head.rstrip(), *(indent + line for line in wrapped)]
    return [(head + wrapped[0]).rstrip(), *(indent + line for line in wrapped[1:])]
