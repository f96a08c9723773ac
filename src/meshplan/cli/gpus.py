"""``meshplan gpus``: the GPU presets."""

import json

import cyclopts

from meshplan.cli.options import Json
from meshplan.cluster.presets import gpu_names, load_gpu
from meshplan.report.gpu_view import SCHEMA_VERSION, gpu_dict, gpu_sheet, gpu_table
from meshplan.report.screen import Screen

app = cyclopts.App(name="gpus", help="List GPU presets; show one with the source of each number.")


@app.default
def list_gpus(name: str | None = None, /, *, json_: Json = False) -> int:
    """List the GPU presets: memory, dense peaks, links.

    Parameters
    ----------
    name
        Only this one, as `meshplan gpus show NAME` shows it.
    """
    if name is not None:
        return show(name, json_=json_)
    gpus = [load_gpu(name) for name in gpu_names()]
    if json_:
        data = {"schema_version": SCHEMA_VERSION, "gpus": [gpu_dict(gpu) for gpu in gpus]}
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        print(gpu_table(gpus, Screen.of()))
    return 0


@app.command
def show(name: str, /, *, json_: Json = False) -> int:
    """Show one GPU, each number with its source, and where sources disagree.

    Parameters
    ----------
    name
        A preset or another name of it, whatever its case and punctuation: h100-sxm, H100, A100-40GB.
    """
    gpu = load_gpu(name)
    if json_:
        data = {"schema_version": SCHEMA_VERSION, **gpu_dict(gpu)}
        print(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print(gpu_sheet(gpu, Screen.of()))
    return 0
