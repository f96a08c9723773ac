"""The colours of every picture and page, light and dark, as CSS variables; a test holds their contrast.

Fills of data come in nine hues; ``on`` is the ink for letters on any of them. No meaning rests on a
colour alone: parts also have a letter or a label.
"""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff", "panel": "#f3f5f8", "ink": "#1a1f26", "soft": "#545e6b", "line": "#c9d0d9",
    "edge": "#6b7683", "link": "#0b57a8", "limit": "#b3161b", "good": "#1f6b34", "on": "#ffffff",
    "band": "#e3ecf7", "idle": "#e4e7ec",
    "c1": "#1f5fa8", "c2": "#a34a00", "c3": "#2f6f2f", "c4": "#6b4aa0", "c5": "#0b6b75", "c6": "#a8324a",
    "c7": "#665f00", "c8": "#4f5b66", "c9": "#8a3a80",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "paper": "#14181d", "panel": "#1d232a", "ink": "#e8ecf1", "soft": "#a9b4c0", "line": "#3a434e",
    "edge": "#8a96a3", "link": "#8ec2ff", "limit": "#ff8a85", "good": "#86d49a", "on": "#10141a",
    "band": "#22344a", "idle": "#313943",
    "c1": "#7db4f0", "c2": "#f0a35e", "c3": "#7fca7f", "c4": "#bda2ec", "c5": "#5cc8d0", "c6": "#f08a9c",
    "c7": "#cdbf4a", "c8": "#aab6c2", "c9": "#e39ad6",
}  # fmt: skip
FILLS = tuple(f"c{i}" for i in range(1, 10))

TIME_FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "compute": ("c1", ("compute", "matmul", "attention", "elementwise", "head and loss")),
    "again": ("c4", ("recompute",)),
    "transfer": ("c2", ("tp", "cp", "ep", "pp", "dp")),
    "waiting": ("c8", ("bubble", "imbalance", "host", "straggler")),
    "once": ("c5", ("optimizer", "step overhead")),
}
"""Families of parts of a step, in the order they are drawn: their colour and their members."""
MEMORY_FILLS: Mapping[str, str] = {
    "weights": "c1", "weights_and_gradients": "c1", "gradients": "c5", "optimizer": "c4", "activations": "c2",
    "loss and workspace": "c6", "gathered weights": "c3", "gradient buffers": "c7", "fragmentation": "c8",
    "context and NCCL": "c9",
}  # fmt: skip
"""Parts of the memory, from what stays all run long to what comes and goes."""


def time_family(part: str) -> str:
    """The family of a part of a step; ``waiting`` for one that is not known."""
    return next((name for name, (_, parts) in TIME_FAMILIES.items() if part in parts), "waiting")


def memory_fill(part: str) -> str:
    """The fill of a part of the memory; one that is not known gets a hue by its name."""
    return MEMORY_FILLS.get(part) or FILLS[sum(part.encode()) % len(FILLS)]


def variables(colours: Mapping[str, str]) -> str:
    """The declarations of the CSS variables ``--mp-…``."""
    return "".join(f"--mp-{name}:{value};" for name, value in colours.items())


def theme_css(selector: str) -> str:
    """The variables on ``selector``: light, dark where the reader's system or notebook is, light on paper."""
    notebook = 'body[data-jp-theme-light="false"]'
    return (
        f"{selector}{{color-scheme:light dark;{variables(LIGHT)}}}"
        f"@media screen and (prefers-color-scheme:dark){{{selector}{{{variables(DARK)}}}}}"
        f"{notebook} {selector}{{{variables(DARK)}}}"
    )


CHART_CSS = (
    ".mp-chart{display:block;width:100%;height:auto;max-width:40rem;background:var(--mp-paper)}"
    ".mp-mesh{max-width:58rem}.mp-timeline{max-width:none}"
    ".mp-chart text{font:13px system-ui,-apple-system,'Segoe UI','Noto Sans','Noto Sans CJK SC',sans-serif;"
    "fill:var(--mp-ink)}"
    ".mp-chart text.soft{fill:var(--mp-soft)}.mp-chart text.small{font-size:11px}"
    ".mp-chart text.tiny{font-size:9px}.mp-chart text.strong{font-weight:600}"
    ".mp-chart text.dark{fill:#10141a}.mp-chart text.on{fill:var(--mp-on);font-size:11px}"
    ".mp-chart text.limit{fill:var(--mp-limit)}"
    ".mp-chart text.end{text-anchor:end}.mp-chart text.mid{text-anchor:middle}"
    ".mp-chart .grid{stroke:var(--mp-line);fill:none}.mp-chart .axis{stroke:var(--mp-edge);fill:none}"
    ".mp-chart .cut{stroke:var(--mp-limit);stroke-width:2;stroke-dasharray:5 3;fill:none}"
    ".mp-chart .node{stroke:var(--mp-ink);stroke-width:2;fill:none}"
    ".mp-chart .band{fill:var(--mp-band)}.mp-chart .sidle{stroke:var(--mp-idle)}"
    ".mp-chart .hollow{fill:none;stroke-width:1.5;stroke-dasharray:3 2}"
    ".mp-chart .hatch{stroke:var(--mp-ink);stroke-opacity:.45;stroke-width:1.5;fill:none}"
    ".mp-chart .cell{fill:var(--mp-panel);stroke:var(--mp-edge)}"
    ".mp-chart .dots{fill:none;stroke-width:4;stroke-linecap:round}"
    ".mp-chart .path{fill:none;stroke-width:2}.mp-chart .dash{stroke-dasharray:4 3}"
    + "".join(
        f".mp-chart .{c}{{fill:var(--mp-{c})}}.mp-chart .s{c}{{stroke:var(--mp-{c});fill:none}}"
        for c in FILLS
    )
)
"""How the classes of the pictures look; every picture is readable without any of it."""
