from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshplan.errors import InputError, MeshplanError
from meshplan.model.counts import model_parameters
from meshplan.model.flops import flop_per_token
from meshplan.model.hf import known_types, model_from_config, parse, read_config
from meshplan.model.layers import Attention, LatentAttention, Mlp, Moe
from meshplan.model.load import load_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
}


def read(**changes: Any) -> Any:
    return model_from_config({**LLAMA, **changes}, name="x")


def test_a_dense_model() -> None:
    model = read()
    assert model_parameters(model).total == 8_030_261_248
    assert len(model.layers) == 32
    assert model.kinds[0].attention == Attention(heads=32, kv_heads=8, head_dim=128)
    assert model.kinds[0].mlp == Mlp(width=14336)


def test_a_mixture_with_latent_attention() -> None:
    model = model_from_config(DEEPSEEK, name="x")
    assert model_parameters(model).total == 671_026_404_352
    assert [isinstance(layer.mlp, Moe) for layer in model.layers] == [False] * 3 + [True] * 58
    assert isinstance(model.layers[0].attention, LatentAttention)
    assert model.mtp == (model.layers[-1],)


def test_a_nested_language_model_is_followed_and_said() -> None:
    inner = {**LLAMA, "tie_word_embeddings": False}
    outer = {"model_type": "llava", "text_config": inner, "vision_config": {"hidden_size": 9}}
    model = model_from_config(outer, name="x")
    assert model_parameters(model).total == 8_030_261_248
    assert "language model alone" in model.notes[0]
    tied = model_from_config({**outer, "tie_word_embeddings": True}, name="x")
    assert tied.tied_embeddings


