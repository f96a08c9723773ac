"""Which of torchtitan's models is which preset.

Module, flavor and stock configuration of torchtitan 0.3.0 (``torchtitan/models/*/__init__.py`` and
``config_registry.py``). Their parameter counts equal the presets' to the parameter.
"""

from __future__ import annotations

from typing import NamedTuple


class Flavor(NamedTuple):
    """A model of torchtitan; ``config`` is its stock configuration, or empty where there is none."""

    module: str
    name: str
    config: str = ""
    assets: str = ""
    """Where that configuration expects the tokenizer."""

    @property
    def eps(self) -> float:
        """What its norms add under the root."""
        return 1e-6 if self.module == "qwen3" else 1e-5


FLAVORS: dict[str, Flavor] = {
    "llama-3.2-1b": Flavor("llama3", "1B", "", "Llama-3.2-1B"),
    "llama-3.2-3b": Flavor("llama3", "3B", "", "Llama-3.2-3B"),
    "llama-3-8b": Flavor("llama3", "8B", "llama3_8b", "Llama-3.1-8B"),
    "llama-3.1-8b": Flavor("llama3", "8B", "llama3_8b", "Llama-3.1-8B"),
    "llama-3-70b": Flavor("llama3", "70B", "llama3_70b", "Llama-3.1-70B"),
    "llama-3.1-70b": Flavor("llama3", "70B", "llama3_70b", "Llama-3.1-70B"),
    "llama-3.3-70b": Flavor("llama3", "70B", "llama3_70b", "Llama-3.1-70B"),
    "llama-3.1-405b": Flavor("llama3", "405B", "llama3_405b", "Llama-3.1-405B"),
    "qwen3-0.6b": Flavor("qwen3", "0.6B", "qwen3_0_6b", "Qwen3-0.6B"),
    "qwen3-1.7b": Flavor("qwen3", "1.7B", "qwen3_1_7b", "Qwen3-1.7B"),
    "qwen3-4b": Flavor("qwen3", "4B", "", "Qwen3-4B"),
    "qwen3-8b": Flavor("qwen3", "8B", "", "Qwen3-8B"),
    "qwen3-14b": Flavor("qwen3", "14B", "qwen3_14b", "Qwen3-14B"),
    "qwen3-32b": Flavor("qwen3", "32B", "qwen3_32b", "Qwen3-32B"),
    "qwen3-30b-a3b": Flavor("qwen3", "30B-A3B", "qwen3_30b_a3b", "Qwen3-30B-A3B"),
    "qwen3-235b-a22b": Flavor("qwen3", "235B-A22B", "", "Qwen3-235B-A22B"),
    "deepseek-v2-lite": Flavor("deepseek_v3", "16B", "deepseek_v3_16b", "deepseek-moe-16b-base"),
    "deepseek-v2": Flavor("deepseek_v3", "236B", "", "DeepSeek-V2"),
    "deepseek-v3": Flavor("deepseek_v3", "671B", "deepseek_v3_671b", "DeepSeek-V3.1-Base"),
    "gpt-oss-20b": Flavor("gpt_oss", "20b", "gpt_oss_20b", "gpt-oss-20b"),
    "gpt-oss-120b": Flavor("gpt_oss", "120b", "gpt_oss_120b", "gpt-oss-120b"),
}
"""Preset → flavor; the first preset of a flavor is the one it is read back as."""

PREFERRED = {("llama3", "8B"): "llama-3.1-8b", ("llama3", "70B"): "llama-3.1-70b"}


def preset_of(module: str, *, flavor: str = "", config: str = "") -> str | None:
    """The preset that a module's flavor or stock configuration stands for."""
    module = module.removeprefix("torchtitan.models.").removesuffix(".config_registry")
    for preset, found in FLAVORS.items():
        if found.module == module and (
            (flavor and found.name == flavor) or (config and found.config == config)
        ):
            return PREFERRED.get((module, found.name), preset)
    return None


STOCK: dict[str, dict[str, object]] = {
    "llama3_8b": {"training.local_batch_size": 1, "training.seq_len": 8192, "checkpointing": "selective"},
    "llama3_70b": {
        "parallelism.tensor_parallel_degree": 8,
        "training.seq_len": 8192,
        "checkpointing": "full",
    },
    "llama3_405b": {
        "training.local_batch_size": 2,
        "training.seq_len": 8192,
        "parallelism.tensor_parallel_degree": 8,
        "checkpointing": "full",
        "converters": "Float8LinearConverter",
    },
    "qwen3_0_6b": {"training.local_batch_size": 4, "training.seq_len": 4096, "checkpointing": "selective"},
    "qwen3_1_7b": {"training.local_batch_size": 4, "training.seq_len": 4096, "checkpointing": "selective"},
    "qwen3_14b": {"training.local_batch_size": 4, "training.seq_len": 4096, "checkpointing": "full"},
    "qwen3_32b": {"training.local_batch_size": 2, "training.seq_len": 4096, "checkpointing": "full"},
    "qwen3_30b_a3b": {"training.local_batch_size": 2, "training.seq_len": 4096, "checkpointing": "full"},
    "deepseek_v3_16b": {
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
        "parallelism.expert_parallel_degree": 8,
        "training.local_batch_size": 4,
        "training.seq_len": 4096,
        "training.disable_cuda_graphs": True,
        "checkpointing": "selective",
    },
    "deepseek_v3_671b": {
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
        "parallelism.expert_parallel_degree": 2,
        "training.local_batch_size": 4,
        "training.seq_len": 4096,
        "training.disable_cuda_graphs": True,
        "checkpointing": "selective",
    },
    "gpt_oss_20b": {"training.local_batch_size": 1, "training.seq_len": 8192, "checkpointing": "full"},
    "gpt_oss_120b": {"training.local_batch_size": 1, "training.seq_len": 8192, "checkpointing": "full"},
}
"""What the stock configurations of 0.3.0 set besides the defaults."""
