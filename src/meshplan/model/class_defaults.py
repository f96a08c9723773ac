"""What a `model_type` has where a configuration leaves it out: rotary base, epsilon, activation and so on.

From the classes of that name in ``transformers`` 5.24 (``configuration_*.py``), and for types that it does
not have from the configuration class published with the weights. Only what differs from ``USUAL`` is listed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from meshplan.model.rope import Rope


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Of one class. ``rope`` is ``None`` where positions are learned or ALiBi."""

    rope: Rope | None = field(default_factory=Rope)
    eps: float = 1e-6
    activation: str = "silu"
    std: float = 0.02
    dropout: float = 0.0
    attention_dropout: float = 0.0
    skip_every: int = 0
    """Every such layer has no rotary embedding, where the configuration does not list them."""


def _row(base: float = 10_000.0, **rest: Any) -> Defaults:
    rope = {name: rest.pop(name) for name in ("fraction", "local_base", "interleaved") if name in rest}
    return Defaults(rope=Rope(base=base, **rope), **rest)


USUAL: Final = Defaults()
_EPS5: Final = _row(eps=1e-5)
_TANH: Final = "gelu_pytorch_tanh"

DEFAULTS: Final[dict[str, Defaults]] = {
    "afmoe": _EPS5,
    "apertus": _row(12e6, eps=1e-5, activation="xielu"),
    "arcee": _row(eps=1e-5, activation="relu2"),
    "bloom": Defaults(rope=None, eps=1e-5, activation="gelu"),
    "chatglm": _row(eps=1e-5, fraction=0.5, interleaved=True),
    "codegen": _row(eps=1e-5, activation="gelu_new", interleaved=True),
    "cohere": _row(500_000.0, eps=1e-5),
    "cohere2": _EPS5,
    "cwm": _row(1e6, eps=1e-5),
    "dbrx": _EPS5,
    "ernie4_5": _row(500_000.0, eps=1e-5),
    "ernie4_5_moe": _row(500_000.0, eps=1e-5),
    "exaone": _row(500_000.0, eps=1e-5),
    "exaone4": _EPS5,
    "exaone_moe": _EPS5,
    "falcon": _row(eps=1e-5, activation="gelu"),
    "flex_olmo": _row(500_000.0),
    "gemma": _row(activation=_TANH),
    "gemma2": _row(activation=_TANH),
    "gemma3_text": _row(1e6, activation=_TANH, local_base=10_000.0),
    "gemma4_text": _row(1e6, activation=_TANH, local_base=10_000.0),
    "glm": _row(eps=1.5625e-7, fraction=0.5),
    "glm4": _row(eps=1.5625e-7, fraction=0.5),
    "glm4_moe": _row(eps=1e-5, fraction=0.5),
    "glm4_moe_lite": _EPS5,
    "glm4v_moe_text": _row(eps=1e-5, fraction=0.5),
    "glm4v_text": _EPS5,
    "gpt2": Defaults(rope=None, eps=1e-5, activation="gelu_new", dropout=0.1, attention_dropout=0.1),
    "gpt_bigcode": Defaults(rope=None, eps=1e-5, activation=_TANH, dropout=0.1, attention_dropout=0.1),
    "gpt_neo": Defaults(rope=None, eps=1e-5, activation="gelu_new"),
    "gpt_neox": _row(eps=1e-5, activation="gelu", fraction=0.25),
    "gpt_oss": _row(150_000.0, eps=1e-5),
    "gptj": _row(eps=1e-5, activation="gelu_new", interleaved=True),
    "granite_swa": _EPS5,
    "helium": _row(100_000.0, eps=1e-8),
    "hunyuan_v1_dense": _EPS5,
    "hunyuan_v1_moe": _EPS5,
    "hy_v3": _row(11_158_840.0, eps=1e-5, std=0.006),
    "internlm2": _EPS5,
    "internlm3": _EPS5,
    "iquestcoder": _EPS5,
    "jais2": _row(eps=1e-5, activation="relu2"),
    "llama4_text": _row(500_000.0, eps=1e-5, skip_every=4),
    "mimo_v2_flash": _row(5e6, eps=1e-5, fraction=0.334, local_base=10_000.0),
    "minicpm3": _row(eps=1e-5, std=0.1),
    "minimax_m2": _row(5e6),
    "ministral3": _row(1e6, eps=1e-5),
    "mixtral": _row(1e6, eps=1e-5),
    "mpt": Defaults(rope=None, eps=1e-5, activation="gelu"),
    "nanochat": _row(activation="relu2"),
    "nemotron": _row(eps=1e-5, activation="relu2", std=0.0134, fraction=0.5),
    "olmo": _EPS5,
    "olmo2": _EPS5,
    "olmo3": _row(500_000.0, eps=1e-5),
    "olmoe": _EPS5,
    "opt": Defaults(rope=None, eps=1e-5, activation="relu", dropout=0.1),
    "persimmon": _row(eps=1e-5, activation="relu2", fraction=0.5),
    "phi": _row(eps=1e-5, activation="gelu_new", fraction=0.5),
    "phi3": _EPS5,
    "phimoe": _row(1e6, eps=1e-5),
    "qwen2_5_vl_text": _row(1e6, eps=1e-5),
    "qwen2_vl_text": _row(1e6, eps=1e-5),
    "qwen3_omni_moe_text": _row(1e6),
    "qwen3_vl_moe_text": _row(500_000.0),
    "qwen3_vl_text": _row(500_000.0),
    "sarvam_mla": _row(std=0.006),
    "sarvam_moe": _row(8e6, std=0.006),
    "seed_oss": _row(dropout=0.1, attention_dropout=0.1),
    "smollm3": _row(2e6, skip_every=4),
    "solar_open": _row(1e6, eps=1e-5),
    "stablelm": _row(eps=1e-5, fraction=0.25),
    "starcoder2": _row(eps=1e-5, activation=_TANH, std=0.018042),
    "step3p5": _EPS5,
    "step3p7": _EPS5,
    "vaultgemma": _row(activation=_TANH),
    "youtu": _row(std=0.01976423537605237),
}