def test_what_published_files_leave_out_is_what_the_class_says() -> None:
    """Gemma 3's files name what differs from the class: 8 heads, 4 of keys, 256 wide, vocabulary 262208."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    model = model_from_config({"model_type": "gemma3", "text_config": text}, name="x")
    assert model_parameters(model).total == 3_880_263_168
    assert model.tied_embeddings


REMOTE = [  # totals as the hub shows them for models whose code is beside their weights
    (
        "zai-org/chatglm3-6b",
        6_243_584_000,
        {"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32}
        | {
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "kv_channels": 128,
            "add_qkv_bias": True,
        }
        | {"add_qkv_bias": True, "ffn_hidden_size": 13696, "padded_vocab_size": 65024},
    ),
    (
        "zai-org/glm-4-9b",
        9_399_951_360,
        {"model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32}
        | {
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "kv_channels": 128,
            "add_qkv_bias": True,
        }
        | {"add_qkv_bias": True, "ffn_hidden_size": 13696, "padded_vocab_size": 151552},
    ),
    (
        "Qwen/Qwen-7B",
        7_721_324_544,
        {"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"intermediate_size": 22016, "kv_channels": 128, "no_bias": True, "vocab_size": 151936},
    ),
    (
        "baichuan-inc/Baichuan2-7B-Base",
        7_505_973_248,
        {"model_type": "baichuan", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"intermediate_size": 11008, "vocab_size": 125696},
    ),
    (
        "openbmb/MiniCPM-2B-sft-bf16",
        2_724_880_896,
        {"model_type": "minicpm", "hidden_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 36}
        | {"num_key_value_heads": 36, "intermediate_size": 5760, "vocab_size": 122753},
    ),
    (
        "databricks/dbrx-base",
        131_596_523_520,
        {"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "vocab_size": 100352}
        | {"attn_config": {"kv_n_heads": 8}}
        | {"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
    ),
    (
        "XiaomiMiMo/MiMo-7B-Base",
        7_622_619_136,  # the hub's 7,833,409,536 less the prediction layer of 210,790,400
        {"model_type": "mimo", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "intermediate_size": 11008, "vocab_size": 151680, "attention_bias": True}
        | {"num_nextn_predict_layers": 1},
    ),
]


@pytest.mark.parametrize(("name", "total", "config"), REMOTE, ids=[r[0] for r in REMOTE])
def test_architectures_with_code_beside_the_weights(name: str, total: int, config: dict[str, Any]) -> None:
    assert model_parameters(model_from_config(config, name=name)).total == total


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("string for a number", {"hidden_size": "4096"}, "hidden_size must be .* not the string '4096'"),
    ("not a number", {"hidden_size": float("nan")}, "hidden_size must be a whole number .* not nan"),
    ("infinity", {"vocab_size": float("inf")}, "vocab_size must be a whole number"),
    ("a float", {"num_hidden_layers": 32.0}, "num_hidden_layers must be a whole number"),
    ("a boolean", {"num_hidden_layers": True}, "num_hidden_layers must be a whole number .* not true"),
    ("negative", {"num_attention_heads": -32}, "num_attention_heads must be a whole number from 1"),
    ("zero", {"intermediate_size": 0}, "intermediate_size must be a whole number from 1"),
    ("zero layers", {"num_hidden_layers": 0}, "must be a whole number from 1 to 10000, not 0"),
    ("absurd width", {"hidden_size": 1 << 30}, "hidden_size must be a whole number from 1 to 1048576"),
    ("absurd layers", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("absurd vocabulary", {"vocab_size": 1 << 40}, "vocab_size"),
    ("a huge integer", {"vocab_size": 1 << 4000}, "a number of 4001 bits"),
    ("a list", {"hidden_size": [4096]}, "hidden_size must be a whole number .* not a list"),
    ("an object", {"hidden_size": {}}, "not an object"),
    ("missing", {"hidden_size": None}, "hidden_size is missing"),
    ("heads and width", {"num_attention_heads": 31, "num_key_value_heads": 31}, "31 does not divide hidden"),
    ("heads and groups", {"num_key_value_heads": 5}, "32 is not a multiple of num_key_value_heads 5"),
    ("a flag as text", {"tie_word_embeddings": "no"}, "must be true or false, not the string 'no'"),
    ("layer kinds", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 32 layers"),
    ("unknown layer kind", {"layer_types": ["mamba"] * 32}, "layers of the kind 'mamba' are not known"),
    ("window missing", {"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
    ("layer kinds as text", {"layer_types": "full"}, "layer_types must be a list"),
    ("unknown type", {"model_type": "lama"}, "'lama' is not a known .* the nearest known one is 'llama'"),
    ("no type", {"model_type": None}, "model_type is missing"),
    ("a number as type", {"model_type": 3}, "model_type must be a string"),
    ("encoder", {"is_encoder_decoder": True}, "encoder-decoder models are not known"),
    ("nested text", {"text_config": "llama"}, "text_config must be an object"),
    ("latent experts", {"moe_latent_size": 64}, "latent mixture-of-experts"),
    ("per layer", {"per_layer_config": {"1": {"rope": 1}}}, "changes 'rope', which is not known"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_fields_are_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "field",
    [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
        "model_type",
    ],
)
def test_a_missing_field_is_named(field: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != field}
    with pytest.raises(InputError, match=f"{field} is missing"):
        model_from_config(config, name="x")


def test_more_experts_asked_than_there_are() -> None:
    with pytest.raises(InputError, match="num_experts_per_tok 300 is more than the 256 experts"):
        model_from_config({**DEEPSEEK, "num_experts_per_tok": 300}, name="x")


UNKNOWN = [
    ({"model_type": "nemotron_h", "mamba_num_heads": 8}, "Mamba state-space layers"),
    ({"model_type": "mamba2", "ssm_state_size": 8}, "Mamba state-space layers"),
    ({"model_type": "qwen3_next", "linear_num_value_heads": 32}, "gated DeltaNet linear attention"),
    ({"model_type": "kimi_linear", "linear_attn_config": {"x": 1}}, "Kimi delta attention"),
    ({"model_type": "deepseek_v32", "index_topk": 2048}, "sparse attention with an indexer"),
    ({"model_type": "deepseek_v4", "hc_mult": 4}, "hyper-connections"),
    ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "conv layers"),
    ({"model_type": "minimax", "layer_types": ["linear_attention"]}, "linear attention layers"),
    ({"model_type": "rwkv", "hidden_size": 8}, "RWKV layers"),
    ({"model_type": "longcat_flash", "zero_expert_num": 2}, "shortcut mixture-of-experts"),
    ({"model_type": "gemma3n_text", "hidden_size_per_layer_input": 256}, "per-layer embeddings"),
]


@pytest.mark.parametrize(("config", "kind"), UNKNOWN)
def test_unknown_layer_kinds_are_named(config: dict[str, Any], kind: str) -> None:
    with pytest.raises(InputError, match=kind) as caught:
        model_from_config(config, name="x")
    assert "not known" in str(caught.value)


TEXTS = [
    ("", "is empty"),
    ("   \n", "is empty"),
    ('{"model_type": "llama", "hidden_size": ', "not valid JSON: .* line 1, column"),
    ("hidden_size: 4096", "not valid JSON"),
    ("[1, 2]", "must hold a JSON object, not list"),
    ("null", "must hold a JSON object"),
    ("[" * 100_000, "nested too deeply|not valid JSON"),
    ('{"a":' * 50_000 + "1" + "}" * 50_000, "nested too deeply"),
    ('{"hidden_size": ' + "9" * 5000 + "}", "not valid JSON"),
]


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=range(len(TEXTS)))
def test_files_that_are_not_a_configuration(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_config(file)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_config(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"config\.json' does not exist"):
        read_config(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x01" * 9)
    with pytest.raises(InputError, match="not UTF-8"):
        read_config(tmp_path / "binary.json")
    (tmp_path / "huge.json").write_bytes(b" " * (9 << 20))
    with pytest.raises(InputError, match="larger than 8 MiB"):
        read_config(tmp_path / "huge.json")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="not a regular file"):
        read_config(tmp_path / "pipe.json")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "loop.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_config("a" * 5000)


def test_constants_that_json_lacks_hurt_only_where_they_are_read(tmp_path: Path) -> None:
    """Published files hold ``Infinity`` in fields that say nothing of the sizes."""
    text = json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]})
    (tmp_path / "config.json").write_text(text)
    assert model_parameters(read_config(tmp_path)).total == 8_030_261_248


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert read_config(tmp_path).hidden == 4096


def test_names_and_sources(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "other.json").write_text(json.dumps(LLAMA))
    assert load_model(str(folder)).name == "my-model"
    assert load_model(str(folder / "config.json")).name == "my-model"
    assert load_model(str(folder / "other.json")).name == "other"
    assert load_model(str(folder)).source == str(folder)


PUBLISHED = Path(__file__).parents[3] / "shared" / "hf_configs"
NO_FOLDER = f"PUBLISHED CONFIGURATIONS NOT CHECKED: no folder {PUBLISHED}"
REFUSED = {
    "MiniMaxAI--MiniMax-M3": "sparse attention",
    "Qwen--Qwen3.5-122B-A10B": "linear attention",
    "Qwen--Qwen3.5-27B": "linear attention",
    "Qwen--Qwen3.5-397B-A17B": "linear attention",
    "deepseek-ai--DeepSeek-V3.2": "sparse attention",
    "deepseek-ai--DeepSeek-V4-Flash": "compressed sparse attention",
    "deepseek-ai--DeepSeek-V4-Pro": "compressed sparse attention",
    "moonshotai--Kimi-K3": "Kimi delta attention",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "Mamba",
    "nvidia--Nemotron-H-56B-Base-8K": "Mamba",
    "zai-org--GLM-5.1": "sparse attention",
    "zai-org--GLM-5.2": "sparse attention",
}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=NO_FOLDER)
def test_published_files_are_read_or_refused_by_the_name_of_a_layer_kind() -> None:
    refused = {}
    for file in sorted(PUBLISHED.glob("*.json")):
        try:
            model = read_config(file)
        except InputError as error:
            refused[file.stem] = str(error)
        else:
            assert flop_per_token(model, 4096) > 0
    assert set(refused) <= set(REFUSED)
    for name, message in refused.items():
        assert REFUSED[name] in message
        assert "\n" not in message


# --- whatever is thrown at the reader, only its own errors come out ---

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 130),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(0, 3), st.text(max_size=4)), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.sampled_from([2**20, 2**31, 10**30, "full_attention", "32"]),
)
MORE_KEYS = """
head_dim layer_types sliding_window text_config per_layer_config num_experts attn_config block_configs
no_rope_layers moe_layers mlp_layer_types moe_layer_freq n_embd n_layer n_head d_model
n_heads n_layers n_embed num_local_experts use_sliding_window max_position_embeddings
hybrid_layer_pattern moe_layers_enum sliding_window_pattern
"""
KEYS = sorted({*LLAMA, *DEEPSEEK, *MORE_KEYS.split()})


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    base=st.sampled_from([LLAMA, DEEPSEEK]),
    kind=st.sampled_from(known_types()),
    changes=st.dictionaries(st.sampled_from(KEYS), ODD, max_size=6),
    dropped=st.sets(st.sampled_from(KEYS), max_size=3),
)
def test_mutations_raise_nothing_but_input_errors(
    base: dict[str, Any], kind: str, changes: dict[str, Any], dropped: set[str]
) -> None:
    config = {**base, "num_hidden_layers": 4, "model_type": kind, **changes}
    for key in dropped:
        config.pop(key, None)
    try:
        model = model_from_config(config, name="x")
    except MeshplanError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    counted = model_parameters(model)
    assert counted.total == sum(counted.parts.values()) > 0
    assert 0 < counted.active <= counted.total
    assert flop_per_token(model, 128) > 0


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.sampled_from([json.dumps(LLAMA), json.dumps(DEEPSEEK)]), st.integers(0, 400))
def test_broken_text_raises_nothing_but_input_errors(noise: str, text: str, at: int) -> None:
    try:
        model_from_config(parse(text[:at] + noise + text[at:], "x"), name="x")
    except MeshplanError as error:
        assert "\n" not in str(error)  # noqa: PT017
