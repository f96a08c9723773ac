"""``meshplan schedule`` as people use it: what it prints, writes and refuses."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main


def ask(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main(["schedule", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    code, out, err = ask(capsys, *argv, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask_json(capsys, "zb-h1", "--ranks", 8, "--micro-batches", 32)
    assert found["schema_version"] == 1
    assert found["schedule"] == "zb-h1"
    assert found["step"] == 32 * 3 + 7  # (p - 1)(F + B - W), zero-bubble paper table 2
    assert found["bubble"] == pytest.approx(7 / 103)
    assert [rank["rank"] for rank in found["ranks"]] == list(range(8))
    assert all(rank["busy"] == 96 and rank["idle"] == 7 for rank in found["ranks"])
    assert all(rank["peak_in_flight"] == 8 for rank in found["ranks"])
    path = found["critical_path"]
    assert path[0] == {"rank": 0, "kind": "F", "stage": 0, "micro_batch": 0, "start": 0, "end": 1}
    assert path[-1]["end"] == found["step"]


def test_durations_one_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask_json(
        capsys, "gpipe", "--ranks", 2, "--micro-batches", 2, "--forward", "1,2", "--backward", "1,2",
        "--weight", "0,0", "--p2p", "0.5",
    )  # fmt: skip
    # 0F0 0-1, 1F0 1.5-3.5, 1F1 3.5-5.5, 1B0 5.5-7.5, 1B1 7.5-9.5, 0B1 10-11
    assert found["step"] == 11
    assert [rank["busy"] for rank in found["ranks"]] == [4, 8]


def test_own_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps({"ranks": [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]}))
    found = ask_json(capsys, "--file", path)
    assert found["schedule"] == "order.json"
    assert found["step"] == 9
    assert found["ranks"][0]["peak_in_flight"] == 2


def test_saved_order_runs_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    made = ask_json(capsys, "dualpipe", "--ranks", 4, "--micro-batches", 8, "--save-order", path)
    again = ask_json(capsys, "--file", path)
    assert again == made


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--ranks", 8, "--micro-batches", 32)
    found = ask_json(capsys, "--compare", "1f1b,interleaved,zb-v", *sizes)
    rows = {row["schedule"]: row for row in found["schedules"]}
    assert rows["1f1b"]["step"] == (32 + 7) * 3
    assert rows["interleaved"]["step"] == 32 * 3 + 7 * 3 / 2
    assert rows["zb-v"]["step"] == pytest.approx(32 * 3 + 3.5)
    assert [rows[n]["peak_micro_batches"] for n in rows] == [8, 11.5, 8]
    code, out, _ = ask(capsys, "--compare", "1f1b,interleaved,zb-v", *sizes)
    assert code == 0
    assert out.splitlines()[0].split() == [
        "schedule", "step", "against", "best", "bubble", "peak", "micro-batches", "stages", "a", "rank",
    ]  # fmt: skip


def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg, trace = tmp_path / "a.svg", tmp_path / "a.json"
    code, out, err = ask(
        capsys, "v-half", "--ranks", 4, "--micro-batches", 8, "--timeline", "--svg", svg, "--trace", trace
    )
    assert code == 0
    assert "rank 3 " in out
    assert err.splitlines() == [f"wrote {svg}", f"wrote {trace}"]
    assert svg.read_text().startswith("<svg ")
    assert json.loads(trace.read_text())["otherData"]["schedule"] == "v-half"


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("GPipe", "gpipe"), ("1F1B", "1f1b"), ("interleaved-1f1b", "interleaved"),
        ("Interleaved1F1B", "interleaved"), ("breadth-first", "looped-bfs"), ("LoopedBFS", "looped-bfs"),
        ("zbh1", "zb-h1"), ("ZB_H2", "zb-h2"), ("ZB-2p", "zb-h2"), ("zbv", "zb-v"), ("ZBVZeroBubble", "zb-v"),
        ("vhalf", "v-half"), ("V-Min", "v-min"), ("dual-pipe", "dualpipe"), ("DualPipe", "dualpipe"),
        ("dualpipev", "dualpipe-v"), ("ScheduleDualPipeV", "dualpipe-v"),
    ],
)  # fmt: skip
def test_names_as_people_and_papers_spell_them(
    spelt: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--ranks", 4, "--micro-batches", 8)
    assert ask_json(capsys, spelt, *sizes) == ask_json(capsys, name, *sizes)
    rows = ask_json(capsys, "--compare", f"{spelt}, 1f1b", *sizes)["schedules"]
    assert rows[0]["schedule"] == name


def test_a_file_that_cannot_be_written_whole_leaves_what_was_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up in the middle of a trace."""
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full(run: object, out: Any) -> None:
        out.write("[" * 100_000)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("meshplan.cli.schedule.write_trace", full)
    code, out, err = ask(capsys, "1f1b", "--ranks", 4, "--micro-batches", 8, "--trace", path)
    assert (code, out) == (2, "")
    assert err == f"error: cannot write '{path}': no space left on device\n"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_written_files_keep_their_mode_and_links_their_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    real, link = tmp_path / "real.svg", tmp_path / "link.svg"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    code, _, _ = ask(capsys, "1f1b", "--ranks", 4, "--micro-batches", 8, "--svg", link)
    assert code == 0
    assert link.is_symlink()
    assert real.read_text().startswith("<svg ")
    assert real.stat().st_mode & 0o777 == 0o640


