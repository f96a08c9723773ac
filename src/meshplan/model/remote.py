"""Architectures whose code is published beside the weights and is not in ``transformers``.

``chatglm`` is ChatGLM 2 and 3 and GLM-4-9B, ``qwen`` the first Qwen.
"""

from __future__ import annotations

from meshplan.model.decoder import hidden_size, layer_count
from meshplan.model.fields import MAX_HEADS, MAX_TOKENS, MAX_VOCAB, Fields
from meshplan.model.layers import Attention, Layer, Mlp
from meshplan.model.model import Model


def read_chatglm(f: Fields) -> Model:
    """ChatGLM 2 and 3 (``modeling_chatglm.py`` of THUDM/chatglm3-6b)."""
    if not f.flag("rmsnorm", default=True) or not f.flag("post_layer_norm", default=True):
        raise f.fail("a ChatGLM without RMSNorm or without a last norm is not known")
    heads = f.integer("num_attention_heads", high=MAX_HEADS)
    grouped = f.flag("multi_query_attention", default=False)
    kv_heads = f.integer("multi_query_group_num", high=MAX_HEADS) if grouped else heads
    if heads % kv_heads:
        raise f.fail(f"num_attention_heads {heads} is not a multiple of multi_query_group_num {kv_heads}")
    bias = f.flag("add_bias_linear", default=False)
    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=f.integer("kv_channels", high=MAX_HEADS),
            qkv_bias=bias or f.flag("add_qkv_bias", default=False),
            out_bias=bias,
        ),
        mlp=Mlp(width=f.integer("ffn_hidden_size"), bias=bias),
    )
    return _equal_layers(f, layer, f.integer("padded_vocab_size", high=MAX_VOCAB), "seq_length")


def read_qwen(f: Fields) -> Model:
    """The first Qwen (``modeling_qwen.py`` of Qwen/Qwen-7B); ``intermediate_size`` counts gate and value."""
    heads = f.integer("num_attention_heads", high=MAX_HEADS)
    width, rest = divmod(f.integer("intermediate_size", low=2), 2)
    if rest:
        raise f.fail(f"intermediate_size {2 * width + 1} is odd, but holds two equal halves")
    bias = not f.flag("no_bias", default=True)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=f.integer("kv_channels", default=128, high=MAX_HEADS),
        qkv_bias=True,
        out_bias=bias,
    )
    layer = Layer(attention=attention, mlp=Mlp(width=width, bias=bias))
    return _equal_layers(f, layer, f.integer("vocab_size", high=MAX_VOCAB), "seq_length")


def _equal_layers(f: Fields, layer: Layer, vocab: int, max_seq: str) -> Model:
    return Model(
        name="",
        hidden=hidden_size(f),
        vocab=vocab,
        layers=(layer,) * layer_count(f),
        tied_embeddings=f.flag("tie_word_embeddings", default=False),
        max_seq=f.optional(max_seq, high=MAX_TOKENS),
    )
