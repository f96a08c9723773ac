"""The model: a list of layers between an embedding and a head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshplan.errors import InputError
from meshplan.model.layers import Layer
from meshplan.model.rope import Rope


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only language model, as far as training cost depends on it or a launch file has to say it.

    Raises ``InputError`` when a size is not positive or there are no layers.
    """

    name: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool = False
    """The head's weight is the embedding's."""
    positions: int = 0
    """Rows of a learned position embedding; 0: rotary, ALiBi or none."""
    final_norm: bool = True
    """The norm before the head has a weight (OLMo 1 has none)."""
    final_norm_bias: bool = False
    embedding_norm: bool = False
    """A norm right after the embedding (BLOOM)."""
    head_bias: bool = False
    mtp: tuple[Layer, ...] = ()
    """Multi-token-prediction layers (DeepSeek-V3), trained beside the stack."""
    max_seq: int | None = None
    """Longest sequence the configuration was made for; for warnings and launch files."""
    rope: Rope | None = None
    """Rotary position embedding; ``None``: learned, ALiBi, or not known."""
    alibi: bool = False
    """Positions are biases on the attention scores (Press et al., 2108.12409)."""
    norm_eps: float | None = None
    """What norms add under the root; ``None``: not known."""
    activation: str = ""
    """Activation function of the MLP, as configurations call it; empty: not known."""
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    init_std: float | None = None
    """Standard deviation of the initial weights; ``None``: not known."""
    source: str = ""
    """Where the dimensions come from."""
    notes: tuple[str, ...] = ()
    """What the reader left out or assumed, a sentence each."""

    def __post_init__(self) -> None:
        for field in ("hidden", "vocab"):
            if getattr(self, field) < 1:
                raise InputError(f"model {self.name}: {field} must be at least 1, not {getattr(self, field)}")
        if not self.layers:
            raise InputError(f"model {self.name} has no layers")

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance (MTP layers included)."""
        return tuple(dict.fromkeys((*self.layers, *self.mtp)))

    @cached_property
    def kind_ids(self) -> tuple[int, ...]:
        """For each layer of the stack, its index in ``kinds``."""
        index = {layer: i for i, layer in enumerate(self.kinds)}
        return tuple(index[layer] for layer in self.layers)

    @cached_property
    def kind_counts(self) -> tuple[int, ...]:
        """How many layers there are of each of ``kinds``, MTP layers included."""
        index = {layer: i for i, layer in enumerate(self.kinds)}
        ids = [*self.kind_ids, *(index[layer] for layer in self.mtp)]
        return tuple(ids.count(i) for i in range(len(self.kinds)))
