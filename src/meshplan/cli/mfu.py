"""``meshplan mfu``: what a measured speed is as MFU, in the conventions that sources use."""

import json
import math
import sys
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json, option, read_count
from meshplan.cluster.presets import load_gpu
from meshplan.errors import InputError, shown
from meshplan.model.load import load_model
from meshplan.report.mfu_view import mfu_data, mfu_text
from meshplan.report.screen import Screen

app = cyclopts.App(name="mfu", help_formatter=HelpFormatter())


def _rate(text: str, what: str) -> float:
    try:
        value = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{what} must be a number above zero, not {shown(text)}")
    return value


@app.default
def mfu(
    model: str,
    /,
    *,
    gpu: Annotated[str, Parameter(metavar="NAME")],
    seq: Annotated[int | None, option(read_count)] = None,
    precision: Annotated[str, Parameter(metavar="NAME")] = "bf16",
    tokens_per_s: Annotated[float | None, option(_rate)] = None,
    tflops: Annotated[float | None, option(_rate)] = None,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Say what a measured speed is as MFU, in each convention of counting FLOP.

    Give tokens a second of one GPU, which every source means alike, or TFLOP/s, which each counts its own
    way. The peak is the dense one: figures with sparsity are twice as high and never reached.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, or a name in the Hugging Face cache.
    gpu
        GPU preset; see `meshplan gpus`.
    seq
        Tokens in a sequence [default: 8192, or what the model takes].
    precision
        Of the matrix multiplications, whose peak counts.
    tokens_per_s
        Measured tokens a second of one GPU.
    tflops
        Measured TFLOP/s of one GPU, as the source counts them.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    if (tokens_per_s is None) == (tflops is None):
        raise InputError("give the measured speed as either --tokens-per-s or --tflops, of one GPU")
    read = load_model(model, download=download)
    part = load_gpu(gpu)
    data = mfu_data(read, part, seq, precision, tokens_per_s=tokens_per_s, tflops=tflops)
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(mfu_text(data, Screen.of()))
    return 0
