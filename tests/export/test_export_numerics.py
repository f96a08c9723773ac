"""Positions, norms, activation and dropout as written and as read back; expected values are the hub's."""

from __future__ import annotations

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.launch import Job, Launch
from meshplan.export.reading import Given, Reading, resolve
from meshplan.export.recognise import recognise
from meshplan.export.targets import export
from meshplan.model.presets import preset, preset_names
from meshplan.plan.plans import Plan
from meshplan.plan.rules import Setting
from meshplan.plan.workload import Workload


def launch_of(name: str, target: str) -> Launch:
    model = preset(name)
    setting = Setting(model, cluster_of("h100-sxm", 8), Workload(seq=2048, gbs=8))
    return export(Job(setting=setting, plan=Plan(dp=8), asked_model=name), target)


def read_back(launch: Launch, file: str) -> Reading:
    text = launch.files[file]
    found = recognise(text, where=file)
    assert isinstance(found, Found)
    return resolve(found, Given())


# Flags that a launch of the model needs; the value of a flag without one is "".
FLAGS = {
    "llama-3.1-8b": {
        "--rotary-base": "500000", "--use-rope-scaling": "", "--rope-scaling-factor": "8.0",
        "--norm-epsilon": "1e-05", "--swiglu": "",
    },
    "llama-3.2-1b": {"--rotary-base": "500000", "--rope-scaling-factor": "32.0"},
    "llama-3-8b": {"--rotary-base": "500000", "--use-rope-scaling": None},
    "qwen3-8b": {"--rotary-base": "1000000", "--norm-epsilon": "1e-06"},
    "deepseek-v3": {
        "--rope-type": "yarn", "--rotary-scaling-factor": "40.0", "--mscale": "1.0",
        "--mscale-all-dim": "1.0", "--rotary-base": "10000", "--norm-epsilon": "1e-06",
        "--moe-router-num-groups": "8", "--moe-router-group-topk": "4",
    },
    "moonlight-16b-a3b": {"--rope-type": "rope", "--no-rope-fusion": "", "--rotary-base": "50000"},
    "glm-4.5-air": {"--rotary-percent": "0.5", "--rotary-base": "1000000"},
    "gpt-neox-20b": {"--rotary-percent": "0.25", "--swiglu": None},
    "nemotron-4-15b": {"--squared-relu": "", "--rotary-percent": "0.5", "--swiglu": None},
    "llama-4-maverick": {"--no-rope-freq": "4", "--use-rope-scaling": None},
    "smollm3-3b": {"--no-rope-freq": "4", "--rotary-base": "5000000"},
    "gpt-oss-20b": {"--quick-geglu": "", "--glu-linear-offset": "1.0", "--swiglu": None},
    "gpt-2-xl": {"--position-embedding-type": "learned_absolute", "--attention-dropout": "0.1"},
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_megatron_arguments_say_them(name: str) -> None:
    lines = launch_of(name, "megatron").files["megatron.args"].splitlines()
    given = {flag: value for flag, _, value in (line.partition(" ") for line in lines)}
    for flag, value in FLAGS[name].items():
        assert given.get(flag) == value, f"{name} {flag}"


# Whose numbers Megatron's arguments cannot all say, and a word of the note that tells it.
LOST = {
    "gpt-oss-20b": "0.19", "gemma-3-4b": "one base", "gemma-2-9b": "gate SiLU only", "kimi-k2": "no argument",
    "llama-4-scout": "one Llama 3 scaling", "bloom-176b": "no ALiBi", "phi-3.5-moe": "no argument for it",
    "opt-175b": "GELU and squared ReLU",
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_megatron_cannot_say_is_said(name: str) -> None:
    assert any(LOST[name] in note.why for note in launch_of(name, "megatron").notes)


def test_every_preset_comes_back_with_its_numbers_or_a_note() -> None:
    compared = 0
    for name in preset_names():
        try:
            launch = launch_of(name, "megatron")
        except InputError:
            continue  # no argument list can describe its layers
        model, known = read_back(launch, "megatron.args").setting.model, preset(name)
        assert model.name == name
        parts = {note.part for note in launch.notes}
        if not any(part.startswith(("rotary", "YaRN", "positions")) for part in parts):
            assert model.rope == known.rope, name
        if known.norm_eps is not None:
            assert model.norm_eps == known.norm_eps, name
        assert (model.attention_dropout, model.hidden_dropout) == (
            known.attention_dropout, known.hidden_dropout,
        ), name  # fmt: skip
        compared += 1
    assert compared >= 60


def test_a_base_that_is_not_the_models_is_said() -> None:
    text = launch_of("llama-3.1-8b", "megatron").files["megatron.args"]
    for flag in ("--rotary-base 500000\n", "--use-rope-scaling\n", "--norm-epsilon 1e-05\n"):
        assert flag in text
        text = text.replace(flag, "")
    found = recognise(text, where="x")
    assert isinstance(found, Found)
    notes = " ".join(resolve(found, Given()).notes)
    assert "the rotary base is 10,000, not 500,000" in notes
    assert "the rotary scaling is none, not llama3 by 8" in notes
    assert "epsilon" not in notes  # Megatron's own is Llama's


def test_llama_3_and_3_1_are_told_apart_by_their_scaling() -> None:
    for name in ("llama-3-8b", "llama-3.1-8b"):
        text = launch_of(name, "megatron").files["megatron.args"]
        bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        found = recognise(bare, where="x")
        assert isinstance(found, Found)
        assert resolve(found, Given(gpus=8)).setting.model.name == name


def test_default_dropout_is_filled_in_and_said() -> None:
    text = launch_of("llama-3.1-8b", "megatron").files["megatron.args"]
    text = text.replace("--attention-dropout 0.0\n", "").replace("--hidden-dropout 0.0\n", "")
    found = recognise(text, where="x")
    assert isinstance(found, Found)
    reading = resolve(found, Given())
    assert reading.defaults["dropout"] == "0.1"
    assert any("masks are not in the estimate" in note for note in reading.notes)


def test_numbers_that_are_none_are_refused() -> None:
    text = launch_of("llama-3.1-8b", "megatron").files["megatron.args"]
    for wrong in ("--rotary-base many", "--rotary-base 0", "--rotary-base nan"):
        with pytest.raises(InputError, match="--rotary-base must be"):
            recognise(text.replace("--rotary-base 500000", wrong), where="x")


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "deepseek-v3"])
@pytest.mark.parametrize(
    ("target", "file"), [("torchtitan", "meshplan_titan.py"), ("megatron-bridge", "meshplan_recipe.py")]
)
def test_python_targets_keep_the_rotary_embedding(name: str, target: str, file: str) -> None:
    launch = launch_of(name, target)
    assert read_back(launch, file).setting.model.rope == preset(name).rope
    assert f"{int(preset(name).rope.base)}" in launch.files[file]  # type: ignore[union-attr]


