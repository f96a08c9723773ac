"""``meshplan models``: the model presets, and what any model is made of."""

import json
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.options import Json, option, read_count
from meshplan.model.counts import model_parameters
from meshplan.model.load import load_model
from meshplan.model.model import Model
from meshplan.model.presets import preset_names
from meshplan.report.model_view import (
    SCHEMA_VERSION,
    default_seq,
    model_dict,
    model_sheet,
    model_summary,
    model_table,
)
from meshplan.report.screen import Screen

app = cyclopts.App(name="models", help="List model presets; show what a model is made of.")


@app.default
def list_models(name: str | None = None, /, *, json_: Json = False) -> int:
    """List the model presets: parameters, active ones, layers.

    Parameters
    ----------
    name
        Only this one, as `meshplan models show NAME` shows it.
    """
    if name is not None:
        return show(name, json_=json_)
    models = [load_model(name) for name in preset_names()]
    if json_:
        data = {"schema_version": SCHEMA_VERSION, "models": [model_summary(model) for model in models]}
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        models.sort(key=_family)
        print(model_table(models, Screen.of()))
    return 0


@app.command
def show(
    name: str,
    /,
    *,
    seq: Annotated[int | None, option(read_count)] = None,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Show one model: parameters by part, kinds of layer, FLOP a token.

    Parameters
    ----------
    name
        A preset, a Hugging Face config.json or the folder that holds it, or a name on the hub.
    seq
        Tokens in a sequence, for the FLOP [default: 8192, or what the model takes].
    download
        Fetch the configuration from the Hugging Face hub if it is not in the local cache.
    """
    model = load_model(name, download=download)
    length = default_seq(model) if seq is None else seq
    if json_:
        data = {"schema_version": SCHEMA_VERSION, **model_dict(model, length)}
        print(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print(model_sheet(model, length, Screen.of()))
    return 0


def _family(model: Model) -> tuple[str, int, str]:
    """Models of one family together, the small ones first."""
    return model.name.partition("-")[0], model_parameters(model).total, model.name
