"""Addresses: the whole question in a line, read with the command line's own readers and sentences."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

pytest.importorskip("starlette", reason="NOT CHECKED: the page (pip install -e '.[test]')")

from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cli import main
from meshplan.errors import InputError
from meshplan.report.job_text import plan_command
from meshplan.report.words import words_in
from meshplan.web.form import ask_form
from meshplan.web.packed import MOST_BYTES, pack, unpack
from meshplan.web.question import KEYS, LOGS, START, Address, question_of
from meshplan.web.take import job_files
from meshplan.web.tasks import ranked

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
}  # fmt: skip


def address(**more: str) -> Address:
    return Address.of({**START, **more}.items())


def refused(**more: str) -> str:
    with pytest.raises(InputError) as caught:
        question_of(address(**more))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_page_opens_with_a_question_that_can_be_asked() -> None:
    asked = question_of(Address(START))
    assert (asked.model.name, asked.cluster.gpus, asked.workload.tokens) == ("llama-3.1-70b", 64, 8192 * 512)
    assert asked.space.size == "small"
    assert question_of(address(space="plain")).candidates == 3430
    assert question_of(address(cost_model="handbook")).space.size == "plain"


HABITS = {
    "model": "mixtral-8x7b", "gpus": "16", "seq": "4096", "gbs": "64", "precision": "fp8",
    "offload": "optimizer", "offload_fraction": "0.5",
    "moe_imbalance": "1.8", "capacity_factor": "1.5", "stack": "megatron-bridge", "framework": "megatron",
    "objective": "memory", "space": "plain",
}  # fmt: skip


def test_a_question_is_asked_alike_by_address_job_file_and_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that the form offers decides the answer, and is handed on to what can be taken away."""
    asked = question_of(address(**HABITS))
    steps = ranked(asked, advise=False).costs.step_s[:10].tolist()
    job = tmp_path / "job.yaml"
    job.write_text(job_files(asked, address(**HABITS))["job.yaml"])
    command = plan_command(*asked.words, **asked.kinds)
    for words in (["plan", str(job)], shlex.split(command)[1:]):
        assert main([*words, "--json"]) == 0
        assert [plan["step_s"] for plan in json.loads(capsys.readouterr().out)["plans"]] == steps
    for key in (
        "precision",
        "offload",
        "offload_fraction",
        "moe_imbalance",
        "capacity_factor",
        "stack",
        "objective",
    ):
        gone = (key, "capacity_factor") if key == "moe_imbalance" else (key,)  # the smaller of the two counts
        without = {name: value for name, value in HABITS.items() if name not in gone}
        other = ranked(question_of(address(**without)), advise=False).costs
        assert other.step_s[:10].tolist() != steps, key


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_form_offers_what_the_address_takes(language: str) -> None:
    page = ask_form(address(**HABITS), words_in(language))
    for key, value in HABITS.items():
        assert f'name="{key}"' in page
        assert f'value="{value}"' in page


def test_an_address_carries_everything_back() -> None:
    text = address(tp="2,4", log2_nic="0.5", plan="tp4,pp2", lang="zh", nic="400 Gb/s").query()
    pairs = dict(parse_qsl(text.lstrip("?")))
    assert pairs == {
        **START,
        "tp": "2,4",
        "log2_nic": "0.5",
        "plan": "tp4,pp2",
        "lang": "zh",
        "nic": "400 Gb/s",
    }


def test_what_decides_the_answer_is_its_key() -> None:
    key = question_of(address()).key
    assert question_of(address(lang="zh", plan="tp4", log2_nic="0", why="tp8")).key == key
    assert question_of(address(top="3")).key != key  # so many plans are made certain
    assert question_of(address(log2_nic="1")).key != key
    assert question_of(address(log2_nic="1"), sliders=False).key == key


def test_what_is_usual_need_not_be_said() -> None:
    said = address(precision="bf16", framework="any", objective="step", cost_model="full", log2_seq="0.0")
    assert said.query() == address().query()


