"""Which function reads which ``model_type``, for those that are not a row of ``families``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from meshplan.model import gpt, latent, remote, uneven
from meshplan.model.fields import Fields
from meshplan.model.model import Model

Adapter = Callable[[Fields], Model]

ADAPTERS: Final[Mapping[str, Adapter]] = {
    "bloom": gpt.read_bloom,
    "chatglm": remote.read_chatglm,
    "codegen": gpt.read_gptj,
    "falcon": gpt.read_falcon,
    "gpt2": gpt.read_gpt2,
    "gpt_bigcode": gpt.read_gpt_bigcode,
    "gpt_neo": gpt.read_gpt_neo,
    "gpt_neox": gpt.read_gpt_neox,
    "gptj": gpt.read_gptj,
    "mpt": gpt.read_mpt,
    "opt": gpt.read_opt,
    "gemma4_text": uneven.read_gemma4,
    "mimo_v2_flash": uneven.read_mimo_v2,
    "granitemoehybrid": uneven.read_granite_hybrid,
    "dbrx": uneven.read_dbrx,
    "qwen": remote.read_qwen,
    "nemotron-nas": uneven.read_deci,
    **dict.fromkeys(latent.LATENT, latent.read_latent),
}
