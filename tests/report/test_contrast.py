"""Colours can be told from their background (WCAG 2.2): 4.5 to 1 for words, 3 to 1 for data."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meshplan.report.palette import (
    CHART_CSS,
    DARK,
    FILLS,
    LIGHT,
    MEMORY_FILLS,
    TIME_FAMILIES,
    theme_css,
)

THEMES = {"light": LIGHT, "dark": DARK}
PAPERS = ("paper", "panel", "band")


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.2, definition of relative luminance)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    lighter, darker = sorted((luminance(a), luminance(b)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_the_measure_itself() -> None:
    # The two ends of the scale, and a published pair: #767676 on white is the lightest grey that passes 4.5.
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ink", ["ink", "soft", "link", "limit", "good"])
@pytest.mark.parametrize("paper", PAPERS)
def test_words(theme: str, ink: str, paper: str) -> None:
    colours = THEMES[theme]
    assert contrast(colours[ink], colours[paper]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("fill", FILLS)
def test_data(theme: str, fill: str) -> None:
    colours: Mapping[str, str] = THEMES[theme]
    assert contrast(colours[fill], colours["paper"]) >= 3
    assert contrast(colours["on"], colours[fill]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_lines_of_fields(theme: str) -> None:
    assert contrast(THEMES[theme]["edge"], THEMES[theme]["paper"]) >= 3


def test_main_button() -> None:
    for colours in THEMES.values():
        assert contrast(colours["paper"], colours["link"]) >= 4.5


def test_both_themes_have_every_colour_that_is_used() -> None:
    assert set(LIGHT) == set(DARK)
    used = {name.partition(")")[0] for name in (CHART_CSS + theme_css(":root")).split("var(--mp-")[1:]}
    assert used <= set(LIGHT)
    assert {fill for fill, _ in TIME_FAMILIES.values()} | set(MEMORY_FILLS.values()) <= set(FILLS)


def test_parts_of_one_bar_have_different_fills() -> None:
    # One of the two is there, never both: the textbook model does not tell weights from gradients.
    fills = [fill for part, fill in MEMORY_FILLS.items() if part != "weights_and_gradients"]
    assert len(set(fills)) == len(fills)