def test_pins_are_two_at_most_the_last_ones() -> None:
    found = Address.of([*START.items(), ("pin", "tp1"), ("pin", "tp2"), ("pin", "tp2"), ("pin", "tp4")])
    assert found.pins == ("tp2", "tp4")
    assert found.query().endswith("&pin=tp2&pin=tp4")
    assert "pin" not in found.query(pin=None)


def test_sliders_are_powers_of_two() -> None:
    plain = question_of(address())
    moved = question_of(address(log2_gpus="1", log2_nic="-1", log2_memory="1", log2_seq="-2", log2_gbs="3"))
    assert moved.cluster.gpus == 128
    assert moved.cluster.tiers[1].bandwidth == plain.cluster.tiers[1].bandwidth / 2
    assert moved.cluster.tiers[0] == plain.cluster.tiers[0]
    assert moved.cluster.gpu.usable_hbm_bytes == 2 * plain.cluster.gpu.usable_hbm_bytes
    assert (moved.workload.seq, moved.workload.gbs) == (2048, 4096)


def test_memory_is_what_a_gpu_is_sold_with() -> None:
    gpu = question_of(address(memory="141 GB")).cluster.gpu
    assert gpu.hbm_bytes == pytest.approx(141e9)
    usual = question_of(address()).cluster.gpu
    assert gpu.usable_hbm_bytes / gpu.hbm_bytes == pytest.approx(usual.usable_hbm_bytes / usual.hbm_bytes)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"model": "llama-3.1-71b"}, "unknown model 'llama-3.1-71b'; did you mean 'llama-3.1-70b'"),
        ({"model": "/etc/passwd"}, "unknown model '/etc/passwd'"),
        ({"model": "../../README.md"}, "unknown model"),
        ({"model": "./tests"}, "unknown model"),
        ({"gpu": "h101"}, "unknown GPU 'h101'; did you mean"),
        ({"gpus": "sixty"}, "gpus must be a whole number, not 'sixty'"),
        ({"gpus": "0"}, "gpus must be from 1 to 1,048,576, not '0'"),
        ({"gpus": "9999999"}, "gpus must be from 1 to 1,048,576, not '9999999'"),
        ({"gpus": "65"}, "65 GPUs do not fill whole nodes of 8"),
        ({"nic": "400"}, "nic: '400' has no unit"),
        ({"memory": "3 parsecs"}, "memory"),
        ({"memory": "1 B"}, "memory must be from 1 GB to 10 TB"),
        ({"seq": ""}, "seq is missing"),
        ({"tp": "2,x"}, "tp must be a whole number, not 'x'"),
        ({"schedule": "2f2b"}, "schedule '2f2b' is not one of"),
        ({"order": "tp-cp"}, "order"),
        ({"precision": "fp7"}, "precision must be one of"),
        ({"cost_model": "magic"}, "unknown cost model 'magic'"),
        ({"stack": "/etc/passwd.toml"}, "stack must be one of"),
        ({"stack": "torchtitan", "cost_model": "handbook"}, "--stack is for the full cost model"),
        ({"offload": "disk"}, "offload 'disk' is not one of none, optimizer"),
        ({"moe_imbalance": "0.5"}, "moe_imbalance must be from 1 to 1,000"),
        ({"moe_imbalance": "nan"}, "moe_imbalance must be a positive number"),
        ({"capacity_factor": "x"}, "capacity_factor must be a positive number"),
        ({"space": "huge"}, "space must be one of plain, small, full, not 'huge'"),
        ({"framework": "magic"}, "framework must be one of any, megatron"),
        ({"objective": "beauty"}, "objective must be one of step"),
        ({"log2_nic": "1.3"}, "log2_nic must be from -3 to 3 in steps of 0.5, not '1.3'"),
        ({"log2_gpus": "9"}, "log2_gpus must be from -3 to 3 in steps of 1"),
        ({"log2_gpus": "nan"}, "log2_gpus must be"),
        ({"log2_gpus": "-3", "gpus": "8", "model": "nope"}, "unknown model"),
        ({"config": "abc!"}, "the config.json in this address cannot be read"),
        ({"cluster": "AAAA"}, "the cluster file in this address cannot be read"),
        ({"tp": ",".join(map(str, range(1, 101)))}, None),
    ],
)  # fmt: skip
def test_refusals_are_sentences(more: dict[str, str], sentence: str | None) -> None:
    if sentence is None:
        question_of(address(**more))
    else:
        assert sentence in refused(**more)


