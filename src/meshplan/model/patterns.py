"""Which layers slide and which are mixtures of experts, as configurations of different families say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshplan.model.fields import MAX_LAYERS, MAX_TOKENS, Fields

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


def full_layers(f: Fields, layers: int) -> Sequence[str]:
    """Full attention everywhere."""
    return ["full_attention"] * layers


def qwen_layers(f: Fields, layers: int) -> Sequence[str]:
    """The layers from ``max_window_layers`` on slide, if ``use_sliding_window``."""
    if not f.flag("use_sliding_window", default=False) or not f.has("sliding_window"):
        return full_layers(f, layers)
    first = f.integer("max_window_layers", default=28, low=0)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]


def qwen2_moe_layers(f: Fields, layers: int) -> Sequence[str]:
    """Every other layer below ``max_window_layers`` slides, if ``use_sliding_window``."""
    if not f.flag("use_sliding_window", default=False):
        return full_layers(f, layers)
    end = f.integer("max_window_layers", default=28, low=0)
    return ["sliding_attention" if i % 2 == 0 and i < end else "full_attention" for i in range(layers)]


def qwen3_moe_windows(f: Fields, layers: int) -> Sequence[Window]:
    """All layers slide, if ``use_sliding_window``."""
    return everywhere()(f, layers) if f.flag("use_sliding_window", default=False) else [None] * layers


def dots_layers(f: Fields, layers: int) -> Sequence[str]:
    """The layers from ``max_window_layers`` on slide."""
    first = f.integer("max_window_layers", default=62, low=0)
    slides = f.data.get("sliding_window", 4096) is not None
    return ["sliding_attention" if slides and i >= first else "full_attention" for i in range(layers)]


def exaone_layers(f: Fields, layers: int) -> Sequence[str]:
    """All but every ``sliding_window_pattern``-th slide; the pattern may be a string like ``LLLG``."""
    if "sliding_window" in f.data and not f.has("sliding_window"):
        return full_layers(f, layers)
    pattern = f.data.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"} or len(pattern) > MAX_LAYERS:
            raise f.fail("sliding_window_pattern must be a number or a string of L and G")
        kinds = [pattern[i % len(pattern)] == "L" and i < layers - 1 for i in range(layers)]
    else:
        step = f.integer("sliding_window_pattern", default=4, high=MAX_LAYERS)
        kinds = [(i + 1) % step != 0 for i in range(layers)]
    return ["sliding_attention" if local else "full_attention" for local in kinds]


def ministral_layers(f: Fields, layers: int) -> Sequence[str]:
    """All layers slide, unless ``sliding_window`` is null."""
    slides = f.data.get("sliding_window", 4096) is not None
    return ["sliding_attention" if slides else "full_attention"] * layers


def smollm_layers(f: Fields, layers: int) -> Sequence[str]:
    """Layers without rotary embedding slide, if ``use_sliding_window``."""
    if not f.flag("use_sliding_window", default=False) or not f.has("sliding_window"):
        return full_layers(f, layers)
    return ["full_attention" if rope else "sliding_attention" for rope in _ropes(f, layers)]


def first_of_four(f: Fields, layers: int) -> Sequence[str]:
    """The first of every four layers is full, the others slide."""
    return ["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(layers)]


def llama4_layers(f: Fields, layers: int) -> Sequence[str]:
    """Layers with rotary embedding see chunks."""
    if "attention_chunk_size" in f.data and not f.has("attention_chunk_size"):
        return full_layers(f, layers)
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
