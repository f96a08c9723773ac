"""Multi-head latent attention: DeepSeek-V2 and its kin."""

from __future__ import annotations

from typing import Final

from meshplan.model.decoder import hidden_size, layer_count, mtp_count, read_mlps, switch
from meshplan.model.families import Experts, Family
from meshplan.model.fields import MAX_HEADS, MAX_HIDDEN, MAX_TOKENS, MAX_VOCAB, Fields
from meshplan.model.layers import LatentAttention, Layer
from meshplan.model.model import Model
from meshplan.model.patterns import first_dense

DEEPSEEK: Final = Experts(
    count=("n_routed_experts", "num_local_experts"),
    shared_count="n_shared_experts",
    balance_bias=True,
    sparse=first_dense(default=0),
)
LATENT: Final[dict[str, Family]] = {
    "deepseek_v2": Family(
        qkv_bias=("attention_bias", False),
        mlp_bias=("mlp_bias", False),
        experts=Experts(
            count=DEEPSEEK.count, shared_count=DEEPSEEK.shared_count, sparse=first_dense(default=0)
        ),
    ),
    "deepseek_v3": Family(qkv_bias=("attention_bias", False), experts=DEEPSEEK),
    "kimi_k2": Family(qkv_bias=("attention_bias", False), experts=DEEPSEEK),
    "glm4_moe_lite": Family(
        qkv_bias=("attention_bias", False),
        experts=Experts(
            count=DEEPSEEK.count,
            shared_count=DEEPSEEK.shared_count,
            balance_bias=True,
            sparse=first_dense(default=1),
        ),
    ),
    "mistral4": Family(qkv_bias=("attention_bias", False), experts=DEEPSEEK),
    "sarvam_mla": Family(
        qkv_bias=("attention_bias", False),
        experts=Experts(
            count=("n_routed_experts", "num_experts", "num_local_experts"),
            shared_count="n_shared_experts",
            balance_bias=True,
            sparse=first_dense(default=1),
        ),
    ),
    "youtu": Family(qkv_bias=("attention_bias", False), tied=True),
    "minicpm3": Family(qkv_bias=("attention_bias", False), tied=True),
}


def read_latent(f: Fields) -> Model:
    """Multi-head latent attention in every layer, dense or MoE after it (DeepSeek-V2 and its kin)."""
    family = LATENT[f.word("model_type")]
    count = layer_count(f)
    bias = switch(f, family.qkv_bias)
    attention = LatentAttention(
        heads=f.integer("num_attention_heads", high=MAX_HEADS),
        q_rank=f.optional("q_lora_rank", high=MAX_HIDDEN),
        kv_rank=f.integer("kv_lora_rank", high=MAX_HIDDEN),
        nope_dim=f.integer("qk_nope_head_dim", high=MAX_HEADS),
        rope_dim=f.integer("qk_rope_head_dim", high=MAX_HEADS),
        v_dim=f.integer("v_head_dim", high=MAX_HEADS),
        qkv_bias=bias,
        out_bias=bias,
    )
    layers = tuple(Layer(attention=attention, mlp=mlp) for mlp in read_mlps(f, family, count))
    return Model(
        name="",
        hidden=hidden_size(f),
        vocab=f.integer("vocab_size", high=MAX_VOCAB),
        layers=layers,
        tied_embeddings=f.flag("tie_word_embeddings", default=family.tied),
        mtp=(layers[-1],) * mtp_count(f),
        max_seq=f.optional("max_position_embeddings", high=MAX_TOKENS),
    )
