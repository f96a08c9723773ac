"""Estimates held against a dozen plans run for real on two hosts in a box; writes the page of results.

    sudo python tools/measured_accuracy.py --out docs/measured.md [--rounds 6] [--keep FOLDER]

Two network namespaces with one rank each, joined by a shaped link, take turns at calibrating and at steps
of every plan. Then three estimates of each plan are compared with its measured step: from the machine's
datasheet alone, from the calibrated cluster, and with the stack's few scalars fitted on the *other* plans
(each plan is estimated by a fit that never saw it). What two halves of the measurement agree on between
themselves is printed beside. Needs Linux, root, iproute2, torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cluster_in_a_box as box
from accuracy_page import order_rows, page

from meshplan.measure.launch import LocalLauncher
from meshplan.measure.specs import RunSpec, spec_data
from meshplan.measure.sweep import run_one
from meshplan.model.layers import Attention, Layer, Mlp
from meshplan.model.model import Model
from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan
from meshplan.plan.workload import Workload
from meshplan.report.measure_view import plan_label

MODEL = Model(
    name="box-15m", hidden=512, vocab=4096,
    layers=(Layer(attention=Attention(heads=8, kv_heads=4, head_dim=64), mlp=Mlp(width=1376)),) * 4,
)  # fmt: skip
WORK = Workload(seq=256, gbs=8, precision="fp32")
PLANS = (
    Plan(dp=2, sharding=Sharding.DDP),
    Plan(dp=2, sharding=Sharding.ZERO1),
    Plan(dp=2, sharding=Sharding.ZERO3, mbs=2),
    Plan(dp=2, sharding=Sharding.ZERO3, mbs=4, recompute_layers=ALL_LAYERS),
    Plan(tp=2),
    Plan(tp=2, mbs=4),
    Plan(tp=2, sp=False, mbs=4),
    Plan(cp=2, mbs=2),
    Plan(cp=2, cp_kind=CpKind.ALL_GATHER, mbs=2),
    Plan(pp=2),
    Plan(pp=2, vp=2, schedule=Schedule.INTERLEAVED),
    Plan(pp=2, vp=2, schedule=Schedule.ZB_H1),
    Plan(pp=2, vp=2, schedule=Schedule.ZB_V),
)


ORDERS = {"tp inside": ("tp", "cp", "ep", "dp", "pp"), "tp across": ("dp", "cp", "ep", "tp", "pp")}


def plans_of(steps: int) -> list[RunSpec]:
    """A dozen plans on two ranks."""
    return [
        RunSpec(model=MODEL, workload=WORK, plan=p, label=plan_label(p), steps=steps, device="cpu")
        for p in PLANS
    ]


ORDER_MODEL = Model(
    name="box-4m", hidden=256, vocab=1024,
    layers=(Layer(attention=Attention(heads=4, kv_heads=2, head_dim=64), mlp=Mlp(width=704)),) * 4,
)  # fmt: skip
ORDER_WORK = Workload(seq=512, gbs=8, precision="fp32")
ORDER_RATE = "0.4gbit"
"""Narrow and many tokens over a slow link, so that where TP's traffic goes decides the step."""


ORDER_FIT = (
    Plan(dp=4, mbs=2, sharding=Sharding.ZERO1),
    Plan(dp=2, pp=2, mbs=2, sharding=Sharding.ZERO1),
    Plan(tp=2, pp=2, mbs=2),
    Plan(dp=4, mbs=2, sharding=Sharding.ZERO3),
)
"""Other plans on the same ranks, on which the stack's scalars are fitted."""


def orders_of(steps: int) -> list[RunSpec]:
    """One plan on two ranks of each host, with TP inside the hosts and across; and the plans of the fit."""
    plan = Plan(tp=2, dp=2, mbs=4, sharding=Sharding.ZERO1)
    runs = [(plan, name, order) for name, order in ORDERS.items()]
    runs += [(p, plan_label(p), ORDERS["tp inside"]) for p in ORDER_FIT]
    return [
        RunSpec(
            model=ORDER_MODEL,
            workload=ORDER_WORK,
            plan=p,
            label=label,
            order=order,
            steps=steps,
            device="cpu",
        )
        for p, label, order in runs
    ]


def measure(
    folder: Path,
    specs: list[RunSpec],
    *,
    ranks: int,
    rounds: int,
    steps: int,
    rate: str,
    most_bytes: int = 1 << 24,
    link_rounds: int | None = None,
) -> int:
    """Everything that runs, into ``folder``; ``ranks`` on each host, collectives of ``most_bytes``."""
    folder.mkdir(parents=True, exist_ok=True)
    reference = specs[0].reference()
    found = run_one(
        reference, 0, folder / f"reference-{reference.reference_key}", LocalLauncher(), limit_s=300
    )
    if found.outcome != "ok":
        print(f"one process: {found.outcome}: {found.reason}", file=sys.stderr)
        return 1
    asked = {
        "rate": rate,
        "rounds": rounds,
        "steps": steps,
        "link_rounds": rounds if link_rounds is None else link_rounds,
        "most_bytes": most_bytes,
        "runs": [spec_data(s) for s in specs],
    }
    (folder / "runs.json").write_text(json.dumps(asked))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "{host}",
        "--nproc-per-node", str(ranks), "--master-addr", box.ADDRESSES[0], "--master-port", str(box.PORT),
        "--max-restarts", "0", str(Path(__file__).with_name("round_robin.py")), str(folder),
    ]  # fmt: skip
    return box.run(rate, command, limit_s=3600, ranks=ranks)


def order(folder: Path, *, rounds: int, steps: int) -> int:
    """TP inside the hosts and across them, and the calibration beside. Messages of 2 MiB, the largest there,
    take twice as long as those of 1 MiB."""
    how = {"ranks": 2, "rounds": rounds, "steps": steps, "rate": ORDER_RATE, "most_bytes": 1 << 20}
    return measure(folder, orders_of(steps), link_rounds=1, **how)


def only_order(folder: Path, asked: argparse.Namespace) -> int:
    """Measured and estimated seconds of both orders, as JSON."""
    try:
        code = order(folder, rounds=asked.rounds, steps=asked.steps)
    except box.NotAllowedError as error:
        print(f"error: no cluster in a box here: {error}", file=sys.stderr)
        return 3
    if not code:
        print(json.dumps(order_rows(folder), indent=1))
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="the page (.md)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a plan in a round")
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--keep", type=Path, help="folder for samples and results (default: temporary)")
    parser.add_argument("--again", action="store_true", help="only the page, from what --keep holds")
    parser.add_argument("--order", type=Path, help="only TP inside and across the hosts, into this folder")
    asked = parser.parse_args(arguments)
    if asked.order:
        return only_order(asked.order.resolve(), asked)
    if not asked.out:
        parser.error("--out is missing")
    with tempfile.TemporaryDirectory(prefix="meshplan-") as temporary:
        folder = (asked.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if not asked.again:
            try:
                how = {"rounds": asked.rounds, "steps": asked.steps, "rate": asked.rate}
                code = measure(folder, plans_of(asked.steps), ranks=1, **how)
                code = code or order(folder / "order", rounds=3, steps=asked.steps)
            except box.NotAllowedError as error:
                print(f"error: no cluster in a box here: {error}", file=sys.stderr)
                return 3
            if code:
                return code
        text, numbers = page(folder, rate=asked.rate)
    asked.out.write_text(text, encoding="utf-8")
    print(json.dumps(numbers, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
