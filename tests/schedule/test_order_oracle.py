"""Orders against PyTorch's own schedule classes, action by action.

Runs where torch is installed. Stages are on the meta device and the process group is fake, so no
process is started and nothing is computed: only the orders the classes lay down are read.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from meshplan.schedule.generate import make_order

os.environ.setdefault("TORCH_LOGS", "-all")

try:
    importlib.import_module("torch")
except ImportError:
    pytest.skip("torch is not installed: orders are NOT compared with PyTorch", allow_module_level=True)

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

GRID = [(2, 4), (2, 7), (3, 6), (4, 4), (4, 8), (4, 10), (5, 15), (8, 16), (8, 32)]
CASES = [
    *(("gpipe", "ScheduleGPipe", p, m, 1) for p, m in [*GRID, (4, 2), (1, 3)]),
    *(("1f1b", "Schedule1F1B", p, m, 1) for p, m in GRID),
    *(("looped-bfs", "ScheduleLoopedBFS", p, m, v) for p, m in [*GRID, (4, 3)] for v in (1, 2, 3)),
    *(("interleaved", "ScheduleInterleaved1F1B", p, m, v) for p, m in [*GRID, (4, 3)] for v in (2, 3, 4)),
    *(("zb-h1", "ScheduleInterleavedZeroBubble", p, m, v) for p, m in [*GRID, (4, 3)] for v in (1, 2, 3)),
    *(("zb-v", "ScheduleZBVZeroBubble", p, m, 2) for p, m in [*GRID, (4, 2), (8, 5), (1, 4)]),
    *(
        ("dualpipe-v", "ScheduleDualPipeV", p, m, 2)
        for p, m in [(1, 2), (2, 4), (2, 7), (3, 6), (4, 8), (5, 13), (8, 32)]
    ),
]


@pytest.fixture(scope="module")
def torch_stages() -> Iterator[Any]:
    """A maker of meta stages of one rank under the fake process group."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def make(p: int, v: int, style: str) -> list[Any]:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=p)
        mine = [c * p for c in range(v)] if style == "loop" else [0, 2 * p - 1]
        return [PipelineStage(torch.nn.Identity(), s, p * v, torch.device("cpu")) for s in mine]

    yield make
    if dist.is_initialized():
        dist.destroy_process_group()


def torch_order(stages: Any, cls: str, p: int, m: int, v: int) -> list[list[str]]:
    """What every rank does, as ``3F0``; overlapped pairs flattened, idle slots and reductions left out."""
    from torch.distributed.pipelining import schedules

    style = "v" if cls in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV") else "loop"
    mine = stages(p, v, style)
    single = cls in ("ScheduleGPipe", "Schedule1F1B")
    schedule = getattr(schedules, cls)(mine[0] if single else mine, m, loss_fn=lambda *_: None)
    order = []
    for rank in range(p):
        row: list[str] = []
        for action in schedule.pipeline_order[rank]:
            parts = () if action is None else (action.sub_actions or (action,))
            row += [str(part) for part in parts if part.computation_type.value in "FBIW"]
        order.append(row)
    return order


@pytest.mark.parametrize(("name", "cls", "p", "m", "v"), CASES)
def test_same_order_as_torch(torch_stages: Any, name: str, cls: str, p: int, m: int, v: int) -> None:
    rounds = max(1, m // p)
    if name in ("interleaved", "zb-h1") and m % rounds:
        with pytest.raises(ValueError, match="multiple of the number of rounds"):
            torch_order(torch_stages, cls, p, m, v)
        # On purpose: ours are then Megatron's groups (of one stage a rank: none), and every action is there.
        order = make_order(name, ranks=p, micro_batches=m, vp=v, unfilled=True)
        assert len(order) == (3 if name == "zb-h1" else 2) * p * m * v
        return
    theirs = torch_order(torch_stages, cls, p, m, v)
    if name == "1f1b":
        # torch 2.13 numbers the last rank's forwards from 1 in the order it displays (its ``step`` runs
        # them from 0); there is no such micro-batch, so this one row is put right before comparing.
        assert theirs[-1][0] == f"{p - 1}F1"
        theirs[-1] = [f"{p - 1}F{int(a.split('F')[1]) - 1}" if "F" in a else a for a in theirs[-1]]
    order = make_order(name, ranks=p, micro_batches=m, vp=v, unfilled=True)
    assert [[str(a) for a in order.of_rank(r)] for r in range(p)] == theirs
