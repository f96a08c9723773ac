"""What each `model_type` builds: the facts that tell one decoder family from another, as a table.

A family here has attention with grouped KV heads and a gated, plain or MoE block in every layer; models
with latent attention or a layout of their own are in ``adapters``. Each row follows the class of that
name in ``transformers`` (``configuration_*.py`` for defaults, ``modeling_*.py`` for weights), or, where
the row says so, the model code published with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from meshplan.model.fields import MAX_LAYERS, MAX_TOKENS, Fields
from meshplan.model.layers import QkNorm

Switch = bool | tuple[str, bool]
"""Always so, or as this field says, with its default."""
Window = tuple[int, bool] | None
"""Tokens a query sees and whether they are a chunk; ``None``: all earlier tokens."""
Windows = Callable[[Fields, int], Sequence[Window]]
Sparse = Callable[[Fields, int], Sequence[bool]]


def everywhere(default: int | None = None) -> Windows:
    """``sliding_window`` in all layers; ``default`` when the field is absent, full attention when null."""

    def windows(f: Fields, layers: int) -> Sequence[Window]:
        present = "sliding_window" in f.data
        width = f.optional("sliding_window") if present else default
        window: Window = None if width is None else (width, False)
        return [window] * layers

    return windows


def mixed(pattern: Callable[[Fields, int], Sequence[str]], window: int | None = None) -> Windows:
    """Layer kinds from ``layer_types``, or from ``pattern``; ``window`` is the class default."""

    def windows(f: Fields, layers: int) -> Sequence[Window]:
        kinds = f.words("layer_types") if f.has("layer_types") else pattern(f, layers)
        extra = f.data.get("num_nextn_predict_layers")
        if isinstance(extra, int) and len(kinds) == layers + extra:
            kinds = kinds[:layers]  # Step-3.5 lists its multi-token-prediction layers as well
        if len(kinds) != layers:
            raise f.fail(f"layer_types has {len(kinds)} entries for {layers} layers")
        known: dict[str, Window] = {"full_attention": None, "attention": None}
        if "sliding_attention" in kinds:
            width = f.integer("sliding_window", default=window, high=MAX_TOKENS)
            known["sliding_attention"] = (width, False)
        if "chunked_attention" in kinds:
            known["chunked_attention"] = (
                f.integer("attention_chunk_size", default=8192, high=MAX_TOKENS),
                True,
            )
        for kind in kinds:
            if kind not in known:
                raise f.fail(f"layers of the kind '{kind[:60]}' are not known (layer_types)")
        return [known[kind] for kind in kinds]

    return windows


def every_nth_full(
    n: int, field: str = "sliding_window_pattern", window: int | None = None, *, last_full: bool = False
) -> Windows:
    """Sliding layers but for every n-th, and the last one if ``last_full``; ``field`` may say another n."""

    def pattern(f: Fields, layers: int) -> Sequence[str]:
        step = f.integer(field, default=n, high=MAX_LAYERS)
        full = [(i + 1) % step == 0 or (last_full and i == layers - 1) for i in range(layers)]
        return ["full_attention" if is_full else "sliding_attention" for is_full in full]

    return mixed(pattern, window)


def _full(f: Fields, layers: int) -> Sequence[str]:
    return ["full_attention"] * layers


def _qwen(f: Fields, layers: int) -> Sequence[str]:
    """The layers from ``max_window_layers`` on slide, if ``use_sliding_window``."""
    if not f.flag("use_sliding_window", default=False) or not f.has("sliding_window"):
        return _full(f, layers)
    first = f.integer("max_window_layers", default=28, low=0)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]


def _qwen2_moe(f: Fields, layers: int) -> Sequence[str]:
    if not f.flag("use_sliding_window", default=False):
        return _full(f, layers)
    end = f.integer("max_window_layers", default=28, low=0)
    return ["sliding_attention" if i % 2 == 0 and i < end else "full_attention" for i in range(layers)]


def _qwen3_moe_windows(f: Fields, layers: int) -> Sequence[Window]:
    return everywhere()(f, layers) if f.flag("use_sliding_window", default=False) else [None] * layers


def _dots(f: Fields, layers: int) -> Sequence[str]:
    first = f.integer("max_window_layers", default=62, low=0)
    slides = f.data.get("sliding_window", 4096) is not None
    return ["sliding_attention" if slides and i >= first else "full_attention" for i in range(layers)]


def _exaone(f: Fields, layers: int) -> Sequence[str]:
    if "sliding_window" in f.data and not f.has("sliding_window"):
        return _full(f, layers)
    pattern = f.data.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"} or len(pattern) > MAX_LAYERS:
            raise f.fail("sliding_window_pattern must be a number or a string of L and G")
        kinds = [pattern[i % len(pattern)] == "L" and i < layers - 1 for i in range(layers)]
    else:
        step = f.integer("sliding_window_pattern", default=4, high=MAX_LAYERS)
        kinds = [(i + 1) % step != 0 for i in range(layers)]
    return ["sliding_attention" if local else "full_attention" for local in kinds]


def _ministral(f: Fields, layers: int) -> Sequence[str]:
    slides = f.data.get("sliding_window", 4096) is not None
    return ["sliding_attention" if slides else "full_attention"] * layers


def _smollm(f: Fields, layers: int) -> Sequence[str]:
    if not f.flag("use_sliding_window", default=False) or not f.has("sliding_window"):
        return _full(f, layers)
    return ["full_attention" if rope else "sliding_attention" for rope in _ropes(f, layers)]


def _llama4(f: Fields, layers: int) -> Sequence[str]:
    if "attention_chunk_size" in f.data and not f.has("attention_chunk_size"):
        return _full(f, layers)
    return ["chunked_attention" if rope else "full_attention" for rope in _ropes(f, layers)]


def _ropes(f: Fields, layers: int) -> Sequence[int]:
    """Which layers have a rotary embedding (``no_rope_layers`` marks those that have one)."""
    if f.has("no_rope_layers") and f.items("no_rope_layers"):
        f.items("no_rope_layers", layers)
        return f.integers("no_rope_layers")
    step = f.integer("no_rope_layer_interval", default=4, high=MAX_LAYERS)
    return [int((i + 1) % step != 0) for i in range(layers)]


def all_sparse(f: Fields, layers: int) -> Sequence[bool]:
    """Every layer is a mixture of experts."""
    return [True] * layers


def qwen_sparse(f: Fields, layers: int) -> Sequence[bool]:
    """Every ``decoder_sparse_step``-th layer, less ``mlp_only_layers``."""
    step = f.integer("decoder_sparse_step", default=1, high=MAX_LAYERS)
    dense = set(f.integers("mlp_only_layers")) if f.has("mlp_only_layers") else set()
    return [(i + 1) % step == 0 and i not in dense for i in range(layers)]


def first_dense(field: str = "first_k_dense_replace", default: int | None = None) -> Sparse:
    """The first layers are dense; then every ``moe_layer_freq``-th is a mixture.

    A list of layer kinds (``mlp_layer_types``, or ``moe_layer_freq`` as a list) wins.
    """

    def sparse(f: Fields, layers: int) -> Sequence[bool]:
        if f.has("mlp_layer_types"):
            kinds = f.words("mlp_layer_types")
            f.items("mlp_layer_types", layers)
            for kind in kinds:
                if kind not in ("dense", "sparse"):
                    raise f.fail(f"layers of the kind '{kind[:60]}' are not known (mlp_layer_types)")
            return [kind == "sparse" for kind in kinds]
        if isinstance(f.data.get("moe_layer_freq"), list):
            f.items("moe_layer_freq", layers)
            return [bool(x) for x in f.integers("moe_layer_freq", high=1)]
        dense = f.integer(field, default=default, low=0, high=MAX_LAYERS)
        step = f.integer("moe_layer_freq", default=1, high=MAX_LAYERS)
        return [i >= dense and i % step == 0 for i in range(layers)]

    return sparse


def step_sparse(f: Fields, layers: int) -> Sequence[bool]:
    """``moe_layers_enum``, a list or a string like ``3,4,5``; or all but the first layers."""
    listed = f.data.get("moe_layers_enum")
    if listed is None:
        return first_dense(default=3)(f, layers)
    names = listed.split(",") if isinstance(listed, str) else f.items("moe_layers_enum")
    chosen = {str(name).strip() for name in names}
    if not all(name.isdecimal() for name in chosen):
        raise f.fail("moe_layers_enum must list numbers of layers")
    return [str(i) in chosen for i in range(layers)]


def ernie_sparse(f: Fields, layers: int) -> Sequence[bool]:
    """From ``moe_layer_start_index`` to ``moe_layer_end_index``, every ``moe_layer_interval``-th."""
    step = f.integer("moe_layer_interval", default=1, high=MAX_LAYERS)
    start = f.integer("moe_layer_start_index", default=1, low=0, high=MAX_LAYERS)
    end = f.integer("moe_layer_end_index", default=-1, low=-1, high=MAX_LAYERS)
    last = layers - 1 if end == -1 else end
    return [(i + 1) % step == 0 and start <= i <= last for i in range(layers)]


def llama4_sparse(f: Fields, layers: int) -> Sequence[bool]:
    """``moe_layers``, or every ``interleave_moe_layer_step``-th layer."""
    if f.has("moe_layers"):
        chosen = set(f.integers("moe_layers"))
        return [i in chosen for i in range(layers)]
    step = f.integer("interleave_moe_layer_step", default=1, high=MAX_LAYERS)
    return [(i + 1) % step == 0 for i in range(layers)]


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
    sparse: Sparse = all_sparse


_FULL: Final = mixed(_full)


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
    extra_norm: int = 0
    norm_bias: bool = False
    final_norm: bool = True
    parallel: Switch = False
    """Attention and MLP side by side; when a field says so, one norm serves both."""
    tied: bool = False
    """Default of ``tie_word_embeddings``."""
    width: tuple[str, ...] = ("intermediate_size",)
    """Fields that may hold the width of the dense MLP."""
    windows: Windows = _FULL
    experts: Experts | None = None


_MAYBE: Final = ("attention_bias", False)
_BIASED: Final = ("attention_bias", True)
_LOCAL: Final = ("num_local_experts", "num_experts")
_EXPERTS: Final = ("num_experts", "num_local_experts")
_WIDTH: Final = ("intermediate_size",)
_ROUTED: Final = ("n_routed_experts", "num_experts", "num_local_experts")

LLAMA = Family(qkv_bias=_MAYBE, out_bias=_MAYBE, mlp_bias=("mlp_bias", False))
_MISTRAL = Family(windows=everywhere())
_QWEN2 = Family(qkv_bias=True, windows=mixed(_qwen))
_QWEN3 = Family(head_dim=128, qkv_bias=_MAYBE, out_bias=_MAYBE, qk_norm="head", windows=mixed(_qwen))
_QWEN3_MOE = Family(
    qkv_bias=_MAYBE,
    out_bias=_MAYBE,
    qk_norm="head",
    windows=_qwen3_moe_windows,
    experts=Experts(count=_EXPERTS, sparse=qwen_sparse),
)
_GEMMA = Family(head_dim=256, qkv_bias=_MAYBE, out_bias=_MAYBE, tied=True)
_GEMMA2 = Family(
    kv_heads=4,
    head_dim=256,
    qkv_bias=_MAYBE,
    out_bias=_MAYBE,
    norms=4,
    tied=True,
    windows=every_nth_full(2, "_", 4096),
)
_GEMMA3 = Family(
    heads=8,
    kv_heads=4,
    vocab=262208,
    head_dim=256,
    qkv_bias=_MAYBE,
    out_bias=_MAYBE,
    qk_norm="head",
    norms=4,
    tied=True,
    windows=every_nth_full(6, window=4096),
)
_OLMO2 = Family(qkv_bias=_MAYBE, out_bias=_MAYBE, qk_norm="full")
_GLM = Family(kv_heads=2, head_dim=128, qkv_bias=_BIASED)
_GLM_MOE = Family(
    qkv_bias=_MAYBE,
    qk_norm="head",
    qk_norm_if=("use_qk_norm", False),
    experts=Experts(
        count=_ROUTED, shared_count="n_shared_experts", balance_bias=True, sparse=first_dense(default=1)
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
    windows=everywhere(),
)
_LLAMA4 = Family(
    qkv_bias=_MAYBE,
    out_bias=_MAYBE,
    width=("intermediate_size_mlp", "intermediate_size"),
    windows=mixed(_llama4),
    experts=Experts(
        count=_LOCAL,
        topk_default=1,
        width=_WIDTH,
        shared_always=True,
        sparse=llama4_sparse,
    ),
)
_GRANITE_MOE = Family(
    qkv_bias=_MAYBE,
    out_bias=_MAYBE,
    experts=Experts(count=_LOCAL, topk_default=2, width=_WIDTH, shared_width="shared_intermediate_size"),
)
_STEP = Family(
    kv_heads=8,
    head_dim=128,
    qkv_bias=_MAYBE,
    out_bias=_MAYBE,
    mlp_bias=("mlp_bias", False),
    qk_norm="head",
    head_gate=True,
    experts=Experts(
        count=("n_routed_experts", "moe_num_experts", "num_experts"),
        topk=("num_experts_per_tok", "moe_top_k"),
        shared_width="share_expert_dim",
        balance_bias=("use_moe_router_bias", True),
        sparse=step_sparse,
    ),
)

FAMILIES: Final[dict[str, Family]] = {
    "llama": LLAMA,
    "granite": LLAMA,
    "mistral": Family(kv_heads=8, windows=everywhere(4096)),
    "ministral": Family(windows=mixed(_ministral, 4096)),
    "ministral3": Family(kv_heads=8, windows=everywhere()),
    "mixtral": Family(
        kv_heads=8,
        windows=everywhere(),
        experts=Experts(count=_LOCAL, topk_default=2, width=_WIDTH),
    ),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _QWEN2,  # Qwen2 with a multi-token-prediction layer (modeling_mimo.py of XiaomiMiMo/MiMo-7B-Base)
    "qwen2_moe": Family(
        qkv_bias=("qkv_bias", True),
        windows=mixed(_qwen2_moe),
        experts=Experts(
            count=_EXPERTS,
            shared_width="shared_expert_intermediate_size",
            shared_gate=True,
            sparse=qwen_sparse,
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
    "vaultgemma": Family(
        kv_heads=4,
        head_dim=256,
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        tied=True,
        windows=every_nth_full(2, "_", 4096),
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
    "phi3": Family(windows=everywhere()),
    "phimoe": Family(
        kv_heads=8,
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        head_bias=("lm_head_bias", False),
        norm_bias=True,
        windows=everywhere(),
        experts=Experts(count=_LOCAL, topk_default=2, width=_WIDTH),
    ),
    "olmo": Family(qkv_bias=_MAYBE, out_bias=_MAYBE, norms=0, final_norm=False),
    "olmo2": _OLMO2,
    "olmo3": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        qk_norm="full",
        windows=every_nth_full(4, "_", 4096),
    ),
    "olmoe": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        qk_norm="full",
        experts=Experts(count=_EXPERTS, topk_default=8, width=_WIDTH),
    ),
    "flex_olmo": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        qk_norm="full",
        experts=Experts(count=_EXPERTS, topk_default=5, width=_WIDTH),
    ),
    "nemotron": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        mlp_bias=("mlp_bias", False),
        gated=False,
        norm_bias=True,
    ),
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "cohere": Family(
        fixed_head_dim=True,
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        qk_norm="full",
        qk_norm_if=("use_qk_norm", False),
        norms=1,
        parallel=True,
        tied=True,
    ),
    "cohere2": Family(
        fixed_head_dim=True,
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        norms=1,
        parallel=True,
        tied=True,
        windows=every_nth_full(4, window=4096),
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
    "arcee": Family(qkv_bias=_MAYBE, out_bias=_MAYBE, mlp_bias=("mlp_bias", False), gated=False),
    "apertus": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        mlp_bias=("mlp_bias", False),
        gated=False,
        qk_norm="head",
        extra_norm=2,  # the two learned scalars of its activation function
    ),
    "exaone4": Family(qk_norm="head", windows=mixed(_exaone, 4096)),
    "helium": Family(kv_heads=20, head_dim=128, qkv_bias=_MAYBE, mlp_bias=("mlp_bias", False)),
    "jais2": Family(
        qkv_bias=_BIASED, out_bias=_BIASED, mlp_bias=("mlp_bias", True), gated=False, norm_bias=True
    ),
    "nanochat": Family(qkv_bias=_MAYBE, out_bias=_MAYBE, gated=False, norms=0, final_norm=False),
    "glm": _GLM,
    "glm4": Family(kv_heads=2, head_dim=128, qkv_bias=_BIASED, norms=4),
    "glm4v_text": Family(kv_heads=2, qkv_bias=True, norms=4),
    "glm4_moe": _GLM_MOE,
    "glm4v_moe_text": _GLM_MOE,
    "dots1": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        qk_norm="head",
        windows=mixed(_dots, 4096),
        experts=Experts(
            count=_ROUTED, shared_count="n_shared_experts", balance_bias=True, sparse=first_dense(default=0)
        ),
    ),
    "gpt_oss": Family(
        kv_heads=8,
        head_dim=64,
        qkv_bias=_BIASED,
        out_bias=_BIASED,
        sinks=True,
        windows=every_nth_full(2, "_", 128),
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
            sparse=ernie_sparse,
        ),
    ),
    "smollm3": Family(
        kv_heads=4,
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        mlp_bias=("mlp_bias", False),
        tied=True,
        windows=mixed(_smollm),
    ),
    "seed_oss": Family(
        kv_heads=8,
        head_dim=128,
        qkv_bias=_BIASED,
        out_bias=("attention_out_bias", False),
        mlp_bias=("mlp_bias", False),
    ),
    "hunyuan_v1_dense": Family(qkv_bias=_MAYBE, out_bias=_MAYBE, qk_norm="head"),
    "hunyuan_v1_moe": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        qk_norm="head",
        experts=Experts(count=("num_experts",), topk=("moe_topk",), width=_WIDTH, shared_always=True),
    ),
    "internlm2": Family(qkv_bias=("bias", True), out_bias=("bias", True)),
    "internlm3": Family(kv_heads=2, qkv_bias=("qkv_bias", False), mlp_bias=("bias", False)),
    "afmoe": Family(
        qkv_bias=_MAYBE,
        out_bias=_MAYBE,
        head_dim=128,
        qk_norm="head",
        gate=True,
        norms=4,
        windows=every_nth_full(4, "global_attn_every_n_layers", 1024),
        experts=Experts(
            count=("num_experts",),
            shared_count="num_shared_experts",
            router_bias=True,  # the balancing bias is a parameter here
            sparse=first_dense("num_dense_layers", 1),
        ),
    ),
    "step3p5": _STEP,
    "step3p7": _STEP,
}