def test_help_names_the_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "--help")
    assert code == 0
    assert "looped-bfs" in out
    assert "--micro-batches" in out


SIZES = ("--ranks", "4", "--micro-batches", "8")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("1f1b", "--ranks", "8", "--micro-batches", "4"), "as many micro-batches as ranks, 8, not 4"),
        (("zb-v", *SIZES, "--vp", "3"), "exactly 2 stages a rank, not 3: use 2"),
        (("dualpipe", "--ranks", "4", "--micro-batches", "9"), "micro-batches, not 9: use 8 or 10"),
        (("1f1b", *SIZES, "--forward", "-1"), "--forward must be 0 or more, not '-1'"),
        (("1f1b", *SIZES, "--forward", "nan"), "--forward must be 0 or more, not 'nan'"),
        (("1f1b", *SIZES, "--weight", "inf"), "--weight must be 0 or more, not 'inf'"),
        (("1f1b", *SIZES, "--weight", "1e300"), "--weight must be at most 1e15"),
        (("1f1b", *SIZES, "--backward", "1,x,1,1"), "--backward must be a number or a comma-separated list"),
        (("1f1b", *SIZES, "--forward", "1,1"), "forward has 2 values; it needs one number or 4"),
        (("1f1b", *SIZES, "--p2p", "1,,1"), "comma-separated list of them, not ''"),
        (("1f1b", *SIZES, "--tail", "1,2"), "tail has 2 values"),
        (("1f1b", *SIZES, "--pair-share", "0"), "--pair-share must be above 0"),
        (("1f1b", "--micro-batches", "8"), "schedule '1f1b' needs --ranks"),
        (("1f1b", "--ranks", "8"), "schedule '1f1b' needs --micro-batches"),
        (("1f1b", "--ranks", "0", "--micro-batches", "8"), "--ranks must be from 1 to"),
        (("1f1b", "--ranks", "2.5", "--micro-batches", "8"), "--ranks must be a whole number"),
        (("1f1b", "--ranks", "1000000", "--micro-batches", "1000000"), "the most a simulation takes"),
        (("1f1c", *SIZES), "unknown schedule '1f1c'; did you mean '1f1b'"),
        ((), "give a schedule's name, --file or --compare"),
        (("1f1b", "--file", "x.json"), "not a name and --file"),
        (("--file", "nowhere.json"), "cannot read order file 'nowhere.json'"),
        (("--file", "nowhere.json", "--ranks", "4"), "--file says that itself; leave out --ranks"),
        (("--compare", "1f1b,zbx1", *SIZES), "unknown schedule 'zbx1'"),
        (("--compare", "1f1b,zb-v", *SIZES, "--forward", "1,2,3,4"), "takes one number for --forward"),
        (("--compare", "1f1b", *SIZES, "--svg", "x.svg"), "--svg shows one schedule"),
        (("1f1b", *SIZES, "--svg", "/nowhere/x.svg"), "cannot write '/nowhere/x.svg'"),
    ],
)  # fmt: skip
def test_bad_input(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], sentence: str) -> None:
    code, out, err = ask(capsys, *argv)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert sentence in err
    assert "Traceback" not in err


def test_bad_input_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, "1f1b", "--ranks", "8", "--micro-batches", "4", "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["exit_code"] == 2


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([["0F0", "0B0"], ["1F0"]], "misses B (or I and W) of stage 1, micro-batch 0"),
        ([["0F0", "0B0", "0B0"], ["1F0", "1B0"]], "rank 0, action 2 (0B0) is there twice"),
        ([["0B0", "0F0"], ["1F0", "1B0"]], "rank 0, action 0 (0B0) comes before 0F0"),
        ([["0F0", "0W0", "0I0"], ["1F0", "1B0"]], "rank 0, action 1 (0W0) comes before 0I0"),
        ([["0F0", "0B0"], ["1F0", "1Q0"]], "rank 1, action 1: '1Q0' has kind 'Q'"),
        ([["0F0", "0B0"], ["1F0", 3]], "rank 1, action 1: an action is text"),
    ],
)
def test_bad_order_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ranks: list[list[object]], sentence: str
) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps({"ranks": ranks}))
    code, _, err = ask(capsys, "--file", path)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert sentence in err
