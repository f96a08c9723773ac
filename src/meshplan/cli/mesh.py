"""``meshplan mesh``: which ranks form which group, and where nodes end."""

import json
import sys
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.options import Count, Json, OptionalCount, option, read_count
from meshplan.errors import InputError, shown
from meshplan.plan.mesh import Mesh
from meshplan.plan.plans import DEFAULT_ORDER
from meshplan.report.mesh_view import draw_mesh, ink_for, mesh_dict
from meshplan.report.screen import Screen

app = cyclopts.App(name="mesh", help="Which ranks form which group, drawn with node boundaries.")


def read_rank(text: str, what: str) -> int:
    """A rank: a whole number from 0; raises ``InputError``."""
    if text.strip().startswith("-"):
        raise InputError(f"{what} must be at least 0, not {shown(text)}")
    return 0 if text.strip() and not text.strip().strip("0") else read_count(text, what)


OptionalRank = Annotated[int | None, option(read_rank)]
Torch = Annotated[bool, Parameter(name="--torch", negative=())]


@app.default
def mesh(
    *,
    tp: Count = 1,
    cp: Count = 1,
    dp: Count = 1,
    pp: Count = 1,
    ep: OptionalCount = None,
    etp: OptionalCount = None,
    gpus_per_node: Count = 8,
    order: str = "-".join(DEFAULT_ORDER),
    rank: OptionalRank = None,
    torch: Torch = False,
    json_: Json = False,
) -> int:
    """Show every group of ranks, inside a node or across, as `tp × cp × dp × pp` ranks nest.

    With --ep or --etp the same ranks are also regrouped as MoE layers use them, `etp × ep × edp × pp`.

    Parameters
    ----------
    tp
        Tensor parallel ranks.
    cp
        Context parallel ranks.
    dp
        Data parallel ranks.
    pp
        Pipeline parallel ranks.
    ep
        Expert parallel ranks; they come out of tp × cp × dp and cost no GPUs.
    etp
        Tensor parallel ranks of an expert (default: 1; Megatron's own default is tp).
    gpus_per_node
        Ranks of a node.
    order
        Dimensions from inside out. Megatron: tp-cp-ep-dp-pp. Llama 3: tp-cp-pp-dp.
    rank
        Also show this rank's place, groups and neighbours.
    torch
        Print Python lines that make the same groups with torch.distributed's init_device_mesh.
    """
    experts = {name: size for name, size in (("ep", ep), ("etp", etp)) if size is not None}
    found = Mesh.of({"tp": tp, "cp": cp, "dp": dp, "pp": pp, **experts}, order)
    if json_:
        print(json.dumps(mesh_dict(found, gpus_per_node, rank=rank), allow_nan=False))
    elif torch:
        print("\n".join(found.torch_lines()))
    else:
        ink = ink_for(sys.stdout.encoding)
        print(draw_mesh(found, gpus_per_node, width=Screen.of().width, ink=ink, rank=rank))
    return 0
