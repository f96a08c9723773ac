"""Traces with known content, built here: every part must come out as it went in."""

import gzip
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.errors import InputError
from meshplan.trace.breakdown import read_traces
from meshplan.trace.cover import both, length, union, without
from meshplan.trace.stream import TraceFile


def x(name, cat, start_ms, ms, tid=1, **args):
    return {
        "ph": "X", "name": name, "cat": cat, "ts": 1e3 * start_ms, "dur": 1e3 * ms, "pid": 1, "tid": tid,
        "args": args,
    }  # fmt: skip


def nccl(op, start_ms, ms, *, group="mesh_tp", ranks="[0, 1]", elements=1 << 20, **more):
    return x(
        f"ncclDevKernel_{op}_RING_LL", "kernel", start_ms, ms, tid=20,
        **{
            "Collective name": op.lower(), "In msg nelems": elements, "Out msg nelems": elements,
            "dtype": "BFloat16", "Group size": 2, "Process Group Name": "7",
            "Process Group Description": group, "Process Group Ranks": ranks, **more,
        },
    )  # fmt: skip


def gpu_rank(rank, late_ms=0.0):
    """100 ms: 40 ms of products, 20 ms of attention, an all-reduce of 30 ms of which 10 hide; 5 ms of a copy;
    5 ms where the host launches; 10 ms idle."""
    return [
        x("ProfilerStep#3", "user_annotation", 0, 100),
        x("nvjet_tst_128x256", "kernel", 0, 40, tid=7),
        x("flash_fwd_kernel", "kernel", 40, 20, tid=7),
        nccl("AllReduce", 50 + late_ms, 30 - late_ms),
        x("Memcpy HtoD", "gpu_memcpy", 80, 5, tid=7),
        x("cudaLaunchKernel", "cuda_runtime", 85, 5),
        x("vectorized_elementwise_kernel", "kernel", 90, 0, tid=7),
    ]


def trace(path, events, rank=0, world=2, **more):
    data = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        **more,
        "traceEvents": events,
        "traceName": "x",
    }
    text = json.dumps(data)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as out:
            out.write(text)
    else:
        path.write_text(text)
    return path


def test_parts_of_a_gpu_step(tmp_path):
    files = [trace(tmp_path / f"{r}.json.gz", gpu_rank(r, late_ms=4.0 * r), r) for r in (0, 1)]
    found = read_traces(files)
    parts = found.of_rank(0)
    expected = {
        "matmul": 0.040, "attention": 0.020, "tp all-reduce": 0.020, "copies": 0.005, "host": 0.005,
        "idle": 0.010,
    }  # fmt: skip
    assert {k: v for k, v in parts.items() if v > 1e-12} == pytest.approx(expected)
    assert found.steps[0].hidden == pytest.approx({"tp all-reduce": 0.010})
    assert sum(parts.values()) == pytest.approx(0.1)
    (call,) = [c for c in found.calls if c.rank == 0]
    assert (call.call.kind, call.call.size_bytes, call.calls) == ("all_reduce", 2 << 20, 1)
    # rank 1 begins 4 ms later: rank 0 waits that long, rank 1 not at all
    assert call.waited_s == pytest.approx(0.004)
    assert [c.waited_s for c in found.calls if c.rank == 1] == pytest.approx([0.0])


def test_bubble_is_told_from_transfer_by_pairing_sends_and_receives(tmp_path):
    peers = {"group": "mesh_pp", "ranks": "[0, 1]"}
    sender = [
        x("ProfilerStep#0", "user_annotation", 0, 60),
        x("gemm", "kernel", 0, 40, tid=7),
        nccl("Send", 40, 5, **peers, **{"Dst Rank": 1, "Src Rank": 0}),
    ]
    receiver = [
        x("ProfilerStep#0", "user_annotation", 0, 60),
        nccl("Recv", 2, 43, **peers, **{"Dst Rank": 1, "Src Rank": 0}),
        x("gemm", "kernel", 45, 15, tid=7),
    ]
    files = [trace(tmp_path / "0.json", sender, 0), trace(tmp_path / "1.json", receiver, 1)]
    found = read_traces(files)
    (recv,) = [c for c in found.calls if c.rank == 1]
    assert recv.total_s == pytest.approx(0.043)
    assert recv.waited_s == pytest.approx(0.038)  # posted at 2 ms, sent from 40 ms on
    assert found.of_rank(1)["pp p2p"] == pytest.approx(0.043)


