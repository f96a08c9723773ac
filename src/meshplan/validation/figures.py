"""The project's own table of measured runs, transcribed from papers, documentation and repositories.

``ref`` names the primary source of each row; ``notes`` say what was derived or assumed.
"""

from __future__ import annotations

from importlib import resources

from meshplan.validation.rows import Row, parse_rows

NAME = "figures.csv"


def own_rows() -> list[Row]:
    """All rows of the table that ships with meshplan, in the schema of measured runs."""
    file = resources.files("meshplan.validation") / "data" / NAME
    return list(parse_rows(file.read_text(encoding="utf-8"), NAME))
