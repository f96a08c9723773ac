"""``meshplan report``: an answer saved as JSON as one HTML file, or its pictures as SVG."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json
from meshplan.cli.output import write_file
from meshplan.cli.progress import progress
from meshplan.errors import InputError, shown

app = cyclopts.App(name="report", help_formatter=HelpFormatter())

Language = Literal["en", "zh"]


@app.default
def report(
    saved: str,
    /,
    *,
    out: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    svg: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    language: Annotated[Language | None, Parameter(metavar="NAME")] = None,
    json_: Json = False,
) -> int:
    """Make a report of an answer saved as JSON: one HTML file that needs no network.

    Give --out, --svg or --json.

    Parameters
    ----------
    saved
        What `meshplan plan … --json`, `estimate … --json` or `report … --json` printed; - reads standard
        input.
    out
        Write the report to this file.
    svg
        Write every picture of it into this folder.
    language
        Of the report and its pictures: en (default) or zh.
    json_
        Print the data of the report.
    """
    from meshplan.report.resume import read_saved, report_of_saved

    if out is None and svg is None and not json_:
        raise InputError("nothing to make: give --out report.html, --svg FOLDER or --json")
    check_places(out, svg)
    used = report_language(language, needs="--out report.html or --svg FOLDER", drawn=bool(out or svg))
    import numpy as np

    try:
        with np.errstate(all="ignore"):  # absurd numbers in it are not said one by one
            data = report_of_saved(read_saved(saved), told=progress())
            write_report(data, html=out, svg=svg, language=used)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else "a value in it is of another kind"
        raise InputError(
            f"saved answer {shown(saved, 200)} is not as meshplan writes it: {what[:120]}; save it again"
        ) from error
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False))
    return 0


def check_places(html: Path | None, svg: Path | None) -> None:
    """Raises ``InputError`` where a report cannot be written, before anything is searched for it."""
    if html is not None and html.is_dir():
        raise InputError(f"cannot write {shown(html, 200)}: it is a folder")
    if html is not None and not html.absolute().parent.is_dir():
        raise InputError(f"cannot write {shown(html, 200)}: no such file or directory")
    if svg is not None and svg.exists() and not svg.is_dir():
        raise InputError(f"cannot make folder {shown(svg, 200)}: a file of that name is there")


def report_language(language: Language | None, *, needs: str, drawn: bool) -> Language:
    """The language of a report; raises ``InputError`` where one is asked for and no report is."""
    if language is not None and not drawn:
        raise InputError(f"--language is that of a report, and none is asked for; give {needs}")
    return language or "en"


def write_report(
    data: Mapping[str, Any], *, html: Path | None, svg: Path | None, language: Language = "en"
) -> None:
    """Write the report and its pictures where asked, and say so on standard error. Raises ``InputError``."""
    from meshplan.report.html import report_html, report_pictures
    from meshplan.report.svg import standalone

    if html is not None:
        write_file(html, report_html(data, language=language))
    if svg is not None:
        pictures = report_pictures(data, language=language)
        try:
            svg.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make folder {shown(svg, 200)}: {_reason(error)}") from None
        for name, picture in pictures.items():
            write_file(svg / f"{name}.svg", standalone(picture))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
