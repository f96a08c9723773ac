"""Things a reader from outside would trip over."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import meshplan

REPO = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout: the tracked files cannot be listed")
    return [REPO / name for name in done.stdout.splitlines() if (REPO / name).is_file()]


def test_one_version_everywhere() -> None:
    changelog = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)[0]
    assert meshplan.__version__ == PROJECT["project"]["version"] == newest


def test_the_licence_is_apache() -> None:
    text = (REPO / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_no_paths_of_a_machine() -> None:
    wrong = re.compile("|".join(["/" + "work/", "/" + "root/", "/" + "home/[a-z]", "index" + "-url"]))
    found = []
    for file in tracked():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{file.relative_to(REPO)}: {m[0]}" for m in wrong.finditer(text)]
    assert found == []


def test_modules_stay_small() -> None:
    long = {
        str(file.relative_to(REPO)): lines
        for file in tracked()
        if file.suffix == ".py" and "src" in file.parts
        if (lines := file.read_text(encoding="utf-8").count("\n")) > 600
    }
    assert long == {}


def test_public_names_exist_and_are_documented() -> None:
    assert sorted(meshplan.__all__) == list(meshplan.__all__)
    for name in meshplan.__all__:
        value = getattr(meshplan, name)
        assert value.__doc__, name
    assert set(meshplan.__all__) <= set(dir(meshplan))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = meshplan.nothing  # type: ignore[attr-defined]


def test_public_names_are_the_same_to_type_checkers() -> None:
    text = (REPO / "src" / "meshplan" / "__init__.py").read_text(encoding="utf-8")
    for_checkers = re.findall(r"^    from meshplan\.([\w.]+) import (\w+) as \2$", text, re.MULTILINE)
    assert sorted(name for _, name in for_checkers) == list(meshplan.__all__)
    for room, name in for_checkers:
        if name != "search":
            assert getattr(meshplan, name).__module__.startswith(f"meshplan.{room}"), name


def test_the_core_depends_on_little() -> None:
    names = {re.split(r"[<>=\[ ]", d)[0] for d in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "cyclopts", "rich", "pydantic", "ruamel.yaml"}


def test_the_commands_of_the_readme_are_those_of_ci() -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    ci = (REPO / ".ci" / "run").read_text(encoding="utf-8")
    assert "pip install -e '.[test]' && .venv/bin/python -m pytest" in readme
    assert "install --quiet -e '.[test,lint]'" in ci
    assert "-m pytest" in ci
