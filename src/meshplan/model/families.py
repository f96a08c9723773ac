"""What each `model_type` builds: the facts that tell one decoder family from another, as a table.

A family here has attention with grouped KV heads and a gated, plain or MoE block in every layer; models
with latent attention or a layout of their own are in ``adapters``. Each row follows the class of that
name in ``transformers`` (``configuration_*.py`` for defaults, ``modeling_*.py`` for weights), or, where
the row says so, the model code published with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from meshplan.model import patterns as p
from meshplan.model.layers import QkNorm

Switch = bool | tuple[str, bool]
"""Always so, or as this field says, with its default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """How a family describes its mixtures: names of fields, then facts."""

    count: tuple[str, ...]
    topk: tuple[str, ...] = ("num_experts_per_tok",)
    topk_default: int | None = None
    width: tuple[str, ...] = ("moe_intermediate_size",)
    shared_width: str = ""
    """Field with the total width of the shared experts; absent: none."""
    shared_count: str = ""
    """Field with the number of shared experts, each as wide as a routed one."""
    shared_always: bool = False
    """One shared expert as wide as a routed one."""
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    balance_bias: Switch = False
    sparse: p.Sparse = p.all_sparse


_FULL: Final = p.mixed(p.full_layers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One row: the layer and the ends of the model, where they differ from Llama."""

    kv_heads: int | None = None
    """Default of ``num_key_value_heads``; ``None``: as many as query heads."""
    head_dim: int | None = None
    """Default of ``head_dim``; ``None``: hidden size over heads."""
    fixed_head_dim: bool = False
    """The head is always hidden size over heads; a ``head_dim`` field is not read."""
    heads: int | None = None
    """Default of ``num_attention_heads`` where published files leave it out."""
    vocab: int | None = None
    """Default of ``vocab_size`` where published files leave it out."""
    qkv_bias: Switch = False
    out_bias: Switch = False
    mlp_bias: Switch = False
    head_bias: Switch = False
    gated: bool = True
    qk_norm: QkNorm = "none"
    qk_norm_if: Switch = True
    qk_norm_bias: bool = False
    head_gate: bool = False
    gate: bool = False
    sinks: bool = False
    norms: int = 2
    norms_if: Switch = True
    """Unless so, two norms a layer whatever ``norms`` says."""
    extra_norm: int = 0
    norm_bias: bool = False
    final_norm: bool = True
    parallel: Switch = False
    """Attention and MLP side by side; when a field says so, one norm serves both."""
    tied: bool = False
    """Default of ``tie_word_embeddings``."""
    width: tuple[str, ...] = ("intermediate_size",)
    """Fields that may hold the width of the dense MLP."""
    windows: p.Windows = _FULL
    experts: Experts | None = None


_MAYBE: Final = ("attention_bias", False)
_BIASED: Final = ("attention_bias", True)
_LOCAL: Final = ("num_local_experts", "num_experts")
_EXPERTS: Final = ("num_experts", "num_local_experts")
_WIDTH: Final = ("intermediate_size",)
_ROUTED: Final = ("n_routed_experts", "num_experts", "num_local_experts")


def _plain(**facts: Any) -> Family:
    """A family whose attention projections have biases if ``attention_bias`` says so."""
    return Family(qkv_bias=_MAYBE, out_bias=_MAYBE, **facts)


LLAMA = _plain(mlp_bias=("mlp_bias", False))
_QWEN2 = Family(qkv_bias=True, windows=p.mixed(p.qwen_layers))
_QWEN3 = _plain(head_dim=128, qk_norm="head", windows=p.mixed(p.qwen_layers))
_QWEN3_MOE = _plain(
    qk_norm="head",
    windows=p.qwen3_moe_windows,
    experts=Experts(count=_EXPERTS, sparse=p.qwen_sparse),
)
_GEMMA = _plain(head_dim=256, tied=True)
_GEMMA2 = _plain(
    kv_heads=4,
    head_dim=256,
    norms=4,
    tied=True,
    windows=p.every_nth_full(2, "_", 4096),
)
_GEMMA3 = _plain(
    heads=8,
    kv_heads=4,
    vocab=262208,
    head_dim=256,
    qk_norm="head",
    norms=4,
    tied=True,
    windows=p.every_nth_full(6, window=4096),
)
_OLMO2 = _plain(qk_norm="full")
_GLM = Family(kv_heads=2, head_dim=128, qkv_bias=_BIASED)
_GLM_MOE = Family(
    qkv_bias=_MAYBE,
    qk_norm="head",
    qk_norm_if=("use_qk_norm", False),
    experts=Experts(
        count=_ROUTED, shared_count="n_shared_experts", balance_bias=True, sparse=p.first_dense(default=1)
    ),
)
_STARCODER2 = Family(
    kv_heads=2,
    qkv_bias=("use_bias", True),
    out_bias=("use_bias", True),
    mlp_bias=("use_bias", True),
    gated=False,
    norm_bias=True,
    tied=True,
    windows=p.everywhere(),
)
_LLAMA4 = _plain(
    head_dim=128,
    width=("intermediate_size_mlp", "intermediate_size"),
    windows=p.mixed(p.llama4_layers),
    experts=Experts(
        count=_LOCAL,
        topk_default=1,
        width=_WIDTH,
        shared_always=True,
        sparse=p.llama4_sparse,
    ),
)
_GRANITE_MOE = _plain(
    experts=Experts(count=_LOCAL, topk_default=2, width=_WIDTH, shared_width="shared_intermediate_size"),
)
_SARVAM = Experts(
    count=_ROUTED,
    topk_default=6,
    shared_count="n_shared_experts",
    balance_bias=True,
    sparse=p.first_dense(default=1),
)
_STEP = _plain(
    kv_heads=8,
    head_dim=128,
    mlp_bias=("mlp_bias", False),
    qk_norm="head",
    head_gate=True,
    experts=Experts(
        count=("n_routed_experts", "moe_num_experts", "num_experts"),
        topk=("num_experts_per_tok", "moe_top_k"),
        shared_width="share_expert_dim",
        balance_bias=("use_moe_router_bias", True),
        sparse=p.step_sparse,
    ),
)

FAMILIES: Final[dict[str, Family]] = {
    "llama": LLAMA,
    "granite": LLAMA,
    "mistral": Family(kv_heads=8, windows=p.everywhere(4096)),
    "ministral": Family(windows=p.mixed(p.ministral_layers, 4096)),
    "ministral3": Family(kv_heads=8, windows=p.everywhere()),
    "mixtral": Family(
        kv_heads=8,
        windows=p.everywhere(),
        experts=Experts(count=_LOCAL, topk_default=2, width=_WIDTH),
    ),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _QWEN2,  # Qwen2 with a multi-token-prediction layer (modeling_mimo.py of XiaomiMiMo/MiMo-7B-Base)
    "qwen2_moe": Family(
        qkv_bias=("qkv_bias", True),
        windows=p.mixed(p.qwen2_moe_layers),
        experts=Experts(
            count=_EXPERTS,
            shared_width="shared_expert_intermediate_size",
            shared_gate=True,
            sparse=p.qwen_sparse,
        ),
    ),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "vaultgemma": _plain(
        kv_heads=4,
        head_dim=256,
        tied=True,
        windows=p.every_nth_full(2, "_", 4096),
    ),
    "phi": Family(
        fixed_head_dim=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        gated=False,
        qk_norm="head",
        qk_norm_if=("qk_layernorm", False),
        qk_norm_bias=True,
        norms=1,
        norm_bias=True,
        parallel=True,
    ),
    "phi3": Family(windows=p.everywhere()),
    "phimoe": _plain(
        kv_heads=8,
        head_bias=("lm_head_bias", False),
        norm_bias=True,
        windows=p.everywhere(),
        experts=Experts(count=_LOCAL, topk_default=2, width=_WIDTH),
    ),
    "olmo": _plain(norms=0, final_norm=False),
    "olmo2": _OLMO2,
    "olmo3": _plain(
        qk_norm="full",
        windows=p.every_nth_full(4, "_", 4096),
    ),
    "olmoe": _plain(
        qk_norm="full",
        experts=Experts(count=_EXPERTS, topk_default=8, width=_WIDTH),
    ),
    "flex_olmo": _plain(
        qk_norm="full",
        experts=Experts(count=_EXPERTS, topk_default=5, width=_WIDTH),
    ),
    "nemotron": _plain(
        mlp_bias=("mlp_bias", False),
        gated=False,
        norm_bias=True,
    ),
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "cohere": _plain(
        fixed_head_dim=True,
        qk_norm="full",
        qk_norm_if=("use_qk_norm", False),
        norms=1,
        parallel=True,
        tied=True,
    ),
    "cohere2": _plain(
        fixed_head_dim=True,
        norms=1,
        parallel=True,
        tied=True,
        windows=p.every_nth_full(4, window=4096),
    ),
    "starcoder2": _STARCODER2,
    "stablelm": Family(
        fixed_head_dim=True,
        qkv_bias=("use_qkv_bias", False),
        qk_norm="full",
        qk_norm_if=("qk_layernorm", False),
        norm_bias=True,
        parallel=("use_parallel_residual", False),
    ),
    "persimmon": Family(
        fixed_head_dim=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        qk_norm="head",
        qk_norm_if=("qk_layernorm", True),
        qk_norm_bias=True,
        norm_bias=True,
    ),
    "arcee": _plain(mlp_bias=("mlp_bias", False), gated=False),
    "apertus": _plain(
        mlp_bias=("mlp_bias", False),
        gated=False,
        qk_norm="head",
        extra_norm=2,  # the two learned scalars of its activation function
    ),
    "exaone4": Family(qk_norm="head", windows=p.mixed(p.exaone_layers, 4096)),
    "helium": Family(kv_heads=20, head_dim=128, qkv_bias=_MAYBE, mlp_bias=("mlp_bias", False)),
    "jais2": Family(
        qkv_bias=_BIASED, out_bias=_BIASED, mlp_bias=("mlp_bias", True), gated=False, norm_bias=True
    ),
    "nanochat": _plain(gated=False, norms=0, final_norm=False),
    "glm": _GLM,
    "glm4": Family(kv_heads=2, head_dim=128, qkv_bias=_BIASED, norms=4),
    "glm4v_text": Family(kv_heads=2, qkv_bias=True, norms=4),
    "glm4_moe": _GLM_MOE,
    "glm4v_moe_text": replace(_GLM_MOE, qkv_bias=_BIASED),
    "dots1": _plain(
        qk_norm="head",
        windows=p.mixed(p.dots_layers, 4096),
        experts=Experts(
            count=_ROUTED, shared_count="n_shared_experts", balance_bias=True, sparse=p.first_dense(default=0)
        ),
    ),
    "gpt_oss": Family(
        kv_heads=8,
        head_dim=64,
        qkv_bias=_BIASED,
        out_bias=_BIASED,
        sinks=True,
        windows=p.every_nth_full(2, "_", 128),
        experts=Experts(
            count=_LOCAL,
            topk=("num_experts_per_tok", "experts_per_token"),
            topk_default=4,
            width=_WIDTH,
            bias=True,
            router_bias=True,
        ),
    ),
    "minimax_m2": Family(
        kv_heads=8,
        head_dim=128,
        qk_norm="full",
        experts=Experts(count=_LOCAL, width=_WIDTH, topk_default=8, balance_bias=True),
    ),
    "llama4_text": _LLAMA4,
    "ernie4_5": Family(
        kv_heads=2,
        head_dim=128,
        qkv_bias=("use_bias", False),
        out_bias=("use_bias", False),
        mlp_bias=("use_bias", False),
        tied=True,
    ),
    "ernie4_5_moe": Family(
        kv_heads=4,
        qkv_bias=("use_bias", False),
        out_bias=("use_bias", False),
        mlp_bias=("use_bias", False),
        head_bias=("use_bias", False),
        tied=True,
        experts=Experts(
            count=("moe_num_experts",),
            topk=("moe_k",),
            topk_default=6,
            shared_count="moe_num_shared_experts",
            router_bias=True,  # the balancing bias is a parameter here
            sparse=p.ernie_sparse,
        ),
    ),
    "smollm3": _plain(
        kv_heads=4,
        mlp_bias=("mlp_bias", False),
        tied=True,
        windows=p.mixed(p.smollm_layers),
    ),
    "seed_oss": Family(
        kv_heads=8,
        head_dim=128,
        qkv_bias=_BIASED,
        out_bias=("attention_out_bias", False),
        mlp_bias=("mlp_bias", False),
    ),
    "hunyuan_v1_dense": _plain(qk_norm="head"),
    "hunyuan_v1_moe": _plain(
        qk_norm="head",
        experts=Experts(count=("num_experts",), topk=("moe_topk",), width=_WIDTH, shared_always=True),
    ),
    "internlm2": Family(qkv_bias=("bias", True), out_bias=("bias", True)),
    "internlm3": Family(kv_heads=2, qkv_bias=("qkv_bias", False), mlp_bias=("bias", False)),
    "afmoe": _plain(
        head_dim=128,
        qk_norm="head",
        gate=True,
        norms=4,
        windows=p.every_nth_full(4, "global_attn_every_n_layers", 1024),
        experts=Experts(
            count=("num_experts",),
            shared_count="num_shared_experts",
            router_bias=True,  # the balancing bias is a parameter here
            sparse=p.first_dense("num_dense_layers", 1),
        ),
    ),
    "step3p5": _STEP,
    "step3p7": _STEP,
    "exaone": Family(kv_heads=8, qkv_bias=_MAYBE, out_bias=_MAYBE, mlp_bias=("mlp_bias", False)),
    "exaone_moe": Family(
        qk_norm="head",
        windows=p.mixed(p.exaone_layers, 4096),
        experts=Experts(
            count=_EXPERTS,
            topk_default=8,
            shared_count="num_shared_experts",
            balance_bias=True,
            sparse=p.first_dense(default=1),
        ),
    ),
    "cwm": Family(
        kv_heads=8, head_dim=128, windows=p.mixed(p.first_of_four, 8192), mlp_bias=("mlp_bias", False)
    ),
    "hyperclovax": _plain(mlp_bias=("mlp_bias", False), norms=4, norms_if=("use_post_norm", True)),
    "iquestcoder": _plain(kv_heads=8, head_dim=128, mlp_bias=("mlp_bias", False)),
    "granite_swa": _plain(
        kv_heads=4, mlp_bias=("mlp_bias", False), sinks=True, tied=True, windows=p.mixed(p.first_of_four, 128)
    ),
    "granitemoe_swa": _plain(sinks=True, windows=p.mixed(p.first_of_four, 128), experts=_GRANITE_MOE.experts),
    "solar_open": Family(
        kv_heads=8,
        head_dim=128,
        qkv_bias=_MAYBE,
        experts=Experts(count=_ROUTED, topk_default=8, shared_count="n_shared_experts", balance_bias=True),
    ),
    "sarvam_moe": Family(
        kv_heads=4,
        head_dim=64,
        qkv_bias=_MAYBE,
        qk_norm="head",
        qk_norm_if=("use_qk_norm", True),
        experts=_SARVAM,
    ),
    "hy_v3": _plain(
        kv_heads=8,
        head_dim=128,
        mlp_bias=("mlp_bias", False),
        qk_norm="head",
        experts=Experts(
            count=_EXPERTS,
            topk_default=8,
            shared_count="num_shared_experts",
            balance_bias=True,
            sparse=p.first_dense(default=1),
        ),
    ),
    "mellum": _plain(
        kv_heads=4,
        head_dim=128,
        qk_norm="head",
        windows=p.mixed(p.full_layers, 1024),
        experts=Experts(count=_EXPERTS, topk_default=8, sparse=p.first_dense(default=0)),
    ),
    "deepseek": _plain(  # modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base
        experts=Experts(count=_ROUTED, shared_count="n_shared_experts", sparse=p.first_dense(default=0))
    ),
    "laguna": _plain(
        kv_heads=8,
        head_dim=128,
        qk_norm="head",
        head_gate=True,
        windows=p.mixed(p.full_layers, 512),
        experts=Experts(
            count=_EXPERTS,
            topk_default=8,
            shared_width="shared_expert_intermediate_size",
            router_bias=True,  # the balancing bias is a parameter here
            sparse=p.first_dense(default=1),
        ),
    ),
    "kolibri1": Family(
        kv_heads=4,
        head_dim=128,
        qk_norm="head",
        norms=4,
        windows=p.every_nth_full(5, "_", 513),
        experts=Experts(
            count=_EXPERTS,
            topk_default=6,
            shared_width="shared_expert_intermediate_size",
            balance_bias=True,
        ),
    ),
    "baichuan": Family(),  # modeling_baichuan.py of baichuan-inc/Baichuan2-7B-Base
    "minicpm": replace(LLAMA, tied=True),  # modeling_minicpm.py of openbmb/MiniCPM-2B-sft-bf16
}
