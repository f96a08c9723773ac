"""The form: everything the address holds, as fields that work with and without the script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import get_args

from meshplan.cli.job import SPACE
from meshplan.cli.options import Framework
from meshplan.cluster.presets import gpu_names
from meshplan.cost.full.stack import stack_names
from meshplan.cost.models import COST_MODELS, DEFAULT
from meshplan.model.presets import preset_names
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.space import SIZES
from meshplan.plan.workload import OFFLOADS, PRECISIONS
from meshplan.report.markup import Html, h
from meshplan.report.words import Words
from meshplan.search.objective import OBJECTIVES
from meshplan.web.question import SIZE, SLIDERS, USUAL, Address

DIMENSIONS = ("tp", "cp", "pp", "dp", "vp", "ep", "etp", "mbs")


def ask_form(address: Address, words: Words) -> Html:
    """The form with what the address says filled in."""
    values = address.values
    hidden = [_hidden(key, values[key]) for key in ("lang", "config", "cluster", "name") if key in values]
    chosen = [_hidden("plan", values.get("plan", ""))]
    return h(
        "form",
        hidden,
        chosen,
        h("fieldset", h("legend", words("form.model")), _model(address, words)),
        h("fieldset", h("legend", words("form.cluster")), _cluster(address, words)),
        h("fieldset", h("legend", words("form.step")), _step(values, words)),
        h("fieldset", h("legend", words("form.what_if")), _sliders(values, words)),
        _space(values, words),
        h("p", h("button", words("form.ask"), type="submit", class_="main"), class_="ask"),
        id="ask",
        method="get",
        action="/",
        aria_label=words("form.label"),
    )


def drop_form(address: Address, words: Words) -> Html:
    """Where a ``config.json`` or a cluster file is dropped or pasted."""
    chosen = h("input", type="file", id="drop-file", accept=".json,.yaml,.yml,.toml")
    pasted = h("textarea", name="text", rows=6, spellcheck="false", maxlength=65536)
    return h(
        "details",
        h("summary", words("drop.title")),
        h(
            "form",
            _hidden("back", address.query()),
            _hidden("file_name", ""),
            h("label", words("drop.file"), chosen, class_="script"),
            h("label", words("drop.paste"), pasted),
            h("button", words("drop.use"), type="submit"),
            id="drop",
            method="post",
            action=f"/config?lang={words.language}",
        ),
        id="drop-box",
    )


def _model(address: Address, words: Words) -> list[Html]:
    values = address.values
    if "config" in values:
        gone = address.query(config=None, name=None, model="llama-3.1-70b", plan=None, pin=None)
        name = values.get("name", "my-model")
        return [h("p", words("form.dropped", name=name), " ", h("a", words("form.forget"), href="/" + gone))]
    options = h("datalist", [h("option", value=name) for name in preset_names()], id="models")
    field = h(
        "input",
        name="model",
        value=values.get("model", ""),
        list="models",
        autocomplete="off",
        spellcheck="false",
        required=True,
        maxlength=200,
    )
    return [_labelled(words("form.model_name"), field), options]


def _cluster(address: Address, words: Words) -> list[Html]:
    values = address.values
    found: list[Html] = []
    if "cluster" in values:
        gone = address.query(cluster=None, gpu="h100-sxm", gpus=values.get("gpus", "64"), plan=None, pin=None)
        found.append(
            h("p", words("form.dropped_cluster"), " ", h("a", words("form.forget"), href="/" + gone))
        )
    else:
        found.append(_labelled(words("form.gpu"), _choice("gpu", gpu_names(), values, words, "")))
    found.append(_number("gpus", values, words, required="cluster" not in values))
    if "cluster" not in values:
        found += [_number("gpus_per_node", values, words), _text("nic", values, words, "400 Gb/s")]
    return [*found, _text("memory", values, words, "141 GB")]


def _step(values: Mapping[str, str], words: Words) -> list[Html]:
    precision = _choice("precision", PRECISIONS, values, words, "bf16")
    return [
        _number("seq", values, words, required=True),
        _number("gbs", values, words, required=True),
        _labelled(words("form.precision"), precision),
        _labelled(words("form.offload"), _choice("offload", OFFLOADS, values, words, "none")),
        _text("offload_fraction", values, words, "0.5"),
        _text("moe_imbalance", values, words, "1.2"),
        _text("capacity_factor", values, words, "1.25"),
        _labelled(
            words("form.cost_model"),
            _choice("cost_model", COST_MODELS, values, words, DEFAULT),
        ),
        _labelled(words("form.stack"), _choice("stack", ("", *stack_names()), values, words, "")),
    ]


def _sliders(values: Mapping[str, str], words: Words) -> list[Html]:
    rows = []
    for name, (most, step) in SLIDERS.items():
        value = values.get(f"log2_{name}", "0")
        rows.append(
            h(
                "div",
                h("label", words(f"slider.{name}"), for_=f"log2_{name}"),
                h(
                    "input",
                    type="range",
                    id=f"log2_{name}",
                    name=f"log2_{name}",
                    min=-most,
                    max=most,
                    step=step,
                    value=value,
                ),
                h("output", factor(value), for_=f"log2_{name}"),
                class_="slider",
            )
        )
    return [*rows, h("p", h("button", words("form.reset"), type="button", id="reset", class_="script"))]


def factor(log: str) -> str:
    """What a slider multiplies by, for people: ``×2``, ``×1/4``, ``×1.41``."""
    try:
        value = float(log)
    except ValueError:
        value = math.nan
    if not abs(value) <= 64:  # what the address says is refused elsewhere
        return "?"
    if value < 0 and value.is_integer():
        return f"×1/{2 ** -int(value)}"
    return f"×{2.0**value:.3g}"


def _space(values: Mapping[str, str], words: Words) -> Html:
    frameworks = get_args(Framework)
    fields = [
        _labelled(words("form.size"), _choice("space", ("", *SIZES), values, words, "")),
        _labelled(words("form.framework"), _choice("framework", frameworks, values, words, "any")),
        _labelled(words("form.objective"), _choice("objective", OBJECTIVES, values, words, "step")),
    ]
    fields += [_text(name, values, words, "2,4,8" if name == "tp" else "") for name in DIMENSIONS]
    schedules, shardings = ", ".join(s.label for s in Schedule), ", ".join(s.label for s in Sharding)
    fields += [
        _text("schedule", values, words, "1f1b", schedules),
        _text("cp_kind", values, words, "ring"),
        _text("replicas", values, words, ""),
        _text("sp", values, words, "on"),
        _text("sharding", values, words, "zero1", shardings),
        _text("recompute", values, words, "auto"),
        _text("order", values, words, "tp-cp-ep-dp-pp"),
        _number("top", values, words),
    ]
    given = any(name in values for name in (*SIZE, *SPACE))
    return h(
        "details",
        h("summary", words("form.space")),
        h("p", words("form.space_note"), class_="soft"),
        fields,
        open=given,
        class_="space",
    )


def _labelled(label: str, field: Html) -> Html:
    return h("label", h("span", label), field)


def _number(name: str, values: Mapping[str, str], words: Words, *, required: bool = False) -> Html:
    field = h(
        "input",
        name=name,
        value=values.get(name, ""),
        inputmode="numeric",
        pattern="[0-9_]*",
        required=required,
        autocomplete="off",
        maxlength=15,
    )
    return _labelled(words(f"form.{name}"), field)


def _text(name: str, values: Mapping[str, str], words: Words, example: str, hint: str = "") -> Html:
    label = words.value(name, "space") if name in SPACE else words(f"form.{name}")
    field = h(
        "input",
        name=name,
        value=values.get(name, ""),
        placeholder=example or None,
        title=hint or None,
        autocomplete="off",
        spellcheck="false",
        maxlength=200,
    )
    return _labelled(label, field)


def _choice(name: str, options: Iterable[str], values: Mapping[str, str], words: Words, usual: str) -> Html:
    """A field of which one of ``options`` is chosen."""
    chosen = values.get(name, usual)
    known = list(options)
    if chosen and chosen not in known:
        known.insert(0, chosen)
    marked = [h("option", words.value(o, name), value=o, selected=o == chosen) for o in known]
    return h("select", marked, name=name, data_usual=USUAL.get(name))


def _hidden(name: str, value: str) -> Html:
    return h("input", type="hidden", name=name, value=value)
