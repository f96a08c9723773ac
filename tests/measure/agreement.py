"""Run under torchrun: every plan of a file (lines ``model | Plan(...)``) against one process."""

import json
import logging
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from meshplan.errors import InputError
from meshplan.measure.reference.check import compare, write_reference
from meshplan.measure.reference.engine import Engine
from meshplan.model.layers import Attention, Layer, Mlp, Moe
from meshplan.model.model import Model
from meshplan.plan import kinds
from meshplan.plan.plans import Plan
from meshplan.plan.workload import Workload

ATTENTION = Attention(heads=8, kv_heads=4, head_dim=8)
MODELS = {
    "dense": Model(
        name="dense", hidden=64, vocab=128, layers=(Layer(attention=ATTENTION, mlp=Mlp(width=128)),) * 4
    ),
    "tied": Model(
        name="tied", hidden=64, vocab=128, tied_embeddings=True,
        layers=(
            Layer(
                attention=Attention(heads=8, kv_heads=4, head_dim=8, qk_norm="head"), mlp=Mlp(width=128)
            ),
        ) * 4,
    ),
    "moe": Model(
        name="moe", hidden=64, vocab=128,
        layers=(
            Layer(attention=ATTENTION, mlp=Moe(experts=8, topk=2, width=32, shared_width=32)),
        ) * 4,
    ),
}  # fmt: skip
WORK = Workload(seq=64, gbs=16, precision="fp32")


def main(plans: Path, references: Path) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for line in plans.read_text().splitlines():
        name, text = (part.strip() for part in line.split("|", 1))
        # dense@bad: the model dense against the reference bad.pt
        name, _, other = name.partition("@")
        plan = eval(text, {**vars(kinds), "Plan": Plan})
        path = references / f"{other or name}.pt"
        if plan.gpus == 1 and not path.exists():
            write_reference(Engine(MODELS[name], WORK, plan), path)
        try:
            engine = Engine(MODELS[name], WORK, plan)
        except InputError as error:
            found = {"refused": str(error)}
        else:
            agreement = compare(engine, path)
            first = engine.whole_loss(engine.step())
            second = engine.whole_loss(engine.step()) if plan.gpus == 2 else first - 1
            found = {
                "holds": agreement.holds, "worst": agreement.worst, "compared": agreement.compared,
                "loss": agreement.loss, "reference": agreement.reference_loss, "learns": second < first,
            }  # fmt: skip
        if dist.get_rank() == 0:
            print(json.dumps({"line": line, **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
