"""Random command lines: whatever is typed, no traceback, and exit code 0, 1 or 2."""

from __future__ import annotations

import contextlib
import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cli import main

counts = st.integers(-3, 40).map(str) | st.sampled_from(
    ["64", "512", "8192", "131072", "99999999999999999999", "3.5", "", "x"]
)
lists = st.lists(counts, min_size=1, max_size=4).map(",".join)
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
models = (
    st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt2", "/dev/null", ".", "a.yaml"])
    | words
)
FLAGS = {
    "--gpus": counts,
    "--gpus-per-node": counts,
    "--seq": counts,
    "--gbs": counts,
    "--top": counts,
    **{f"--{name}": lists for name in ("tp", "cp", "pp", "dp", "vp", "ep", "etp", "mbs")},
    "--gpu": st.sampled_from(["h100-sxm", "b200", "mi300x", "nope"]) | words,
    "--nic": st.sampled_from(["400 Gb/s", "50 GB/s", "1 TB", "-1 GB/s", "1e999 GB/s"]) | words,
    "--precision": st.sampled_from(["bf16", "fp8", "int4"]),
    "--schedule": st.sampled_from(["1f1b", "interleaved", "zb-v", "gpipe,1f1b"]) | words,
    "--sharding": st.sampled_from(["zero1", "zero3", "ddp,zero2"]) | words,
    "--recompute": st.sampled_from(["auto", "none", "all", "3", "core-attn+norm"]) | words,
    "--order": st.sampled_from(["tp-cp-dp-pp", "pp-dp-cp-tp", "tp-tp"]) | words,
    "--format": st.sampled_from(["table", "json", "csv", "markdown", "xml"]),
    "--cost-model": st.just("handbook") | words,
    "--cluster": words,
}
flags = st.sampled_from(sorted(FLAGS)).flatmap(lambda name: st.tuples(st.just(name), FLAGS[name]))
GOOD = {"--gpu": "h100-sxm", "--gpus": "64", "--seq": "8192", "--gbs": "64"}


def run(argv: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    return code, out.getvalue(), err.getvalue()


def check(argv: list[str]) -> None:
    code, out, err = run(argv)
    assert code in (0, 1, 2), err
    assert "Traceback" not in err
    if code == 2:
        assert out == ""
        line = err.removesuffix("\n")
        assert line.isprintable(), err
        assert line.startswith(("error: ", '{"error": '))
    elif code == 0:
        assert err == ""


@given(model=models, changed=st.lists(flags, max_size=4).map(dict), json_=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_good_command_line_with_some_flags_changed(
    model: str, changed: dict[str, str], json_: bool
) -> None:
    argv = ["plan", model, *(part for item in {**GOOD, **changed}.items() for part in item)]
    check([*argv, "--json"] if json_ else argv)


@given(
    argv=st.lists(
        st.sampled_from(
            ["plan", "handbook", "models", "gpus", "mesh", "show", "--json", "--help", "-h", "--"]
        )
        | st.sampled_from(sorted(FLAGS))
        | counts
        | words,
        max_size=6,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_words_at_all(argv: list[str]) -> None:
    check(argv)


@given(tp=lists, pp=lists, dp=st.none() | lists, gpus=st.integers(1, 130), gbs=st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_json_is_json_whatever_the_answer(tp: str, pp: str, dp: str | None, gpus: int, gbs: int) -> None:
    argv = [
        "plan",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
        "--gpus",
        str(gpus),
        "--seq",
        "8192",
        "--gbs",
        str(gbs),
    ]
    argv += ["--tp", tp, "--pp", pp, "--json", *([] if dp is None else ["--dp", dp])]
    code, out, err = run(argv)
    if code == 2:
        assert set(json.loads(err)) == {"error", "exit_code"}
    else:
        assert err == ""
        assert bool(json.loads(out)["plans"]) == (code == 0)
