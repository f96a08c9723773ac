"""``meshplan validate``: figures on a table with known answers, its JSON, and what it refuses."""

import csv
import io
import json
import re
import time
from importlib import resources

import numpy as np
import pytest

from meshplan.cli import main
from meshplan.validation.cases import SkippedError, case_of
from meshplan.validation.figures import own_rows
from meshplan.validation.metrics import Errors, kendall_tau
from meshplan.validation.rows import OPTIONAL_NUMBERS, REQUIRED_NUMBERS, TEXT, parse_rows
from meshplan.validation.run import price_cases

HEADER = (
    (resources.files("meshplan.validation") / "data/figures.csv").read_text("utf-8").split("\n")[0].split(",")
)
ROW = {
    "id": "a", "source": "mine", "tier": "A", "model": "llama-8b", "layers": 32, "hidden": 4096, "heads": 32,
    "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256, "gated": 1, "seq": 8192, "gpu": "H100",
    "gpus": 8, "gpus_per_node": 8, "gbs": 64, "mbs": 1, "tp": 2, "sp": 1, "cp": 1, "pp": 1, "vp": 1, "ep": 1,
    "dp": 4, "sharding": "zero1", "recompute": "none", "precision": "bf16", "step_s": 6.0,
}  # fmt: skip


def table(*rows, header=HEADER):
    out = io.StringIO()
    writer = csv.DictWriter(out, header, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**ROW, **row} for row in rows)
    return out.getvalue()


@pytest.fixture
def write(tmp_path):
    def written(*rows, text=None, header=HEADER):
        file = tmp_path / "runs.csv"
        file.write_text(table(*rows, header=header) if text is None else text, encoding="utf-8")
        return str(file)

    return written


