"""Cross entropy over a vocabulary that tp may split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as fn
from torch.distributed.tensor.parallel import loss_parallel


def token_loss(logits: Any, target: torch.Tensor, tokens: int) -> torch.Tensor:
    """Sum of the tokens' losses over the whole batch's ``tokens``: gradients of ranks and micro-batches
    then add up to the batch's. ``logits`` (batch, tokens, vocabulary), a DTensor under tp."""
    flat = logits.flatten(0, 1).float()
    return fn.cross_entropy(flat, target.flatten(), reduction="sum") / tokens  # type: ignore[no-any-return,unused-ignore]


def loss_context(tp: int) -> Callable[[], AbstractContextManager[Any]]:
    """What forward and backward of the loss run inside; make a new one for each use."""
    return loss_parallel if tp > 1 else nullcontext
