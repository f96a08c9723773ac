from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from meshplan.errors import InputError, UnknownNameError
from meshplan.model.counts import model_parameters
from meshplan.model.load import load_model
from meshplan.model.presets import DATA, aliases, model_from_table, preset_name, preset_names

# Totals as the Hugging Face hub shows them (sum of the tensors of the safetensors or PyTorch files), or as
# the cited paper or model card prints them.
PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2-lite": 15_706_484_224,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-3.5-moe": 41_873_153_344,
    "phi-4": 14_659_507_200,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-32b": 32_234_279_936,
    "gpt-2": 124_439_808,
    "gpt-2-medium": 354_823_168,
    "gpt-2-large": 774_030_080,
    "gpt-2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-j-6b": 6_050_882_784,
    "bloom-176b": 176_247_271_424,
    "mpt-7b": 6_649_286_656,
    "falcon-7b": 6_921_720_704,
    "falcon-180b": 179_522_565_120,
    "internlm2-7b": 7_737_708_544,
    "internlm2-20b": 19_861_149_696,
    "yi-34b": 34_388_917_248,
    "smollm3-3b": 3_075_098_624,
    "seed-oss-36b": 36_151_104_512,
}
# Billions as printed: parameters in all, then active ones where the maker says so.
ROUNDED = {
    "deepseek-v3": (671.0, 36.6),  # the report's 37 counts the same to one digit less
    "deepseek-v2": (235.7, 21.0),  # "236B total, 21B active"
    "kimi-k2": (1026.0, 32.0),  # "1 trillion total, 32 billion active"
    "gpt-oss-120b": (116.83, 5.13),  # model card, table 1
    "gpt-oss-20b": (20.91, 3.61),
    "llama-13b": (13.0, None),  # 2302.13971, table 2
    "llama-30b": (32.5, None),
    "llama-65b": (65.2, None),
    "gpt-3-175b": (174.6, None),  # 2005.14165, table D.1
    "mt-nlg-530b": (529.6, None),  # 2205.05198, table 3
    "gpt-1t": (1008.0, None),
    "gpt-22b": (22.0, None),
    "nemotron-4-15b": (15.6, None),  # 2402.16819: 3.2B embedding and 12.5B other parameters
    "nemotron-4-340b": (341.0, None),  # 2406.11704: 9.4B embedding and 331.6B other parameters
}


def test_every_preset_file_is_strict_and_names_its_source() -> None:
    names = preset_names()
    assert len(names) >= 50
    for name in names:
        table = tomllib.loads((DATA / f"{name}.toml").read_text())
        model = load_model(name)
        assert model.name == name
        assert model.source.startswith("https://")
        assert model_parameters(model).total > 0
        assert len(model.kinds) == len(table["kinds"]), "every kind is used, and none twice"


def test_unknown_keys_in_a_preset_are_refused() -> None:
    good = tomllib.loads((DATA / "deepseek-v3.toml").read_text())
    for path in ((), ("kinds", "moe"), ("kinds", "moe", "attention"), ("kinds", "moe", "mlp")):
        table = tomllib.loads((DATA / "deepseek-v3.toml").read_text())
        inner = table
        for key in path:
            inner = inner[key]
        inner["hiden"] = 1
        with pytest.raises(InputError, match="hiden"):
            model_from_table("x", table)
    with pytest.raises(InputError, match="no kind is called 'sparse'"):
        model_from_table("x", {**good, "layers": [{"of": ["sparse"], "times": 1}]})


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    assert model_parameters(load_model(name)).total == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_round_to_those_printed(name: str) -> None:
    total, active = ROUNDED[name]
    counted = model_parameters(load_model(name))
    assert counted.total / 1e9 == pytest.approx(total, rel=0.004)
    if active is not None:
        assert counted.active / 1e9 == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama-3.1-70b", "llama-3.1-70b"),
        ("Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("gpt3", "gpt-3-175b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("internlm/internlm2_5-7b", "internlm2-7b"),
    ],
)
def test_names_people_type_find_the_preset(typed: str, name: str) -> None:
    assert load_model(typed).name == name


def test_aliases_name_presets_and_shadow_none() -> None:
    names = set(preset_names())
    assert set(aliases().values()) <= names
    for alias, name in aliases().items():
        assert alias == name or alias not in names


@pytest.mark.parametrize("typed", ["llama70b", "lama-3.1-70b", "qwen3-31b", "someone/llama-3-8b", "aliases"])
def test_an_unknown_name_is_refused_with_the_nearest_ones(typed: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model(typed)
    message = str(caught.value)
    assert "\n" not in message
    if typed != "aliases":
        assert "did you mean" in message
    if typed == "llama70b":
        assert "did you mean 'llama-3-70b' or 'llama-2-70b' or" in message


def test_a_name_is_not_a_path_into_the_data_folder() -> None:
    for typed in ("../data/llama-3-8b", "./llama-3-8b", "llama-3-8b/", "data\\llama-3-8b"):
        assert preset_name(typed) is None


def test_loading_a_preset_imports_nothing_heavy() -> None:
    code = (
        "import sys; from meshplan.model import load_model; load_model('llama-3.1-405b');"
        "heavy = ('numpy', 'pydantic', 'torch', 'rich', 'json', 'meshplan.model.hf');"
        "print(*[m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