def test_unknown_keys_are_named() -> None:
    with pytest.raises(InputError, match="unknown key 'gpuz'; did you mean gpu"):
        Address.of([("gpuz", "64")])


def test_a_space_beyond_measure_is_refused_before_it_is_searched() -> None:
    lists = {name: ",".join(str(n) for n in range(1, 100)) for name in ("tp", "cp", "pp", "mbs", "vp", "ep")}
    assert "candidates; the page looks at 1,000,000,000,000 at most" in refused(**lists)


def test_a_dropped_model_is_in_the_address() -> None:
    found = question_of(
        Address.of({**START, "model": "", "config": pack(json.dumps(CONFIG), "x"), "name": "mine"}.items())
    )
    assert (found.model.name, found.model.hidden, len(found.model.layers)) == ("mine", 2048, 16)


@pytest.mark.parametrize(
    "text",
    ["gpu: h100-sxm\ngpus: 128\nnic: 200 Gb/s\n", 'gpu = "h100-sxm"\ngpus = 128\nnic = "200 Gb/s"\n'],
    ids=["yaml", "toml"],
)
def test_a_dropped_cluster_is_in_the_address(text: str) -> None:
    values = {**START, "gpu": "", "gpus": "", "cluster": pack(text, "x")}
    found = question_of(Address.of(values.items()))
    assert (found.cluster.gpus, found.cluster.tiers[1].bandwidth) == (128, 25e9)


def test_a_cluster_file_cannot_name_files_or_blow_up() -> None:
    bomb = "a: &a [1,1]\nb: &b [*a,*a]\ngpu: h100-sxm\ngpus: 8\n"
    assert "aliases" in refused(gpu="", gpus="", cluster=pack(bomb, "x"))
    profile = "gpu: /etc/passwd\ngpus: 8\n"
    assert "unknown GPU '/etc/passwd'" in refused(gpu="", gpus="", cluster=pack(profile, "x"))


# ── packing ──────────────────────────────────────────────────────────────────────────────────────


@given(st.text(max_size=2000))
def test_packing_there_and_back(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    packed = pack(text, "it")
    assert packed.replace("-", "").replace("_", "").isalnum() or packed == ""
    assert unpack(packed, "it") == text


def test_too_much_is_refused_both_ways() -> None:
    import base64
    import zlib

    with pytest.raises(InputError, match="it has 70,000 bytes; 65,536 is the most"):
        pack("x" * 70_000, "it")
    bomb = base64.urlsafe_b64encode(zlib.compress(b"0" * 8_000_000, 9)).decode()
    assert len(bomb) < 12_000
    with pytest.raises(InputError, match="more than 65,536 bytes"):
        unpack(bomb, "it")
    assert MOST_BYTES == 65_536


@pytest.mark.parametrize("packed", ["eJw", "eJwrS", "====", "ä", "eJwrSS0uAQAEXQHBxx" * 40])
def test_what_was_not_packed_is_refused(packed: str) -> None:
    with pytest.raises(InputError):
        unpack(packed, "it")


VALUES = st.one_of(
    st.text(max_size=30),
    st.integers(-5, 10**9).map(str),
    st.sampled_from(
        ["64", "h100-sxm", "8192", "llama-3.1-8b", "tp4,pp2", "2,4", "1f1b", "zero3", "auto", "0.5"]
    ),
)


@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=12), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_address_is_a_question_or_a_sentence(pairs: list[tuple[str, str]], started: bool) -> None:
    try:
        question_of(Address.of([*(START.items() if started else ()), *pairs]))
    except InputError as error:
        text = str(error)
    else:
        text = "asked"
    assert "\n" not in text
    assert text


def test_every_slider_has_its_key() -> None:
    assert set(LOGS) <= set(KEYS)
