"""Rotary embedding, epsilon, activation, dropout and spread: read from both forms of a configuration.

Expected values come from the published ``config.json`` files and, marked ``oracle``, from the configuration
classes of transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.model.adapters import ADAPTERS
from meshplan.model.class_defaults import DEFAULTS
from meshplan.model.families import FAMILIES
from meshplan.model.fields import Fields
from meshplan.model.hf import model_from_config
from meshplan.model.numerics import with_numerics
from meshplan.model.presets import preset, preset_name, preset_names

SHARED = Path(__file__).parents[2].parent / "shared" / "hf_configs"
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip


def read(**fields: Any):
    return model_from_config({**LLAMA, **fields}, name="x")


def test_the_old_and_the_new_form_say_the_same() -> None:
    old = read(rope_theta=500000.0, rope_scaling=LLAMA3)
    new = read(rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    assert old.rope == new.rope
    assert old.rope is not None
    assert (old.rope.base, old.rope.kind, old.rope.factor, old.rope.original) == (500000, "llama3", 8, 8192)


@pytest.mark.parametrize(
    ("scaling", "kind", "factor"),
    [
        ({"type": "linear", "factor": 4.0}, "linear", 4),
        ({"type": "dynamic", "factor": 2.0}, "dynamic", 2),
        ({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, "yarn", 40),
        ({"type": "su", "long_factor": [1.0], "short_factor": [1.0]}, "longrope", 1),
        ({"rope_type": "default"}, "plain", 1),
        (None, "plain", 1),
    ],
)
def test_every_kind_of_scaling(scaling: dict[str, Any] | None, kind: str, factor: float) -> None:
    for fields in ({"rope_scaling": scaling}, {"rope_parameters": {"rope_theta": 1e4, **(scaling or {})}}):
        rope = read(**fields).rope
        assert rope is not None
        assert (rope.kind, rope.factor, rope.base) == (kind, factor, 1e4)


def test_bases_of_full_and_sliding_layers() -> None:
    tables = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = read(rope_parameters=tables).rope
    old = read(
        rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8}
    ).rope
    assert new == old
    assert new is not None
    assert (new.base, new.local_base, new.kind) == (1e6, 1e4, "linear")


def test_shares_of_a_head_and_layers_without() -> None:
    assert read(partial_rotary_factor=0.5).rope.fraction == 0.5
    assert read(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25}).rope.fraction == 0.25
    assert read(rotary_dim=4).rope.fraction == 0.25  # of a head of 16
    assert read(no_rope_layers=[1, 1, 1, 0]).rope.skips == (0, 0, 0, 1)
    assert read(no_rope_layer_interval=2).rope.skip_every == 2
    assert read(no_rope_layers=[1, 1, 1, 1]).rope.skips == ()


def test_what_cannot_be_read_is_a_note_and_no_refusal() -> None:
    for fields in ({"rope_theta": "many"}, {"rope_scaling": {"type": 3}}, {"rms_norm_eps": [1]}):
        model = read(**fields)
        assert model.rope is None
        assert any("were not read" in note for note in model.notes), fields


def test_learned_and_alibi_positions_have_no_rotary_embedding() -> None:
    gpt = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    model = model_from_config(gpt, name="x")
    assert model.rope is None
    assert not model.alibi
    assert (model.attention_dropout, model.hidden_dropout) == (0.1, 0.1)
    assert (model.norm_eps, model.activation) == (1e-5, "gelu_new")
    assert preset("bloom-176b").alibi
    assert preset("bloom-176b").rope is None


# From the files on the hub: base, share, kind of scaling, its factor, epsilon.
PUBLISHED = {
    "llama-2-7b": (1e4, 1, "plain", 1, 1e-5),
    "llama-3-70b": (5e5, 1, "plain", 1, 1e-5),
    "llama-3.2-1b": (5e5, 1, "llama3", 32, 1e-5),
    "qwen2.5-7b": (1e6, 1, "plain", 1, 1e-6),
    "qwen2.5-72b": (1e6, 1, "plain", 1, 1e-5),
    "phi-2": (1e4, 0.4, "plain", 1, 1e-5),
    "phi-4": (250_000, 1, "plain", 1, 1e-5),
    "gpt-neox-20b": (1e4, 0.25, "plain", 1, 1e-5),
    "glm-4.5": (1e6, 0.5, "plain", 1, 1e-5),
    "deepseek-v2-lite": (1e4, 1, "yarn", 40, 1e-6),
    "olmo-2-7b": (5e5, 1, "plain", 1, 1e-6),
    "mistral-7b": (1e4, 1, "plain", 1, 1e-5),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_numbers(name: str) -> None:
    model = preset(name)
    rope = model.rope
    assert rope is not None
    assert (rope.base, rope.fraction, rope.kind, rope.factor, model.norm_eps) == PUBLISHED[name]


def test_every_preset_says_where_its_tokens_are() -> None:
    for name in preset_names():
        model = preset(name)
        assert sum((model.rope is not None, model.alibi, model.positions > 0)) == 1, name
        assert model.activation, name


def test_presets_agree_with_the_configurations_at_hand() -> None:
    if not SHARED.is_dir():
        pytest.skip(
            "THE PUBLISHED CONFIGURATIONS ARE NOT BESIDE THE REPOSITORY: presets not compared with them"
        )
    compared = 0
    for file in SHARED.glob("*--*.json"):
        name = preset_name(file.stem.replace("--", "/", 1))
        if name is None:
            continue
        model, known = model_from_config(json.loads(file.read_text()), name="x"), preset(name)
        for field in ("rope", "norm_eps", "activation", "attention_dropout", "hidden_dropout", "init_std"):
            assert getattr(model, field) == getattr(known, field), f"{name}: {field}"
        compared += 1
    assert compared >= 15


@pytest.mark.oracle
def test_defaults_are_those_of_the_configuration_classes() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    known = {**DEFAULTS, **dict.fromkeys((*FAMILIES, *ADAPTERS))}
    base, compared = model_from_config(LLAMA, name="x"), 0
    for kind in sorted(known):
        if kind not in transformers.CONFIG_MAPPING:
            continue
        theirs = transformers.CONFIG_MAPPING[kind]().to_dict()
        ours = with_numerics(Fields({"model_type": kind}, kind), base)
        for names, value in (
            (
                ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
                ours.norm_eps,
            ),
            (("initializer_range", "init_std"), ours.init_std),
            (("attention_dropout", "attn_pdrop"), ours.attention_dropout),
        ):
            found = next((theirs[name] for name in names if theirs.get(name) is not None), None)
            if found is not None and kind != "laguna":
                assert value == found, f"{kind}: {names[0]}"
        rope = theirs.get("rope_parameters")
        if not rope or ours.rope is None or kind in ("laguna", "mellum", "gpt_oss"):
            continue  # those three come with a whole table in every published file
        main = rope.get("full_attention", rope)
        if "rope_theta" in main:
            assert ours.rope.base == main["rope_theta"], kind
            compared += 1
        share = main.get("partial_rotary_factor")
        if share is not None and kind not in ("gemma4_text", "mistral4"):
            assert ours.rope.fraction == share, kind
    assert compared >= 50


def test_models_show_says_them(capsys: pytest.CaptureFixture[str]) -> None:
    from meshplan.cli import main

    assert main(["models", "show", "llama-3.1-8b"]) == 0
    assert "rotary base 500,000, llama3 by 8, norm epsilon 1e-05, activation silu" in capsys.readouterr().out
    assert main(["models", "show", "llama-3.1-8b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["rope"]["base"], shown["norm_eps"], shown["alibi"]) == (500_000, 1e-5, False)
