"""The page in a real browser: Debian's Chromium, driven by Playwright. Every journey a person makes.

Screenshots are kept in ``out/screenshots`` for people to look at. Skipped, loudly, where there is no
Chromium (``apt-get install chromium``) or no Playwright (``pip install -e '.[browser]'``).
"""

from __future__ import annotations

import json
import re
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="NOT CHECKED: the page (pip install -e '.[test]')")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="NOT CHECKED: the page in a browser (pip install -e '.[browser]')"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("NOT CHECKED: the page in a browser (apt-get install chromium)", allow_module_level=True)

SHOTS = Path(__file__).parents[2] / "out" / "screenshots"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 60_000
expect = sync_api.expect  # looks again until it holds: a click returns before the page it leads to is there
expect.set_options(timeout=WAIT_MS)
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
}  # fmt: skip
LONG = "?model=kimi-k2&gpu=h800&gpus=8192&seq=4096&gbs=16384&space=full"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, server: Any) -> Iterator[Any]:
    """A fresh window; at its end no error was logged and nothing was asked of any other host."""
    context = browser.new_context(base_url=server.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    window = context.new_page()
    errors: list[str] = []
    asked: set[str] = set()
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    window.on("request", lambda request: asked.add(request.url))
    window.expected = []  # parts of messages that a test causes on purpose
    yield window
    left = [e for e in errors if not any(part in e for part in window.expected)]
    context.close()
    assert left == []
    assert {url for url in asked if not url.startswith((server.url, "data:"))} == set()


def ranked(page: Any) -> None:
    """Until the ranking is there: a busy machine answers first with the progress of the search."""
    expect(page.locator("#ranking table").first).to_be_visible()


def shot(page: Any, name: str, **how: Any) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", **how)


def until(page: Any, script: str) -> None:
    """Until ``script`` is true. (Playwright's own waiting evaluates text in the page, which the page's policy
    forbids, as it should.)"""
    end = time.monotonic() + WAIT_MS / 1e3
    while not page.evaluate(script):
        assert time.monotonic() < end, script
        page.wait_for_timeout(50)


def settled(page: Any) -> None:
    """Until the answer to the last change is there."""
    until(page, "!document.body.classList.contains('busy')")


def change(page: Any, action: Any) -> None:
    """Do something that asks the server, and wait for the answer."""
    with page.expect_response(lambda reply: "/answer?" in reply.url):
        action()
    settled(page)


def rank_of(page: Any, row: int) -> str:
    """The number of the plan in this row of the ranking."""
    return str(
        page.locator("#ranking table").first.locator("tbody tr").nth(row).locator("td").first.inner_text()
    )


def slide(page: Any, name: str, value: str) -> None:
    """Release a slider somewhere, as the mouse does."""
    page.evaluate(
        "([id, value]) => { const s = document.getElementById(id); s.value = value;"
        " s.dispatchEvent(new Event('input', {bubbles: true}));"
        " s.dispatchEvent(new Event('change', {bubbles: true})); }",
        [f"log2_{name}", value],
    )


def test_opens_with_a_ranking_and_pictures(page: Any) -> None:
    page.goto("/")
    assert page.title() == "meshplan"
    expect(page.get_by_role("heading", name="llama-3.1-70b on 64 × h100-sxm")).to_be_visible()
    expect(page.get_by_role("table").first.get_by_role("row")).to_have_count(11)
    ranks = [
        int(text)
        for text in page.locator("#ranking table").first.locator("tbody td:first-child").all_inner_texts()
    ]
    assert ranks[:2] == [1, 2]
    assert ranks[-1] > len(ranks)  # the best of each mesh, under their own numbers
    page.locator("#all-plans summary").click()
    all_ranks = page.locator("#all-plans tbody td:first-child").all_inner_texts()
    assert all_ranks == [str(i + 1) for i in range(10)]
    expect(page.get_by_role("img")).to_have_count(5)
    shot(page, "start", full_page=True)


def test_the_ranking_follows_the_fields(page: Any) -> None:
    page.goto("/")
    field = page.locator("#ask input[name=gpus]")
    field.fill("128")
    change(page, lambda: field.press("Tab"))
    expect(page.get_by_role("heading", name="llama-3.1-70b on 128 × h100-sxm")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/\?model=llama-3\.1-70b&gpu=h100-sxm&gpus=128&seq=8192&gbs=512$"))
    page.locator("#ask input[name=model]").fill("llama-3.1-8b")
    change(page, lambda: page.locator("#ask input[name=model]").press("Tab"))
    expect(page.get_by_role("heading", name="llama-3.1-8b on 128")).to_be_visible()
    expect(page.locator("#live")).to_contain_text("fit")


def test_the_address_carries_the_question(page: Any) -> None:
    page.goto("/?model=llama-3.1-8b&gpu=h200&gpus=16&seq=4096&gbs=64&tp=1,2&log2_nic=1")
    expect(page.get_by_role("heading", name="llama-3.1-8b on 16 × h200")).to_be_visible()
    expect(page.locator("#ask input[name=tp]")).to_have_value("1,2")
    expect(page.locator("#log2_nic")).to_have_value("1")
    before = page.locator("#ranking table").first.inner_text()
    page.reload()
    assert page.locator("#ranking table").first.inner_text() == before


def test_sliders_move_the_ranking(page: Any) -> None:
    page.goto("/")
    change(page, lambda: slide(page, "memory", "1"))
    expect(page).to_have_url(re.compile("log2_memory=1"))
    expect(page.locator(".moved")).to_contain_text("As asked, the best step took")
    expect(page.locator("output[for=log2_memory]")).to_have_text("×2")
    shot(page, "what-if")
    change(page, lambda: slide(page, "gpus", "1"))
    expect(page.get_by_role("heading", name="on 128 × h100-sxm")).to_be_visible()
    change(page, lambda: page.get_by_role("button", name="sliders back").click())
    expect(page).not_to_have_url(re.compile("log2"))
    expect(page.locator(".moved")).to_have_count(0)


def test_a_plan_is_clicked_for_its_pictures(page: Any) -> None:
    page.goto("/")
    ranked(page)
    link = page.locator("#ranking a[data-plan]").nth(2)
    name, rank = link.inner_text(), rank_of(page, 2)
    change(page, link.click)
    expect(page.locator("#plan h2")).to_have_text(f"Plan {rank}: {name}")
    expect(page.locator("#plan h2")).to_be_focused()
    expect(page).to_have_url(re.compile("plan="))
    page.go_back()
    page.get_by_role("heading", name="Plan 1:").wait_for()


def test_two_pins_are_compared(page: Any) -> None:
    page.goto("/")
    pins = page.locator("input[name=pin]")
    change(page, lambda: pins.nth(0).check())
    rank = rank_of(page, 3)
    change(page, lambda: pins.nth(3).check())
    expect(page.locator("#compare")).to_be_visible()
    verdict = re.compile(rf"#{rank} is [\d.]+% (slower|faster) than #1")
    expect(page.locator("#compare p").first).to_contain_text(verdict)
    shot(page, "compare", full_page=True)
    rank = rank_of(page, 5)
    change(page, lambda: page.locator("input[name=pin]").nth(5).check())
    expect(page.locator("input[name=pin]:checked")).to_have_count(2)
    expect(page.locator("#compare thead")).to_contain_text(f"#{rank}")


def test_why_not(page: Any) -> None:
    page.goto("/")
    field = page.get_by_label("a plan, or a part of one")
    field.fill("tp3")
    change(page, lambda: field.press("Enter"))
    page.get_by_text("tp 3 does not divide 64 heads").first.wait_for()
    field = page.get_by_label("a plan, or a part of one")
    field.fill("tp1 pp8")
    change(page, lambda: field.press("Enter"))
    page.get_by_text("The best such plan is tp1").first.wait_for()
    page.locator("#why").screenshot(path=SHOTS / "why-not.png")


def test_studies_are_worked_out_when_opened(page: Any) -> None:
    page.goto("/")
    page.locator("#studies summary").click()
    page.get_by_role("img", name="The best plan as the GPUs grow").wait_for()
    expect(page.locator("#studies svg")).to_have_count(3)
    page.locator("#studies").screenshot(path=SHOTS / "studies.png")
    change(page, lambda: slide(page, "seq", "1"))
    page.locator("#studies svg").first.wait_for()  # stays open, for the new question


def test_a_config_is_dropped(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "<b>mine.json"
    file.write_text(json.dumps(CONFIG), encoding="utf-8")
    page.goto("/")
    page.locator("#drop-box summary").click()
    with page.expect_navigation():
        page.set_input_files("#drop-file", file)
    expect(page.get_by_role("heading", name="b-mine on 64 × h100-sxm")).to_be_visible()
    expect(page).to_have_url(re.compile("config="))
    expect(page.locator("#ask")).to_contain_text("from a dropped config.json")
    with page.expect_navigation():
        page.get_by_role("link", name="forget it").click()
    expect(page.get_by_role("heading", name="llama-3.1-70b on 64")).to_be_visible()


def test_a_config_is_dropped_with_the_mouse(page: Any) -> None:
    page.goto("/")
    with page.expect_navigation():
        page.evaluate(
            """(text) => {
                const data = new DataTransfer();
                data.items.add(new File([text], "dropped.json"));
                const how = {dataTransfer: data, bubbles: true, cancelable: true};
                document.dispatchEvent(new DragEvent("drop", how));
            }""",
            json.dumps(CONFIG),
        )
    expect(page.get_by_role("heading", name="dropped on 64 × h100-sxm")).to_be_visible()


def test_what_is_wrong_is_said(page: Any) -> None:
    page.expected = ["422"]
    page.goto("/")
    field = page.locator("#ask input[name=model]")
    field.fill("<script>alert(1)</script>")
    change(page, lambda: field.press("Tab"))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("unknown model '<script>alert(1)</script>'")
    expect(page.locator("main script")).to_have_count(0)
    expect(page.locator("#live")).to_contain_text("unknown model")
    shot(page, "error")


def test_downloads(page: Any, tmp_path: Path) -> None:
    page.goto("/")
    for link, name in (("report (one HTML file)", "report.html"), ("job file", "job.yaml")):
        with page.expect_download() as download:
            page.get_by_role("link", name=link).click()
        download.value.save_as(tmp_path / name)
    assert (tmp_path / "job.yaml").read_text().startswith("model: llama-3.1-70b\n")
    page.locator("select[name=to]").select_option("torchtitan")
    page.locator("select[name=launcher]").select_option("slurm")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download launch files").click()
    download.value.save_as(tmp_path / "launch.zip")
    assert "job.sbatch" in zipfile.ZipFile(tmp_path / "launch.zip").namelist()
    report = page.context.new_page()
    asked: list[str] = []
    report.on("request", lambda request: asked.append(request.url))
    report.goto((tmp_path / "report.html").as_uri())
    expect(report.get_by_role("heading", name="The plans, best first")).to_be_visible()
    assert len(asked) == 1  # the file itself
    shot(report, "report", full_page=True)


def test_chinese(page: Any) -> None:
    page.goto("/")
    with page.expect_navigation():
        page.get_by_role("link", name="中文").click()
    expect(page.get_by_role("button", name="规划")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    change(page, lambda: slide(page, "gbs", "1"))
    expect(page.get_by_text("按当前滑块为")).to_be_visible()
    shot(page, "chinese", full_page=True)


def test_with_the_keyboard_alone(page: Any) -> None:
    page.goto("/")
    ranked(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="to the answer")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("Tab")
    if page.evaluate("document.activeElement.dataset.plan === undefined"):
        page.keyboard.press("Tab")
    chosen = page.evaluate("document.activeElement.textContent")
    change(page, lambda: page.keyboard.press("Enter"))
    expect(page.locator("#plan h2")).to_contain_text(chosen)
    page.locator("#log2_nic").focus()
    change(page, lambda: page.keyboard.press("ArrowRight"))
    expect(page.locator("#log2_nic")).to_have_attribute("aria-valuetext", "×1.41")
    page.locator("input[name=pin]").first.focus()
    change(page, lambda: page.keyboard.press("Space"))
    expect(page).to_have_url(re.compile("pin="))


def test_a_screen_reader_finds_its_way(page: Any) -> None:
    page.goto("/")
    ranked(page)
    tree = page.locator("body").aria_snapshot()
    assert 'heading "meshplan" [level=1]' in tree
    assert "main:" in tree or "- main" in tree
    assert re.search(r'img "Where one step goes', tree)
    assert re.search(r'slider "network"', tree)
    assert 'checkbox "pin plan 1 to compare"' in tree
    unnamed = [
        line
        for line in tree.splitlines()
        if re.search(r"- (textbox|combobox|button|slider|checkbox|link):?$", line)
    ]
    assert unnamed == []


def test_a_long_search_shows_progress_and_is_cancelled(page: Any) -> None:
    page.goto("/" + LONG)
    bar = page.get_by_role("progressbar")
    expect(bar).to_be_visible()
    until(page, "/priced so far: [0-9,]+/.test(document.querySelector('[data-note]').textContent)")
    shot(page, "progress")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name="search again").wait_for()
    expect(bar).to_have_count(0)


def test_a_long_search_ends_with_its_answer(page: Any) -> None:
    page.goto("/?model=deepseek-v3&gpu=h800&gpus=2048&seq=4096&gbs=15360&tp=1,2,4,8&cp=1,2,4&mbs=1,2,4,8,16")
    page.locator("#ranking table").first.wait_for()
    expect(page.get_by_role("heading", name="deepseek-v3 on 2,048 × h800")).to_be_visible()
    page.locator("#plan figure.mesh svg").scroll_into_view_if_needed()
    shot(page, "deepseek", full_page=True)


def test_on_a_phone(browser: Any, server: Any) -> None:
    context = browser.new_context(
        base_url=server.url, viewport={"width": 390, "height": 844}, color_scheme="dark"
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto("/")
    width = page.evaluate("document.documentElement.scrollWidth")
    shot(page, "phone-dark", full_page=True)
    context.close()
    assert width <= 390  # tables and pictures scroll inside themselves


def test_without_a_script(browser: Any, server: Any) -> None:
    context = browser.new_context(base_url=server.url, java_script_enabled=False)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto("/")
    page.locator("#ask input[name=gpus]").fill("32")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("heading", name="llama-3.1-70b on 32 × h100-sxm")).to_be_visible()
    page.locator("#ranking a").nth(1).click()
    expect(page.locator("#plan h2")).to_contain_text("Plan 2:")
    for i in (0, 1):
        page.locator("input[name=pin]").nth(i).check()
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#compare")).to_be_visible()
    page.get_by_label("a plan, or a part of one").fill("tp3")
    page.get_by_role("button", name="Why not").click()
    expect(page.get_by_text("tp 3 does not divide 64 heads")).to_be_visible()
    page.get_by_role("link", name="back to the ranking").click()
    page.locator("#drop-box summary").click()
    page.locator("#drop textarea").fill(json.dumps(CONFIG))
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_role("heading", name="my-model on 32 × h100-sxm")).to_be_visible()
    context.close()


def test_on_paper(page: Any) -> None:
    page.goto("/")
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.emulate_media(media="print")
    page.pdf(path=SHOTS / "page.pdf", format="A4")
    assert (SHOTS / "page.pdf").stat().st_size > 10_000
