"""``meshplan report``: an answer saved as JSON as one HTML file, or its pictures as SVG."""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json
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
    language: Annotated[Language, Parameter(metavar="NAME")] = "en",
    json_: Json = False,
) -> int:
    """Make a report of an answer saved as JSON: one HTML file that needs no network.

    Give --out, --svg or --json.

    Parameters
    ----------
    saved
        What `meshplan plan … --json`, `estimate … --json` or `report … --json` printed.
    out
        Write the report to this file.
    svg
        Write every picture of it into this folder.
    language
        en or zh.
    json_
        Print the data of the report.
    """
    from meshplan.report.resume import read_saved, report_of_saved

    if out is None and svg is None and not json_:
        raise InputError("nothing to make: give --out report.html, --svg FOLDER or --json")
    try:
        data = report_of_saved(read_saved(saved), told=progress())
        write_report(data, html=out, svg=svg, language=language)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(
            f"saved answer {shown(saved, 200)} is not as meshplan writes it ({what[:120]})"
        ) from error
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False))
    return 0


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


def write_file(path: Path, text: str) -> None:
    """Write ``text`` whole or not at all: beside its place first. Raises ``InputError``."""
    try:
        if path.is_dir():
            raise InputError(f"cannot write {shown(path, 200)}: it is a folder")
        if path.exists() and not path.is_file():  # a pipe, standard output
            path.write_text(text, encoding="utf-8")
            return
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".meshplan-", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InputError(f"cannot write {shown(path, 200)}: {_reason(error)}") from None
    print(f"wrote {path}", file=sys.stderr)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
