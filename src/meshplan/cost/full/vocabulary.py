"""Seconds that tensor parallelism's transfers take at both ends of a model: embedding, head and loss.

Every rank of tp holds some rows of the vocabulary, so that a rank looks up the tokens it holds and the
results are added up; the head reads the whole stream and writes some columns of the logits; and the loss
needs each token's largest logit, its own logit and the sum of exponentials of all columns (Megatron-LM,
``core/tensor_parallel/layers.py`` and ``cross_entropy.py``; torch's ``loss_parallel`` and torchtitan).

Left out: the host's time for these calls, which is in ``host_micro_s``; waiting for the last rank in the rows
of the loss, which come one right after the other; chunked losses, which reduce each chunk's on their own;
that kernels which fuse the loss put two of its three reductions into one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.costs import Floats
from meshplan.cost.full.comm import Among, Stream
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.stack import Stack
from meshplan.model.model import Model

ROWS = 3
"""fp32 numbers of each token that the loss adds up over tp, one all-reduce each."""


class EndTransfers(NamedTuple):
    """Seconds by key: of the embedding, and of head and loss together, exposed; and hidden ones."""

    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats
    hidden: Floats


def end_transfers(
    model: Model,
    keys: LayerKeys,
    stream: Stream,
    tp: Among,
    stack: Stack,
    head_weight: Floats,
) -> EndTransfers:
    """Transfers of both ends where those of one stream take ``stream``.

    With SP the looked-up stream is scattered and its gradient gathered, the head's input gathered and its
    gradient scattered. Without SP the looked-up stream is all-reduced forward, the gradient of the head's
    input backward. A learned table of positions is added to the whole stream: Megatron all-reduces it
    first. The head's gradient moves beside the product of its weights' gradient, ``head_weight`` seconds,
    where the stack does so. A multi-token-prediction layer looks up, projects and predicts once more.
    """
    zero, extra = np.zeros(len(keys)), len(model.mtp)
    if not (keys.tp > 1).any() or stack.vocabulary == "cut":
        return EndTransfers(zero, zero, zero, zero, zero)  # of a cut vocabulary each rank keeps to its own
    megatron = stack.family == "megatron"
    rows = tp.seconds("all_reduce", 4.0 * keys.tokens) * (keys.tp > 1)
    looked_up = np.where(keys.sp, stream.scatter, stream.reduce)
    if model.positions and megatron and keys.sp.any():
        whole = tp.seconds("all_reduce", keys.element_bytes * model.hidden * keys.tokens)
        looked_up = np.where(keys.sp, whole + stack.tp_wait_s, looked_up)
    gradient = np.where(keys.sp, stream.scatter, stream.reduce)
    hidden = np.minimum(gradient, head_weight) if megatron and stack.head_overlap else zero
    forward = (1 + extra) * (stream.gather + ROWS * rows) + extra * looked_up
    backward = (1 + extra) * (gradient - hidden) + extra * stream.gather
    if extra and megatron:  # the projection of two streams to one is column-parallel, its result is gathered
        size = keys.element_bytes * model.hidden * keys.tokens
        gathered = (tp.seconds("all_gather", size) + stack.tp_wait_s) * (keys.tp > 1)
        forward = forward + extra * (2 * stream.gather + gathered)
        backward = backward + extra * (2 * gradient + stream.gather)
    return EndTransfers(
        embedding_forward=looked_up,
        embedding_backward=stream.gather,
        head_forward=forward,
        head_backward=backward,
        hidden=(1 + extra) * hidden,
    )