def test_a_plain_llama_keeps_its_own_base_in_torchtitan() -> None:
    launch = launch_of("mistral-nemo-12b", "torchtitan")
    assert "ROPE = {'theta': 1000000.0, 'scaling': 'none'}" in launch.files["meshplan_titan.py"]
    model = read_back(launch, "meshplan_titan.py").setting.model
    assert model.name == "mistral-nemo-12b"
    assert model.rope == preset("mistral-nemo-12b").rope


def test_a_recipe_with_another_base_is_read_with_it() -> None:
    text = launch_of("llama-3.1-8b", "megatron-bridge").files["meshplan_recipe.py"]
    found = recognise(text.replace("rotary_base = 500000", "rotary_base = 10000"), where="x")
    assert isinstance(found, Found)
    reading = resolve(found, Given())
    assert reading.setting.model.rope.base == 10_000  # type: ignore[union-attr]
    assert any("the rotary base is 10,000" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("target", "flag"), [("accelerate", "--model_name_or_path"), ("deepspeed", "--model")]
)
def test_trainers_get_the_name_on_the_hub(target: str, flag: str) -> None:
    """Their scripts load the model's own configuration, with all of these numbers in it."""
    launch = launch_of("llama-3.1-8b", target)
    assert f"{flag} meta-llama/Llama-3.1-8B\n" in launch.files["run.sh"]