def gloo(op, start_ms, ms, tid, elements):
    dims = {"Input Dims": [[elements]], "Input type": ["float"]}
    return x(f"gloo:{op}", "user_annotation", start_ms, ms, tid=tid, **dims)


def test_an_operator_that_waits_for_its_input_computes_only_afterwards(tmp_path):
    # torch's functional collectives: an addition handed a tensor still on its way waits inside its own event
    events = [
        x("ProfilerStep#0", "user_annotation", 0, 50),
        gloo("all_reduce", 0, 1, 31, 101),
        x("aten::mm", "cpu_op", 0, 10),
        x("aten::add", "cpu_op", 10, 30),
        x("_c10d_functional::wait_tensor", "cpu_op", 10, 25),
        gloo("all_reduce", 8, 26, 31, 4096),
    ]
    own = {"marks": {"101": "tp"}, "members": {"tp": [0, 1]}}
    found = read_traces([trace(tmp_path / "0.json", events, meshplan=own)])
    parts = {k: v for k, v in found.of_rank(0).items() if v > 1e-12}
    # 10 to 34 ms: the all-reduce; 34 to 35 the wait's own end; 35 to 40 the addition
    assert parts == pytest.approx(
        {"matmul": 0.010, "tp all-reduce": 0.024, "elementwise": 0.005, "host": 0.011}
    )
    assert found.steps[0].hidden == pytest.approx({"tp all-reduce": 0.002})


def test_gloo_groups_are_known_by_their_marks(tmp_path):
    marks = {"marks": {"101": "tp", "117": "shard"}, "members": {"tp": [0], "shard": [0]}}
    events = [
        gloo("all_reduce", 0, 1, 31, 101),
        gloo("all_reduce", 0, 1, 32, 117),
        x("ProfilerStep#0", "user_annotation", 10, 50),
        x("aten::mm", "cpu_op", 10, 20),
        gloo("all_gather", 25, 10, 31, 4096),
        gloo("all_reduce", 40, 10, 32, 4096),
        x("aten::add", "cpu_op", 50, 5),
    ]
    found = read_traces([trace(tmp_path / "a.json", events, 0, 1, meshplan=marks)])
    parts = {k: v for k, v in found.of_rank(0).items() if v > 1e-12}
    expected = {
        "matmul": 0.020, "elementwise": 0.005, "tp all-gather": 0.005, "shard all-reduce": 0.010,
        "host": 0.010,
    }  # fmt: skip
    assert parts == pytest.approx(expected)
    assert found.steps[0].hidden == pytest.approx({"tp all-gather": 0.005})


def test_a_straggler_is_named(tmp_path):
    def rank(r):
        ms = 40 if r == 2 else 30
        return [x("ProfilerStep#0", "user_annotation", 0, 60), x("gemm", "kernel", 0, ms, tid=7)]

    files = [trace(tmp_path / f"{r}.json", rank(r), r, 4) for r in range(4)]
    ((slow, by),) = read_traces(files).stragglers()
    assert (slow, by) == (2, pytest.approx(1 / 3))


def test_missing_ranks_and_cut_files_are_said(tmp_path):
    whole = trace(tmp_path / "0.json", gpu_rank(0), 0, world=8)
    text = whole.read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.index("Memcpy")])
    found = read_traces([cut])
    assert found.missing == tuple(range(1, 8))
    assert any("ends in the middle" in n for n in found.notes)
    assert any("no trace of rank 1, 2" in n for n in found.notes)
    assert found.of_rank(0)["matmul"] == pytest.approx(0.04)


