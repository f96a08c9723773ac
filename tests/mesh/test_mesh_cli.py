"""``meshplan mesh`` as people see it: the drawing, the JSON, the torch lines, and what is refused."""

import json
import os
import subprocess
import sys

import pytest

from meshplan.cli import main
from meshplan.plan.mesh import Mesh
from meshplan.report.mesh_view import ASCII, draw_mesh, ink_for

DRAWN = """\
16 ranks on 2 nodes of 8, from inside out tp 2 × cp 2 × dp 2 × pp 2

      ┌─ node 0 ───────────────┬─ node 1 ───────────────┐
rank  │  0  1  2  3  4  5  6  7│  8  9 10 11 12 13 14 15│
tp    │  0  1  0  1  0  1  0  1│  0  1  0  1  0  1  0  1│
cp    │  0  0  1  1  0  0  1  1│  0  0  1  1  0  0  1  1│
dp    │  0  0  0  0  1  1  1  1│  0  0  0  0  1  1  1  1│
pp    │  0  0  0  0  0  0  0  0│  1  1  1  1  1  1  1  1│

group  size  groups  where          ranks (┃ node boundary)
tp        2       8  inside a node  [0 1] [2 3] [4 5] [6 7] ┃ [8 9] [10 11] [12 13] [14 15]
cp        2       8  inside a node  [0 2] [1 3] [4 6] [5 7] ┃ [8 10] [9 11] [12 14] [13 15]
dp        2       8  inside a node  [0 4] [1 5] [2 6] [3 7] ┃ [8 12] [9 13] [10 14] [11 15]
pp        2       8  across nodes   [0 ┃ 8] [1 ┃ 9] [2 ┃ 10] [3 ┃ 11] [4 ┃ 12] [5 ┃ 13] [6 ┃ 14] …
dp-cp     4       4  inside a node  [0 2 4 6] [1 3 5 7] ┃ [8 10 12 14] [9 11 13 15]

rank 13: node 1, GPU 5 of it; tp 1, cp 0, dp 1, pp 1
group  place  before  after  ranks
tp         1      12     12  [12 13]
cp         0      15     15  [13 15]
dp         1       9      9  [9 13]
pp         1       5      5  [5 ┃ 13]
"""

