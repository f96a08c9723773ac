"""Colours can be told from their background (WCAG 2.2): 4.5 to 1 for words, 3 to 1 for data."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from meshplan.report.chart_shares import OTHER, SHARES
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


# ── eyes that see fewer colours ──────────────────────────────────────────────────────────────────

# Machado, Oliveira and Fernandes 2009, doi:10.1109/TVCG.2009.113, table 1, severity 1; on linear RGB.
SEEN = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039],
    ],
}  # fmt: skip
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
"""sRGB, IEC 61966-2-1."""
TOLD_APART = 7.5
"""Difference in CIELAB (1976) of fills that touch; 2.3 is just noticeable (Mahy et al. 1994)."""


def lab(colour: str, eyes: str) -> npt.NDArray[np.float64]:
    """CIELAB of ``#rrggbb`` as these eyes see it."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = np.array(TO_XYZ) @ np.clip(np.array(SEEN[eyes]) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_measure_of_difference_itself() -> None:
    # sRGB's red in CIELAB with D65, as published: 53.24, 80.09, 67.20.
    assert lab("#ff0000", "all") == pytest.approx([53.24, 80.09, 67.20], abs=0.05)


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("theme", THEMES)
def test_parts_of_a_bar_are_told_apart_by_colour_or_hatching(theme: str, eyes: str) -> None:
    looks = {**SHARES, "other": OTHER}
    for (one, (_, a)), (two, (_, b)) in combinations(looks.items(), 2):
        (fill, *hatch), (other, *another) = a.split(), b.split()
        if hatch == another:
            apart = np.linalg.norm(lab(THEMES[theme][fill], eyes) - lab(THEMES[theme][other], eyes))
            assert apart >= TOLD_APART, (one, two)


def test_hatching_leaves_letters_as_clear() -> None:
    """Its lines are of the ink, which is further from the letters than any fill."""
    for colours in THEMES.values():
        assert all(
            contrast(colours["ink"], colours["on"]) >= contrast(colours[fill], colours["on"])
            for fill in FILLS
        )
