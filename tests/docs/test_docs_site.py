"""The documentation site: builds without a warning, and is all there.

``MESHPLAN_SITE`` names a site that was built already (``.ci/run`` builds one); without it the site is built
here. Skipped, loudly, where Sphinx or what the site needs besides is missing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import meshplan
from meshplan.cli.app import COMMANDS

REPO = Path(__file__).parents[2]
DOCS = REPO / "docs"
NEEDED = ("sphinx", "myst_parser", "furo", "latex2mathml")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"THE DOCUMENTATION IS NOT BUILT: {', '.join(MISSING)} missing (extra 'docs')"
)
PAGES = [
    file.relative_to(DOCS).with_suffix(".html")
    for file in sorted(DOCS.rglob("*.md"))
    if file.relative_to(DOCS).parts[0] not in ("_ext", "_static", "notebooks")
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = os.environ.get("MESHPLAN_SITE")
    if built:
        return Path(built)
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    return {str(page): (site / page).read_text(encoding="utf-8") for page in PAGES}


def test_every_page_is_there(pages: dict[str, str]) -> None:
    assert len(pages) > 40
    assert all(len(text) > 2000 for text in pages.values())


def test_nothing_comes_over_the_network(pages: dict[str, str], site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//|<link[^>]+href=\"(?:https?:)?//"
    )
    for name, text in pages.items():
        assert not loads.search(text), name
        assert not re.search(r'src="[^"]*mathjax', text, re.IGNORECASE), name
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", text), sheet


def test_links_inside_lead_somewhere(pages: dict[str, str], site: Path) -> None:
    checked = 0
    for name, text in pages.items():
        for target in re.findall(r'href="([^"]+)"', text):
            path, _, anchor = target.partition("#")
            path = path.partition("?")[0]
            if ":" in path or path.startswith("//"):
                continue
            file = (site / name).parent / path if path else site / name
            assert file.exists(), (name, target)
            if anchor and file.suffix == ".html":
                there = f'id="{anchor}"' in file.read_text(encoding="utf-8")
                assert there or anchor.startswith("line-"), (name, target)
            checked += 1
    assert checked > 1000


def test_concepts_have_formula_picture_source_limits_and_exercises(pages: dict[str, str]) -> None:
    concepts = {n: t for n, t in pages.items() if n.startswith("concepts/") and "index" not in n}
    assert len(concepts) == 24
    for name, text in concepts.items():
        for heading in ("Sources", "Limits", "Exercises"):
            assert f"<h2>{heading}<" in text, (name, heading)
        assert "<math" in text, name
        assert 'class="mp-chart' in text, name
        assert text.count('<details class="answer">') == text.count('class="exercise docutils') >= 2, name
        assert len(re.findall(r"In the code: ", text)) == 1, name
        assert 'href="../reference/' in text, name


def test_pictures_and_formulas_are_well_formed(pages: dict[str, str]) -> None:
    pictures = formulas = 0
    for name, text in pages.items():
        for markup in re.findall(r"<svg[^>]+mp-chart.*?</svg>", text, re.DOTALL):
            tree = ElementTree.fromstring(markup)
            assert tree.find("{*}title") is not None, name
            assert tree.find("{*}desc") is not None, name
            pictures += 1
        for markup in re.findall(r"<math.*?</math>", text, re.DOTALL):
            tree = ElementTree.fromstring(markup)
            assert not re.search(r"\\[a-z]{2}", "".join(tree.itertext())), (name, markup)
            formulas += 1
    assert pictures > 40
    assert formulas > 100


def test_answers_are_worked_out(pages: dict[str, str]) -> None:
    # Published figures, by way of the pages: the handbook's ratio of transfers to computing and the logits
    # of one sequence; Llama 3's mean time between failures; parameters of Llama 3.1 70B.
    assert "For the 70B case the factor is 0.031" in pages["concepts/tensor-parallel.html"]
    assert "One fp32 copy is 4.2 GB" in pages["concepts/logits.html"]
    assert "Every 3.1 hours" in pages["concepts/goodput.html"]
    assert "70.55 billion" in pages["concepts/model-states.html"]
    handbook = " ".join(pages["concepts/handbook.html"].split())
    assert "from 46.5 % (tp 8: 47.6 %) to 52.0 % (tp 8: 48.9 %)" in handbook
    assert "MFU 55.0 %" in handbook
    for name, text in pages.items():
        answers = re.findall(r"<details.*?</details>", text, re.DOTALL)
        assert not any("nan" in re.sub("<[^>]+>", "", a).split() for a in answers), name


def test_the_reference_is_whole(pages: dict[str, str]) -> None:
    for command in COMMANDS:
        assert f'id="meshplan-{command.name}"' in pages["reference/cli.html"], command.name
    assert "--what-if" in pages["reference/cli.html"]
    for name in meshplan.__all__:
        assert re.search(rf'id="meshplan\.[\w.]*\.{name}"', pages["reference/python.html"]), name


def test_chinese_pages_say_so_and_both_languages_link(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        chinese = name.startswith("zh/")
        assert ('lang="zh-CN"' in text.split("<head", 1)[0]) == chinese, name
        if chinese or f"zh/{name}" in pages:
            assert '<p class="language">' in text, name