TEXTBOOK = ["mesh", "--tp", "2", "--cp", "2", "--dp", "2", "--pp", "2", "--gpus-per-node", "8"]


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv):
        code = main(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_textbooks_mesh_drawn(run):
    assert run(*TEXTBOOK, "--rank", "13") == (0, DRAWN, "")


def test_plain_characters():
    text = draw_mesh(Mesh.of({"tp": 2, "dp": 8, "ep": 4}), 8, ink=ASCII, rank=3)
    assert text.isascii()
    assert "the same ranks in MoE layers: etp 1 x ep 4 x edp 4 x pp 1" in text
    assert ink_for("ascii") is ink_for("latin-1") is ink_for(None) is ASCII
    assert ink_for("utf-8") is not ASCII


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize(
    ("sizes", "node"),
    [
        ({"tp": 8, "cp": 2, "dp": 512, "pp": 16, "ep": 64}, 8),
        ({"tp": 8, "dp": 36}, 72),
        ({"dp": 1_000_000}, 8),
        ({"tp": 3, "dp": 4}, 8),
        ({"tp": 1}, 1),
    ],
)
def test_a_drawing_stays_small(sizes, node, width):
    mesh = Mesh.of(sizes)
    text = draw_mesh(mesh, node, width=width, rank=mesh.size - 1)
    assert len(text) < 10_000
    assert len(text.splitlines()) < 70
    if width >= 80:
        boxes = [line for line in text.splitlines() if "┌" in line or "│" in line]
        assert max(map(len, boxes)) <= width


def test_groups_cut_by_a_node_are_told_apart():
    text = draw_mesh(Mesh.of({"tp": 3, "dp": 4}), 8)
    assert "some across nodes  [0 1 2] [3 4 5] [6 7 ┃ 8] [9 10 11]" in text


def test_json_is_complete(run):
    code, out, err = run(*TEXTBOOK, "--ep", "4", "--rank", "13", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["schema_version"] == 1
    assert data["order"] == ["tp", "cp", "ep", "dp", "pp"]
    assert data["sizes"] == {"tp": 2, "cp": 2, "dp": 2, "pp": 2, "etp": 1, "ep": 4, "edp": 2}
    assert (data["ranks"], data["gpus_per_node"], data["nodes"]) == (16, 8, 2)
    assert data["groups"]["pp"] == [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]]
    assert data["groups"]["ep"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert data["groups"]["dp-cp"][0] == [0, 2, 4, 6]
    assert set(data["groups"]) == set(data["inside_node"])
    assert data["inside_node"]["tp"] == [True] * 8
    assert data["inside_node"]["pp"] == [False] * 8
    rank = data["rank"]
    assert (rank["rank"], rank["node"], rank["local_rank"]) == (13, 1, 5)
    assert rank["coordinates"] == {"tp": 1, "cp": 0, "dp": 1, "pp": 1, "etp": 0, "ep": 1, "edp": 1}
    assert rank["groups"]["dp"] == [9, 13]
    assert rank["neighbours"]["ep"] == [12, 14]


def test_torch_lines(run):
    code, out, _ = run("mesh", "--tp", "2", "--dp", "4", "--pp", "2", "--ep", "4", "--torch")
    assert code == 0
    assert out.splitlines() == [
        "from torch.distributed.device_mesh import init_device_mesh",
        "",
        'mesh = init_device_mesh("cuda", (2, 4, 1, 2), mesh_dim_names=("pp", "dp", "cp", "tp"))',
        'expert_mesh = init_device_mesh("cuda", (2, 2, 4, 1), mesh_dim_names=("pp", "edp", "ep", "etp"))',
    ]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--tp", "0"], "--tp must be from 1 to 1,000,000,000, not '0'"),
        (["--tp", "-4"], "--tp must be from 1 to 1,000,000,000, not '-4'"),
        (["--tp", "two"], "--tp must be a whole number, not 'two'"),
        (["--tp", "1e3"], "--tp must be a whole number"),
        (["--tp", "nan"], "--tp must be a whole number"),
        (["--tp", "9" * 400], "--tp must be from 1 to"),
        (["--tp", "100000", "--dp", "100000"], "makes more than 10,000,000 ranks"),
        (["--gpus-per-node", "0"], "--gpus-per-node must be from 1 to"),
        (["--tp", "2", "--rank", "2"], "rank 2 is not in a mesh of 2; ranks go from 0 to 1"),
        (["--rank", "-1"], "--rank must be at least 0, not '-1'"),
        (["--order", "tp-dp", "--pp", "2"], "leaves out pp, which is 2; try 'tp-dp-pp'"),
        (["--order", "tp-xp"], "unknown dimension 'xp'; known: tp, cp, ep, dp, pp"),
        (["--order", "tp-tp-dp"], "names tp more than once"),
        (["--dp", "8", "--ep", "3"], "ep could be 2 or 4"),
        (["--dp", "10000000", "--json"], "too many to list as JSON"),
        (["--tpp", "2"], "unknown option --tpp"),
    ],
)
def test_what_cannot_be_is_one_sentence(run, argv, words):
    code, out, err = run("mesh", *argv)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_131072_ranks_in_under_a_second():
    """The whole command, Python's start included, in seconds of processor; the best of three."""
    argv = ["mesh", "--tp=8", "--cp=2", "--dp=512", "--pp=16", "--ep=64", "--json"]
    times = []
    for _ in range(3):
        start = os.times()
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from meshplan.cli import main; sys.exit(main())", *argv],
            capture_output=True, check=True,
        )  # fmt: skip
        end = os.times()
        times.append(end.children_user + end.children_system - start.children_user - start.children_system)
    groups = json.loads(done.stdout)["groups"]
    assert len(groups["tp"]) == 131_072 // 8
    assert min(times) < 1.0
