"""Layer kinds that are not known yet, told by the fields that give them away.

A configuration is refused with the name of the kind rather than planned as something it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SIGNS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("encoder-decoder layers", ("encoder_layers", "num_decoder_layers", "decoder_layers")),
    ("Kimi delta attention (linear attention)", ("linear_attn_config", "kda_layers")),
    ("gated DeltaNet linear attention", ("linear_num_value_heads", "linear_num_key_heads")),
    ("lightning (linear) attention", ("attn_type_list", "layer_group_size", "linear_attn_impl")),
    (
        "Mamba state-space layers",
        (
            "mamba_num_heads",
            "mamba_d_state",
            "mamba_n_heads",
            "ssm_state_size",
            "ssm_cfg",
            "mamba_expand",
            "d_state",
        ),
    ),
    (
        "recurrent (RG-LRU, RWKV or xLSTM) layers",
        ("lru_width", "wkv_head_size", "mlstm_chunkwise"),
    ),
    ("short-convolution layers", ("conv_L_cache",)),
    ("compressed sparse attention", ("compress_ratios", "compress_rates")),
    ("sparse attention with an indexer", ("index_topk", "index_n_heads", "sparse_attention_config")),
    ("sparse attention in blocks", ("sparse_topk", "nsa_config", "moba_chunk_size")),
    ("hyper-connections", ("hc_mult", "hc_config")),
    ("attention residuals between blocks", ("attn_res_block_size",)),
    ("latent mixture-of-experts", ("moe_latent_size", "routed_expert_hidden_size")),
    ("shortcut mixture-of-experts with identity experts", ("zero_expert_num",)),
    ("per-layer embeddings", ("hidden_size_per_layer_input",)),
    ("layers that share keys and values", ("num_kv_shared_layers", "use_cla")),
    ("cross-attention layers", ("cross_attention_layers", "add_cross_attention")),
    ("n-gram memory (Engram)", ("engram_config", "engram_layers")),
)
_NAMES: Final = (
    ("mamba", "Mamba state-space layers"),
    ("rwkv", "RWKV layers"),
    ("xlstm", "xLSTM layers"),
    ("bert", "bidirectional encoder layers"),
    ("t5", "encoder-decoder layers"),
)
"""Words in a ``model_type`` that tell as much."""
_LAYER_LISTS: Final = ("layer_types", "layers_block_type", "block_types")
_KNOWN_LAYERS: Final = {"full_attention", "sliding_attention", "chunked_attention", "attention"}


def unknown_kinds(config: Mapping[str, Any]) -> list[str]:
    """The kinds of layer in ``config`` that are not known, each with the field that says so."""
    found = []
    for kind, names in _SIGNS:
        signs = [name for name in names if config.get(name)]
        if signs:
            found.append(f"{kind} ({signs[0]})")
    if not found:
        kind = str(config.get("model_type"))
        found = [f"{what} (model_type)" for word, what in _NAMES if word in kind][:1]
    for name in _LAYER_LISTS:
        layers = config.get(name)
        if isinstance(layers, list):
            odd = sorted({x for x in layers if isinstance(x, str)} - _KNOWN_LAYERS)
            if odd and not found:
                found.append(f"{odd[0][:60].replace('_', ' ')} layers ({name})")
    return found