def run(capsys, *argv):
    code = main(["validate", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def estimates(*rows):
    """Step time and device memory the model gives for these rows."""
    cases = [case_of(row) for row in parse_rows(table(*rows), "t")]
    return [(o.step_s, o.memory_bytes) for o in price_cases(cases)]


# ── rows whose words need reading ────────────────────────────────────────────────────────────────


def read(**row):
    (case,) = (case_of(row) for row in parse_rows(table(row), "t"))
    return case


@pytest.mark.parametrize(
    ("notes", "windows"),
    [
        ("FP8 delayed per-tensor (hybrid)", (None, None, None, None)),
        ("dispatcher=hybridep", (None, None, None, None)),
        ("OLMo3-7B (3 of 4 layers sliding-window 4096)", (4096, 4096, 4096, None)),
        ("SFT (packed SQuAD)", (256, 256, 256, 256)),
    ],
)
def test_notes_say_what_queries_see(notes, windows):
    assert tuple(layer.attention.window for layer in read(notes=notes).model.layers[:4]) == windows


def test_notes_say_parallel_blocks_and_the_number_of_recomputed_layers():
    assert all(layer.parallel for layer in read(notes="parallel transformer block, LAMB").model.layers)
    assert read(recompute="full", notes="Megatron-FSDP; recompute_num_layers=5").plan.recompute_layers == 5


@pytest.mark.parametrize(
    "notes", ["hybrid Mamba2+attention", "hybrid GatedDeltaNet/attention 3:1", "dims not filled"]
)
def test_hybrid_architectures_are_left_out(notes):
    with pytest.raises(SkippedError, match="architecture not described"):
        read(notes=notes)


@pytest.mark.parametrize(("gpus", "gbs", "measured_s"), [(256, 768, 40.0), (3072, 6144, 29.02)])
def test_zero2_under_a_megatron_pipeline_reduces_gradients_once_a_step(gpus, gbs, measured_s):
    # The Megatron-LM baseline of arXiv 2402.15627, Tables 2 and 3, which calls its optimizer ZeRO-2. Reduced
    # after each of the 192 (or 128) micro-batches, gradients alone would take twice the measured step.
    row = {
        "source": "paper-MegaScale", "model": "GPT3-175B", "layers": 96, "hidden": 12288, "heads": 96,
        "kv_heads": 96, "head_dim": 128, "ffn": 49152, "vocab": 64000, "gated": 0, "seq": 2048, "gpu": "A100",
        "gpus": gpus, "gbs": gbs, "tp": 8, "pp": 8, "vp": 6, "dp": gpus // 64, "sharding": "zero2",
    }  # fmt: skip
    (case,) = (case_of(row) for row in parse_rows(table(row), "t"))
    assert "sharding" in case.assumed
    assert estimates(row)[0][0] == pytest.approx(measured_s, rel=0.12)


@pytest.mark.parametrize(
    ("stack", "sharding"),
    [  # Megatron's optimizer knows no ZeRO-2, whatever its stack is called; Meta's framework shards gradients
        ("megatron-core-2025", "ZERO1"), ("nemo-2024", "ZERO1"), ("zero-bubble", "ZERO1"),
        ("llama-3", "ZERO2"), ("torchtitan", "ZERO2"), ("deepspeed", "ZERO2"),
    ],
)  # fmt: skip
def test_what_zero2_means_in_a_pipeline_is_the_stack_s_family(stack, sharding):
    (row,) = parse_rows(table({"pp": 2, "dp": 2, "sharding": "zero2"}), "t")
    case = case_of(row, stack=stack)
    assert case.plan.sharding.name == sharding
    assert ("sharding" in case.assumed) == (sharding == "ZERO1")


def test_what_notes_say_of_the_optimizer():
    note = "Megatron-SWIFT; OPTIMIZER CPU OFFLOAD 100%; cross-entropy fusion"
    cases = [case_of(row) for row in parse_rows(table({}, {"id": "b", "notes": note}), "t")]
    assert [c.workload.offload for c in cases] == ["none", "optimizer"]


# ── figures with known answers ───────────────────────────────────────────────────────────────────


def test_errors_of_step_and_memory(capsys, write):
    step, memory = estimates({})[0]
    # Measured so that the errors are +25 %, -20 %, +100 % and, of memory, -50 %.
    rows = [
        {"id": "a", "step_s": step / 1.25},
        {"id": "b", "step_s": step / 0.8, "peak_gib": memory / 0.5 / 2**30},
        {"id": "c", "step_s": step / 2},
    ]
    code, out, err = run(capsys, write(*rows), "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert (data["rows"], data["used"], data["skipped"]) == (3, 3, {})
    assert data["step"] == pytest.approx(
        {"n": 3, "signed_median": 0.25, "median": 0.25, "mean": (0.25 + 0.2 + 1) / 3, "p90": 0.85}
    )
    assert data["memory"] == pytest.approx(
        {"n": 1, "signed_median": -0.5, "median": 0.5, "mean": 0.5, "p90": 0.5}
    )
    assert data["sweeps"] == {"n": 0, "mean_tau": None, "mean_regret": None, "each": []}


def test_tokens_per_second_stand_for_a_step_time(capsys, write):
    step, _ = estimates({})[0]
    tokens = 8192 * 64 / (8 * step)
    _, out, _ = run(capsys, write({"step_s": "", "tokens_s_gpu": tokens}), "--json")
    assert json.loads(out)["step"]["signed_median"] == pytest.approx(0, abs=1e-9)


PLANS = ((1, 8), (2, 4), (4, 2), (8, 1))


def sweep_rows(times):
    plans = [*({"tp": tp, "dp": dp, "mbs": 1} for tp, dp in PLANS), {"tp": 2, "dp": 4, "mbs": 2}]
    return [{**plan, "id": str(i), "step_s": t} for i, (plan, t) in enumerate(zip(plans, times, strict=True))]


def test_a_sweep_ranked_right_and_one_ranked_backwards(capsys, write):
    order = [step for step, _ in estimates(*sweep_rows([1.0] * 5))]
    assert len(set(order)) == 5
    _, out, _ = run(capsys, write(*sweep_rows(order)), "--json")
    right = json.loads(out)["sweeps"]
    assert (right["n"], right["mean_tau"], right["mean_regret"]) == (1, pytest.approx(1), pytest.approx(0))
    assert right["each"][0]["gpus"] == 8
    ranks = np.argsort(np.argsort(order))
    backwards = [float(5 - r) for r in ranks]  # the plan estimated fastest takes 5 s, the slowest 1 s
    _, out, _ = run(capsys, write(*sweep_rows(backwards)), "--json")
    wrong = json.loads(out)["sweeps"]
    assert (wrong["mean_tau"], wrong["mean_regret"]) == (pytest.approx(-1), pytest.approx(4))


def test_four_plans_are_no_sweep(capsys, write):
    _, out, _ = run(capsys, write(*sweep_rows([1.0, 2.0, 3.0, 4.0, 5.0])[:4]), "--json")
    assert json.loads(out)["sweeps"]["n"] == 0


def test_out_of_memory_verdicts(capsys, write):
    big = {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, "tp": 1, "dp": 8}  # 70 B: over 1 TB
    out_of_memory = {"step_s": "", "notes": "OOM"}
    rows = [
        {"id": "foreseen", **big, **out_of_memory},
        {"id": "ran", "step_s": 5},
        {"id": "refused", **big, "step_s": 5},
        {"id": "missed", **out_of_memory, "tp": 8, "dp": 1, "sharding": "zero1"},
    ]
    _, out, _ = run(capsys, write(*rows), "--json")
    oom = json.loads(out)["oom"]
    assert oom == {"oom_oom": 1, "oom_ran": 1, "ran_oom": 1, "ran_ran": 1, "right": 0.5}


def test_unknown_recomputation_is_reported_apart(capsys, write):
    step, _ = estimates({})[0]
    rows = [{"step_s": step / 1.1}, {"id": "b", "recompute": "unknown", "step_s": step / 1.5}]
    _, out, _ = run(capsys, write(*rows), "--json")
    data = json.loads(out)
    assert data["recompute_known"]["step"]["median"] == pytest.approx(0.1)
    assert data["recompute_unknown"]["step"]["median"] == pytest.approx(0.5)
    assert data["step"]["n"] == 2


def test_by_family(capsys, write):
    rows = [{"source": "x"}, {"source": "x", "gpu": "A100-80GB"}, {"source": "y"}]
    _, out, _ = run(capsys, write(*rows), "--json")
    by = json.loads(out)["by"]
    assert {name: family["step"]["n"] for name, family in by.items()} == {"x": 2, "y": 1}
    assert {"n", "step", "memory", "sweeps", "oom"} <= set(by["x"])
    _, out, _ = run(capsys, write(*rows), "--json", "--by", "source,gpu")
    assert set(json.loads(out)["by"]) == {"x / H100", "x / A100-80GB", "y / H100"}


def test_tier_and_stack(capsys, write):
    rows = [{"tier": "A"}, {"tier": "B"}, {"tier": "C"}]
    _, out, _ = run(capsys, write(*rows), "--json", "--tier", "a,B")
    data = json.loads(out)
    assert (data["used"], data["skipped"]) == (2, {"not selected": 1})
    _, out, _ = run(capsys, write(*rows), "--json", "--stack", "torchtitan")
    assert set(json.loads(out)["stacks"]) == {"torchtitan"}


def test_worst_rows_come_largest_first(capsys, write):
    step, _ = estimates({})[0]
    rows = [{"id": name, "step_s": step / f} for name, f in (("small", 1.01), ("large", 3), ("middle", 1.5))]
    _, out, _ = run(capsys, write(*rows), "--json", "--worst", "2")
    worst = json.loads(out)["worst"]
    assert [(w["id"], w["line"]) for w in worst] == [("large", 3), ("middle", 4)]
    assert worst[0]["step_error"] == pytest.approx(2)
    _, out, _ = run(capsys, write(*rows), "--worst", "1")
    assert "large" in out
    assert "+200.0%" in out


def test_the_handbook_stands_beside(capsys, write):
    file = write({}, {"id": "fp8", "precision": "fp8"})
    _, out, _ = run(capsys, file, "--json")
    data = json.loads(out)
    assert data["handbook"]["step"]["n"] == data["handbook"]["same_rows"]["step"]["n"] == 1
    code, out, _ = run(capsys, file, "--json", "--cost-model", "handbook")
    alone = json.loads(out)
    assert code == 0
    assert alone["step"] == pytest.approx(data["handbook"]["step"])
    assert alone["skipped"] == {"outside the handbook's equations": 1}


# ── the project's own table ──────────────────────────────────────────────────────────────────────


def test_without_a_file_the_own_table_is_used(capsys):
    code, out, err = run(capsys, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["rows"] == data["used"] == len(own_rows()) >= 40
    assert data["step"]["median"] < data["handbook"]["step"]["median"]
    code, out, _ = run(capsys)
    assert code == 0
    assert "177 of 177 rows used" in out


def test_every_own_row_names_its_source():
    rows = own_rows()
    assert len({row.text["id"] for row in rows}) == len(rows)
    assert all(row.text["ref"] and row.text["tier"] in "ABC" for row in rows)
    for row in rows:
        product = row.whole("tp") * row.whole("cp") * row.whole("pp") * row.whole("dp")
        assert product == row.whole("gpus"), row.text["id"]
        assert row["step_s"] or row["tokens_s_gpu"], row.text["id"]


def test_own_rows_agree_with_what_their_papers_say():
    """One number of each kind of transcription, against the text of its source."""
    rows = {row.text["id"]: row for row in own_rows()}
    # arXiv 2104.04473: 1 T parameters, 3,072 GPUs, 163 TFLOP/s: 502 PFLOP/s in all; 84 days for 450 B tokens.
    trillion = rows["nar21-1008b"]
    tokens_per_s = 3072 * 2048 / trillion["step_s"]
    assert 450e9 / tokens_per_s / 86400 == pytest.approx(84, rel=0.1)
    # arXiv 2505.09343, table 4: 272.8 billion tokens a day.
    deepseek = rows["dsv3-2048"]
    assert 15360 * 4096 / deepseek["step_s"] * 86400 == pytest.approx(272.8e9, rel=0.001)
    # arXiv 2205.05198, table 5: MFU of 175 B is 51.4 %, by 72·B·s·L·h²·(1 + s/6h + V/12Lh).
    flops = 72 * 64 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))
    assert flops / (64 * 312e12 * rows["k22-175b-selective"]["step_s"]) == pytest.approx(0.514, abs=0.001)


# ── statistics ───────────────────────────────────────────────────────────────────────────────────


def test_kendalls_tau_by_hand():
    assert kendall_tau([1, 2, 3], [1, 2, 3]) == 1
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1
    # Five pairs agree, one does not: (5 - 1) / 6.
    assert kendall_tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    # One pair tied in the second: 5 / sqrt(6 · 5), tau-b.
    assert kendall_tau([1, 2, 3, 4], [1, 2, 3, 3]) == pytest.approx(5 / np.sqrt(30))
    assert kendall_tau([1, 1, 1], [1, 2, 3]) == 0


def test_errors_by_hand():
    assert Errors.of([]) == Errors(n=0)
    found = Errors.of([0.1, -0.3, None, 0.2])
    assert (found.n, found.signed_median, found.median) == (3, 0.1, 0.2)
    assert found.mean == pytest.approx(0.2)


# ── bad input ────────────────────────────────────────────────────────────────────────────────────


def test_missing_column(capsys, write):
    code, out, err = run(capsys, write({}, header=[c for c in HEADER if c != "hidden"]))
    assert (code, out) == (2, "")
    assert "column 'hidden' is missing" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("cell", ["much", "nan", "inf", "-1", "1e999"])
def test_what_is_no_number(capsys, write, cell):
    code, _, err = run(capsys, write({}, {"hidden": cell}))
    assert code == 2
    assert "line 3, column hidden: " in err


def test_all_missing_columns_are_named(capsys, write):
    code, _, err = run(
        capsys, write({}, header=[c for c in HEADER if c not in ("hidden", "dp", "id", "vp", "tier")])
    )
    assert code == 2
    assert "columns 'id', 'hidden' and 'dp' are missing; `meshplan validate --help` describes them" in err


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_named(capsys, write, mark, name):
    for header, besides in (
        (HEADER, ""),
        ([c for c in HEADER if c != "seq"], ", and column 'seq' is missing"),
    ):
        for quote in ("", '"'):
            lines = table({}, header=header).replace(",", mark).splitlines()
            lines[0] = mark.join(f"{quote}{column}{quote}" for column in header)
            code, out, err = run(capsys, write(text="\n".join(lines)))
            assert (code, out) == (2, "")
            assert f"columns are separated by {name}, not by commas{besides}" in err
            assert ("missing" in err) == bool(besides)
            assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "cell", "bounds"),
    [
        # Ten thousand layers and the like, as of a model's configuration; ten million GPUs; a batch of 10⁹.
        ("layers", "1e9", "1 to 10,000"), ("layers", "10001", "1 to 10,000"), ("layers", "0", "1 to 10,000"),
        ("layers", "32.7", "1 to 10,000"), ("hidden", "1048577", "1 to 1,048,576"),
        ("heads", "65537", "1 to 65,536"), ("vocab", "2e9", "1 to 1,073,741,824"),
        ("seq", "1e10", "1 to 1,000,000,000"), ("gbs", "1e10", "1 to 1,000,000,000"),
        ("gpus", "1e8", "1 to 10,000,000"), ("gpus", "8.5", "1 to 10,000,000"),
        ("tp", "0", "1 to 10,000,000"), ("tp", "1.0000001", "1 to 10,000,000"),
        ("pp", "1e7", "1 to 10,000"),
        ("mbs", "0.5", "1 to 1,000,000,000"), ("gated", "2", "0 to 1"),
        ("experts", "1e300", "0 to 1,048,576"), ("etp", "1.5", "0 to 10,000,000"),
    ],
)  # fmt: skip
def test_counts_that_are_not_whole_or_out_of_bounds(capsys, write, column, cell, bounds):
    must = f"{column} must be a whole number from {bounds}, not '{cell}'"
    code, out, _ = run(capsys, write({}, {column: cell}), "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["used"], data["skipped"]) == (1, {must: 1})
    code, out, err = run(capsys, write({column: cell}))
    assert (code, out) == (2, "")
    assert f"line 2, column {column}: {must}" in err
    assert err.count("\n") == 1


def test_whole_numbers_may_be_written_with_a_point():
    with_point = {c: f"{v}.0" for c, v in ROW.items() if isinstance(v, int)}
    assert estimates(with_point) == estimates({})


def test_the_largest_counts_are_priced_or_skipped_at_once(capsys, write):
    start = time.process_time()
    rows = [
        {"layers": 10_000}, {"vocab": 2**30}, {"seq": 10**9}, {"gbs": 10**9}, {"heads": 2**16},
        {"dp": 5 * 10**6, "gpus": 10**7, "gbs": 5 * 10**6}, {"gbs": 10**9, "dp": 1, "pp": 4},
        {"pp": 10**4, "vp": 10**4, "tp": 1, "dp": 1, "gpus": 10**4},
        {"pp": 10**4, "layers": 10**4, "tp": 1, "dp": 1, "gpus": 10**4},
    ]  # fmt: skip
    code, out, _ = run(capsys, write({}, *rows), "--json")
    data = json.loads(out)
    assert (code, data["used"] + sum(data["skipped"].values())) == (0, 1 + len(rows))
    assert data["skipped"] == {"pp · vp is more stages than there are layers": 1}
    assert time.process_time() - start < 10


# ── what is not understood ───────────────────────────────────────────────────────────────────────


def test_words_that_nobody_knows_are_told(capsys, write):
    odd = {"recompute": "foo", "precision": "fp7", "tier": "X"}
    plain = {"recompute": "unknown", "precision": "", "tier": ""}
    assert estimates(odd) == estimates(plain)
    rows = [
        odd,
        {"id": "b", "recompute": "foo"},
        {"id": "c", **plain},
        {"id": "d", "precision": "fp8-rowwise"},
    ]
    _, out, _ = run(capsys, write(*rows), "--json")
    data = json.loads(out)
    assert data["used"] == 4
    assert data["not_understood"] == [
        {"column": "recompute", "value": "foo", "taken_as": "not given", "rows": 2},
        {"column": "tier", "value": "X", "taken_as": "not given", "rows": 1},
        {"column": "precision", "value": "fp7", "taken_as": "bf16", "rows": 1},
    ]
    _, out, _ = run(capsys, write(*rows))
    assert (
        "not understood: recompute 'foo' taken as not given (2 rows) · tier 'X' taken as not given (1 row)"
        " · precision 'fp7' taken as bf16 (1 row)"
    ) in " ".join(out.split())


def test_only_what_was_taken_as_something_else_is_told(capsys, write):
    rows = [
        {"gpu": "H9000", "recompute": "foo"},  # not priced
        {"tier": "Q"},  # not selected, as its tier is none
        {"tier": "A", "recompute": "core", "notes": "recompute=core_attn"},  # the notes tell it
    ]
    _, out, _ = run(capsys, write(*rows[:1], rows[2]), "--json")
    assert json.loads(out)["not_understood"] == []
    _, out, _ = run(capsys, write(*rows[1:]), "--json", "--tier", "A")
    assert [word["value"] for word in json.loads(out)["not_understood"]] == ["Q"]
    _, out, _ = run(capsys, write(rows[2]))
    assert "not understood" not in out


def test_many_odd_words_stay_a_few_lines(capsys, write):
    file = write(*({"id": str(i), "recompute": f"way{i}"} for i in range(30)))
    _, out, _ = run(capsys, file)
    assert "22 more words (all with --json)" in " ".join(out.split())
    _, out, _ = run(capsys, file, "--json")
    assert len(json.loads(out)["not_understood"]) == 30


def test_a_batch_that_does_not_divide_is_skipped_with_the_reason(capsys, write):
    odd = {"gbs": 3, "tp": 1, "dp": 8}
    rows = [{}, odd, {"gbs": 36, "mbs": 2}, {"gbs": 36, "mbs": ""}, {"gbs": 30, "mbs": ""}]
    _, out, _ = run(capsys, write(*rows), "--json")
    data = json.loads(out)
    assert data["used"] == 2  # a micro-batch that is not given divides
    assert data["skipped"] == {
        "the global batch does not divide over dp · mbs": 2, "the global batch does not divide over dp": 1,
    }  # fmt: skip
    code, _, err = run(capsys, write(odd))
    assert code == 2
    assert "line 2, column gbs: the global batch does not divide over dp · mbs" in err


@pytest.mark.parametrize(("vp", "used"), [(8, True), (9, False)])
def test_stages_are_no_more_than_layers_with_embedding_and_head(capsys, write, vp, used):
    # arXiv 2407.21783, section 3.3: 126 layers, one fewer on the first and on the last stage.
    row = {"layers": 126, "tp": 1, "pp": 16, "vp": vp, "dp": 1, "gpus": 16}
    code, _, err = run(capsys, write(row))
    assert (code == 0) == used
    assert used or "line 2, column pp: pp · vp is more stages than there are layers" in err


def test_help_names_every_column_and_word(capsys):
    _, out, _ = run(capsys, "--help")
    words = set(re.findall(r"[A-Za-z0-9_]+", out))
    columns = {*TEXT, *REQUIRED_NUMBERS, *OPTIONAL_NUMBERS}
    assert columns - words == {"params_b", "tflops_per_gpu", "mfu"}  # read, and not used
    assert {"none", "ddp", "zero1", "hsdp", "selective", "full", "unknown", "mxfp8", "OOM"} <= words


def test_unknown_gpus_are_counted_but_not_alone(capsys, write):
    code, out, _ = run(capsys, write({}, {"gpu": "H9000"}), "--json")
    data = json.loads(out)
    assert (code, data["used"]) == (0, 1)
    assert data["skipped"] == {"unknown GPU 'H9000'": 1}
    code, out, err = run(capsys, write({"gpu": "H9000"}, {"gpu": "H9000"}))
    assert (code, out) == (2, "")
    assert "line 2, column gpu: unknown GPU 'H9000'" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--stack", "x"], "unknown stack 'x'; known: "),
        (["--by", "colour"], "unknown family 'colour'; known: source, gpu"),
        (["--by", ","], "--by lists nothing"),
        (["--tier", "D"], "unknown tier 'D'; known: A, B, C"),
        (["--worst", "-1"], "--worst must be at least 0, not '-1'"),
        (["--cost-model", "magic"], "--cost-model 'magic' is not one of full, handbook"),
        (["--tier", "C"], "of 1 row none is of the tiers asked for"),
    ],
)
def test_refuses_in_one_sentence(capsys, write, flags, words):
    code, out, err = run(capsys, write({}), *flags)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns 'id', 'source', 'model', 'gpu', 'layers', "),
        (",".join(HEADER) + "\n", "has no rows"),
        (",".join(HEADER) + "\na,b\n", "line 2: the row does not have as many cells as the header"),
        ("\x00\x01", "are missing"),
        ('"', ""),
    ],
)
def test_broken_files(capsys, write, text, words):
    code, out, err = run(capsys, write(text=text))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_no_file_and_a_folder(capsys, tmp_path):
    for path, words in ((tmp_path / "none.csv", "does not exist"), (tmp_path, "is a folder")):
        code, _, err = run(capsys, str(path))
        assert code == 2
        assert words in err


def test_errors_are_json_too(capsys, write):
    code, _, err = run(capsys, write({}), "--json", "--stack", "x")
    assert code == 2
    assert json.loads(err)["exit_code"] == 2
