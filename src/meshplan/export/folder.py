"""Writing the files of a launch: all or none, never over something without being told to."""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshplan.errors import InputError, shown

EXECUTABLE = (".sh",)


def differences(folder: str | Path, files: Mapping[str, str]) -> Iterator[str]:
    """Unified diff from what is in ``folder`` to ``files``, line by line; nothing where they agree."""
    _check_folder(Path(folder))
    for name, text in files.items():
        old = _read(Path(folder) / name)
        if old != text:
            yield from difflib.unified_diff(
                (old or "").splitlines(keepends=True),
                text.splitlines(keepends=True),
                fromfile=f"{name} (there)" if old is not None else f"{name} (not there)",
                tofile=f"{name} (new)",
            )


def in_the_way(folder: str | Path, files: Mapping[str, str]) -> list[str]:
    """Names of files in ``folder`` that writing would change."""
    return [
        name
        for name, text in files.items()
        if (old := _read(Path(folder) / name)) is not None and old != text
    ]


def write(folder: str | Path, files: Mapping[str, str], *, force: bool = False) -> list[Path]:
    """Write ``files`` into ``folder``, made if it is not there.

    Every file is written whole beside its place and then renamed into it, so that an error (no room,
    no permission) leaves what was there. Raises ``InputError`` when a file would be overwritten and
    ``force`` is not given, or the folder cannot be written.
    """
    target = Path(folder)
    _check_folder(target)
    taken = in_the_way(target, files)
    if taken and not force:
        raise InputError(
            f"{shown(target / taken[0], 200)} is there already and differs;"
            " --force overwrites it, --diff shows how"
        )
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".meshplan-", dir=target))
    except OSError as error:
        raise InputError(f"{shown(target, 200)} cannot be written: {_reason(error)}") from None
    done = False
    try:
        for name, text in files.items():
            file = staging / name
            file.write_text(text, encoding="utf-8", newline="\n")
            mode = 0o755 if name.endswith(EXECUTABLE) else 0o644
            file.chmod(mode & ~_umask())
        for name in files:
            (staging / name).replace(target / name)
        done = True
    except OSError as error:
        raise InputError(f"{shown(target, 200)} cannot be written: {_reason(error)}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if made and not done:
            shutil.rmtree(target, ignore_errors=True)
    return [target / name for name in files]


def _check_folder(target: Path) -> None:
    """Raises ``InputError`` where a file stands where a folder would have to."""
    try:
        wrong = next((p for p in (target, *target.parents) if p.exists() and not p.is_dir()), None)
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(target, 200)} cannot be written: {_reason(error)}") from None
    if wrong is not None:
        raise InputError(
            f"launch files go into a folder, and {shown(wrong, 200)} is none; name a folder that is there"
            " or can be made"
        )


def _read(file: Path) -> str | None:
    """The text of a file, ``None`` where there is none; what is no text counts as different from any."""
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(file, 200)} cannot be read: {_reason(error)}") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{shown(file, 200)} is there and is no regular file")
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{shown(file, 200)} cannot be read: {_reason(error)}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