def test_a_cut_gzip_is_read_as_far_as_it_goes(tmp_path):
    rng = np.random.default_rng(0)
    many = [x(f"gemm{rng.integers(1 << 60)}", "kernel", i, 1, tid=7) for i in range(20000)]
    path = trace(tmp_path / "a.json.gz", [x("ProfilerStep#0", "user_annotation", 0, 20000), *many])
    path.write_bytes(path.read_bytes()[:-30000])
    found = read_traces([path])
    assert any("ends in the middle" in n for n in found.notes)
    assert 0 < found.of_rank(0)["matmul"] < 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a Chrome trace"),
        ("hello", "not a Chrome trace"),
        ("{}", "not a Chrome trace"),
        ('{"traceEvents": [{"ph": "X" "name"', "not a Chrome trace"),
        ('{"a": 1}', "none of the profiler's events"),
        ('{"traceEvents": []}', "none of the profiler's events|not a Chrome trace"),
        ('[{"ph": "X", "cat": "v8", "name": "f", "ts": 1, "dur": 2}]', "none of the profiler's events"),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_traces([path])


def test_two_traces_of_one_rank_are_refused(tmp_path):
    files = [trace(tmp_path / f"{i}.json", gpu_rank(0), 0) for i in range(2)]
    with pytest.raises(InputError, match="two traces are of rank 0"):
        read_traces(files)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "big.json"
    event = json.dumps(x("gemm", "kernel", 0, 0.5, tid=7, filler="y" * 400)).replace('"ts": 0.0', '"ts": %d')
    with path.open("w") as out:
        out.write('{"traceEvents": [')
        out.write(",".join(event % (1000 * i) for i in range(60000)))
        out.write("]}")
    assert path.stat().st_size > 30e6
    tracemalloc.start()
    found = read_traces([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6
    assert found.of_rank(0)["matmul"] == pytest.approx(30.0)


def test_the_array_form_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(gpu_rank(0)))
    trace_file = TraceFile(path)
    assert len(list(trace_file)) == 7
    assert not trace_file.cut


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)


def as_spans(items):
    return union(np.array([(a, a + b) for a, b in items], dtype=float).reshape(-1, 2))


def moments(spans):
    return {t for a, b in spans for t in range(int(a), int(b))}


@given(SPANS, SPANS)
def test_intervals_are_sets_of_moments(a, b):
    first, second = as_spans(a), as_spans(b)
    assert moments(first) == {t for s, n in a for t in range(s, s + n)}
    assert moments(both(first, second)) == moments(first) & moments(second)
    assert moments(without(first, second)) == moments(first) - moments(second)
    assert length(first) == len(moments(first))


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "meshplan", *args], capture_output=True, text=True, timeout=240, check=False
    )


def test_the_command_and_an_estimate_beside_it(tmp_path):
    for r in (0, 1):
        trace(tmp_path / f"trace-{r}.json", gpu_rank(r), r)
    estimate = {"step_s": 0.090, "time": {"matmul": 0.040, "attention": 0.020, "tp": 0.012, "host": 0.018}}
    (tmp_path / "estimate.json").write_text(json.dumps(estimate))
    done = run("trace", str(tmp_path), "--against", str(tmp_path / "estimate.json"), "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["against"]["sentence"] == "your estimate was 10 % low, 10 of it idle"
    shown = run("trace", str(tmp_path))
    assert "matmul" in shown.stdout
    assert "40.0 ms" in shown.stdout


def test_the_command_refuses_in_one_sentence(tmp_path):
    for args in (("trace",), ("trace", str(tmp_path)), ("trace", str(tmp_path / "no.json"))):
        done = run(*args)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1, done.stderr
