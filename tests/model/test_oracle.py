"""Parameter counts against `transformers`, built on torch's meta device: equal to the parameter, by part.

Needs torch and transformers (the `oracle` extra). The published configurations are read from a folder
beside the repository, where there is one.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meshplan.errors import InputError
from meshplan.model.counts import model_parameters
from meshplan.model.hf import model_from_config

_FILE = Path(__file__).with_name("oracle_configs.py")
_SPEC = importlib.util.spec_from_file_location("oracle_configs", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
oracle_configs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(oracle_configs)

PUBLISHED = Path(__file__).parents[3] / "shared" / "hf_configs"

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None,
        reason="ORACLE NOT RUN: torch and transformers are not installed (pip install 'meshplan[oracle]')",
    ),
]

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.(.*)")
_RULES = (
    (
        "router",
        r"shared_expert_gate|router|(?:^|\.)gate\.(?:weight|bias|wg|moe_statics)|expert_bias|e_score_correction",
    ),
    ("shared", r"shared_expert|shared_mlp"),
    ("experts", r"experts\."),
    ("norms", r"act_fn"),  # Apertus: two learned scalars, counted with the norms
    ("norms", r"^(?:self_attn_layer_norm|post_attention_layernorm|pre_attention|attention_layernorm)"),
    ("attention", r"^(?:self_attn|attn|attention|self_attention)\."),
    ("norms", r"norm|^ln_"),
    ("mlp", r""),
)


def part_of(name: str) -> str:
    """The part a parameter of a `transformers` model belongs to."""
    inside = _LAYER.search(name)
    if inside is None:
        if "norm" in name or "ln_f" in name:
            return "final_norm"
        if "lm_head" in name:
            return "head"
        return "positions" if "wpe" in name or "embed_positions" in name else "embedding"
    return next(part for part, rule in _RULES if re.search(rule, inside[1]))


def counted(config: Any, cls: Any) -> Counter[str]:
    """Parameters of the language model by part, as `transformers` builds it."""
    import torch

    with torch.device("meta"):
        model = cls._from_config(config) if hasattr(cls, "_from_config") else cls.from_config(config)
    found: Counter[str] = Counter()
    shown = re.compile(r"visual|vision|multi_modal_projector|audio")
    for name, weight in model.named_parameters():
        if not shown.search(name):
            found[part_of(name)] += weight.numel()
    return found


def assert_same(config: dict[str, Any], expected: Counter[str], name: str) -> None:
    parts = dict(model_parameters(model_from_config(config, name=name)).parts)
    if "gemma4" in str(config.get("model_type")) and parts["experts"]:
        parts["mlp"], parts["shared"] = parts["shared"], 0  # the MLP beside the experts
    if config.get("model_type") == "granitemoehybrid" and not parts["experts"]:
        parts["mlp"], parts["shared"] = 0, parts["mlp"]  # the only MLP goes by the name of a shared one
    assert {k: v for k, v in parts.items() if v} == dict(expected)


def ids(entries: list[tuple[str, dict[str, Any]]]) -> list[str]:
    seen: Counter[str] = Counter()
    names = []
    for kind, _ in entries:
        seen[kind] += 1
        names.append(kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
    return names


@pytest.mark.parametrize(("kind", "sizes"), oracle_configs.SMALL, ids=ids(oracle_configs.SMALL))
def test_small_models_have_the_parameters_transformers_builds(kind: str, sizes: dict[str, Any]) -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind](**sizes)
    written = json.loads(config.to_json_string(use_diff=False))
    cls = transformers.Mistral4ForCausalLM if kind == "mistral4" else transformers.AutoModelForCausalLM
    expected = counted(config, cls)
    assert_same(written, expected, kind)
    assert_same({"model_type": kind, **sizes}, expected, f"{kind} as typed")
    assert_same_windows(config, written, kind)


@pytest.mark.parametrize(("kind", "text"), oracle_configs.WRAPPED, ids=ids(oracle_configs.WRAPPED))
def test_language_models_inside_multimodal_ones(kind: str, text: dict[str, Any]) -> None:
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = {"text_config": text, "tie_word_embeddings": False}
    expected = counted(CONFIG_MAPPING[kind](**json.loads(json.dumps(whole))), AutoModelForImageTextToText)
    assert_same({"model_type": kind, **whole}, expected, kind)


def assert_same_windows(config: Any, written: dict[str, Any], kind: str) -> None:
    """Which layers slide, and how far, is what `transformers` makes of the same configuration."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return
    for layer, name in zip(model_from_config(written, name=kind).layers, kinds, strict=True):
        window = getattr(layer.attention, "window", None)
        if name == "full_attention":
            assert window is None
        else:
            chunk = name == "chunked_attention"
            assert window == (config.attention_chunk_size if chunk else config.sliding_window)


def published(name: str) -> dict[str, Any]:
    if not PUBLISHED.is_dir():
        pytest.skip(f"PUBLISHED CONFIGURATIONS NOT CHECKED: no folder {PUBLISHED}")
    config: dict[str, Any] = json.loads((PUBLISHED / f"{name}.json").read_text())
    return config


def names() -> list[str]:
    return sorted(file.stem for file in PUBLISHED.glob("*.json")) if PUBLISHED.is_dir() else ["none"]


@pytest.mark.parametrize("name", names())
def test_published_models_have_the_parameters_transformers_builds(name: str) -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = published(name)
    try:
        model_from_config(config, name=name)
    except InputError as error:
        assert "kind that is not known" in str(error)  # noqa: PT017
        return
    kind = {"kimi_k2": "deepseek_v3", "mimo": "qwen2"}.get(config["model_type"], config["model_type"])
    bare = {k: v for k, v in config.items() if k not in ("quantization_config", "auto_map", "model_type")}
    if kind == "nemotron-nas":
        assert_same(config, pruned_llama(bare), name)
        return
    if kind == "step3p7":
        from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
        from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

        expected = counted(Step3p7TextConfig(**bare), Step3p7TextModel)
        expected["head"] = config["vocab_size"] * config["hidden_size"]
    else:
        built = CONFIG_MAPPING[kind].from_dict(bare)
        cls = getattr(transformers, config["architectures"][0], None) or transformers.AutoModelForCausalLM
        expected = counted(built, cls)
    assert_same(config, expected, name)


def pruned_llama(config: dict[str, Any]) -> Counter[str]:
    """Nemotron-NAS, which `transformers` lacks, from one-layer Llamas with the sizes of each block."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    keys = ("vocab_size", "hidden_size", "num_attention_heads", "tie_word_embeddings")
    total: Counter[str] = Counter()
    for block in config["block_configs"]:
        group = block["attention"]["n_heads_in_group"] or 1
        width = int(2 * (block["ffn"]["ffn_mult"] or 1) * config["hidden_size"] / 3)
        llama = LlamaConfig(
            **{key: config[key] for key in keys},
            num_hidden_layers=1,
            num_key_value_heads=config["num_attention_heads"] // group,
            intermediate_size=width if width % 256 == 0 else width + 256 - width % 256,
        )
        one = counted(llama, AutoModelForCausalLM)
        for part, gone in (("attention", block["attention"]["no_op"]), ("mlp", block["ffn"]["no_op"])):
            if gone:
                one[part] = 0
                one["norms"] -= config["hidden_size"]
        for part in ("attention", "mlp", "norms"):
            total[part] += one[part]
        for part in ("embedding", "head", "final_norm"):
            total[part] = one[part]
    return total
