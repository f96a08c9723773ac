"""From an address to a question: the same words, readers and sentences as on the command line.

Keys are the flags' names. ``config`` and ``cluster`` hold a dropped ``config.json`` or cluster file, packed;
no key names a file of this machine. ``log2_…`` are the sliders: the base-2 logarithm of a factor on a
number of the question, 0 for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args
from urllib.parse import urlencode

from meshplan.cli.flags import HABITS
from meshplan.cli.job import SPACE, WORKLOAD
from meshplan.cli.options import Framework, read_count, read_list
from meshplan.cluster.cluster import Cluster
from meshplan.cluster.files import cluster_of_table, parse_table
from meshplan.cluster.presets import cluster_of
from meshplan.cost.costs import CostModel
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import stack_names
from meshplan.cost.models import DEFAULT, cost_model_named, stack_name, stack_of
from meshplan.errors import InputError, UnknownNameError, nearest, shown
from meshplan.model.hf import model_from_config, parse
from meshplan.model.model import Model
from meshplan.model.presets import preset, preset_name, preset_names
from meshplan.plan.rules import Setting
from meshplan.plan.space import SIZES, Size, Space
from meshplan.plan.workload import Workload
from meshplan.report.plan_key import MOST_CHARACTERS as MOST_KEY
from meshplan.report.studies import candidates
from meshplan.search.fidelity import can_simulate
from meshplan.search.objective import OBJECTIVES, Objective
from meshplan.search.reasons import Case
from meshplan.search.reasons_compare import with_memory, with_network
from meshplan.search.usual import usual_size
from meshplan.units import parse_bytes
from meshplan.web.packed import MOST_CHARACTERS, unpack

QUESTION = (
    "model", "name", "config", "cluster", "gpu", "gpus", "gpus_per_node", "nic", "memory", "seq", "gbs",
    "precision", "offload", "offload_fraction", "moe_imbalance", "capacity_factor", "stack",
)  # fmt: skip
SLIDERS: Mapping[str, tuple[float, float]] = {
    "gpus": (3, 1), "nic": (3, 0.5), "memory": (2, 0.25), "seq": (4, 1), "gbs": (4, 1),
}  # fmt: skip
"""Number → how far its slider goes either way, and by what step, in powers of two."""
LOGS = tuple(f"log2_{name}" for name in SLIDERS)
VIEW = ("lang", "top", "plan", "pin", "why")
SIZE = ("space", "framework", "objective")
KEYS = (*QUESTION, *SIZE, *SPACE, "cost_model", *LOGS, *VIEW)
START: Mapping[str, str] = {
    "model": "llama-3.1-70b", "gpu": "h100-sxm", "gpus": "64", "seq": "8192", "gbs": "512",
}  # fmt: skip
"""What the page opens with."""
USUAL: Mapping[str, str] = {
    "precision": "bf16", "offload": "none", "framework": "any", "objective": "step", "cost_model": DEFAULT,
}  # fmt: skip
"""Values that need not be said."""
MOST_VALUE = 300
MOST_GPUS = 1 << 20
MOST_CANDIDATES = 10**12
"""The full space of a large model of experts on 16,384 GPUs is a quarter of it."""
MOST_TOP = 500
TOP = 10
MOST_PINS = 2


@dataclass(frozen=True)
class Address:
    """The keys and values of an address, checked for form; values are still text."""

    values: Mapping[str, str]
    pins: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Address:
        """From the pairs of a query, of which empty ones do not count. Raises ``InputError``."""
        values: dict[str, str] = {}
        pins: list[str] = []
        for key, raw in pairs:
            value = raw.strip()
            if key not in KEYS:
                close = nearest(key, KEYS, 2)
                ask = f"; did you mean {' or '.join(close)}?" if close else ""
                raise InputError(f"the address has an unknown key {shown(key)}{ask}")
            most = MOST_CHARACTERS if key in ("config", "cluster") else max(MOST_VALUE, MOST_KEY)
            if len(value) > most:
                raise InputError(f"{key} is {len(value):,} characters long; {most:,} is the most")
            if value and values.get(key, value) != value:
                raise InputError(f"the address gives {key} twice; give one value")
            if key == "pin" and value:
                pins.append(value)
            elif value and value != USUAL.get(key) and not (key in LOGS and _is_zero(value)):
                values[key] = value
        return cls(values, tuple(dict.fromkeys(pins))[-MOST_PINS:])

    def query(self, **changes: str | None) -> str:
        """The address with some keys changed or, for ``None``, left out: ``?model=…``."""
        merged = {**self.values, **changes}
        pairs = [(key, merged[key]) for key in KEYS if merged.get(key)]
        pairs += [("pin", pin) for pin in self.pins] if "pin" not in changes else []
        return "?" + urlencode(pairs)

    def without(self, *keys: str) -> Address:
        """The same without these keys."""
        return Address({k: v for k, v in self.values.items() if k not in keys}, self.pins)

    def with_gpus(self, gpus: int) -> Address:
        """The same on another number of GPUs, whatever the slider says."""
        return Address({**self.without("log2_gpus").values, "gpus": str(gpus)}, self.pins)

    @property
    def asked(self) -> str:
        """The part that decides the answer, as one text."""
        return urlencode([(k, v) for k, v in sorted(self.values.items()) if k == "top" or k not in VIEW])

    @property
    def moved(self) -> bool:
        """Whether any slider is off its middle."""
        return any(key in self.values for key in LOGS)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question that can be asked: what a search takes, and the key under which its answer is kept."""

    key: str
    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    cost_model: CostModel
    objective: Objective = "step"
    top: int = TOP
    """Plans to show, which are made certain."""

    @property
    def case(self) -> Case:
        """The question as those ask it who give reasons."""
        return Case(
            model=self.model,
            cluster=self.cluster,
            workload=self.workload,
            space=self.space,
            cost_model=self.cost_model,
            simulate=can_simulate(self.cost_model),
            objective=self.objective,
        )

    @property
    def full(self) -> FullModel:
        """The full cost model, with the software of the question."""
        if isinstance(self.cost_model, FullModel):
            return self.cost_model
        return FullModel.of(stack_of(self.space.framework))

    @property
    def words(self) -> tuple[Model, Cluster, Workload, Space, str]:
        """What ``report.job_text`` writes down of the question, and by ``kinds`` the rest of it."""
        return self.model, self.cluster, self.workload, self.space, self.cost_model.name

    @property
    def kinds(self) -> dict[str, Any]:
        """See ``words``."""
        return {"stack": stack_name(self.cost_model), "objective": self.objective}

    @cached_property
    def candidates(self) -> int:
        """Plans that the search will enumerate."""
        return candidates(self.space, Setting(self.model, self.cluster, self.workload))


def question_of(address: Address, *, sliders: bool = True) -> Asked:
    """The question of an address, with the sliders' factors or without. Raises ``InputError``."""
    values = address.values
    model = _model(values)
    cluster = _cluster(values)
    missing = [name for name in ("seq", "gbs") if name not in values]
    if missing:
        raise InputError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    numbers = {name: read_count(values[name], name) for name in ("seq", "gbs")}
    if sliders:
        numbers = {name: _scaled(number, _log(values, name)) for name, number in numbers.items()}
        cluster = _slid(cluster, values)
    said: dict[str, Any] = {name: WORKLOAD[name](values[name], name) for name in HABITS if name in values}
    if said.get("offload", "none") == "none":
        said.pop("offload_fraction", None)  # the form's other field may still hold it
    workload = Workload(
        seq=numbers["seq"], gbs=numbers["gbs"], precision=values.get("precision", "bf16"), **said
    )
    framework = _one_of(values, "framework", get_args(Framework), "any")
    # by name alone: the page reads no file that an address names
    stack = _one_of(values, "stack", stack_names(), None) if "stack" in values else None
    prices = cost_model_named(values.get("cost_model", DEFAULT), framework=framework, stack=stack)
    asked = Asked(
        key=(address if sliders else address.without(*LOGS)).asked,
        model=model,
        cluster=cluster,
        workload=workload,
        space=_space(values, model, prices),
        cost_model=prices,
        objective=_one_of(values, "objective", OBJECTIVES, "step"),
        top=read_count(values["top"], "top", most=MOST_TOP) if "top" in values else TOP,
    )
    if asked.candidates > MOST_CANDIDATES:
        raise InputError(
            f"the space holds {asked.candidates:,} candidates; the page looks at {MOST_CANDIDATES:,} at most:"
            " fix some dimensions, or use the command line"
        )
    return asked


def _model(values: Mapping[str, str]) -> Model:
    if "config" in values:
        text = unpack(values["config"], "the config.json")
        where = "the config.json"
        model = model_from_config(parse(text, where), name=values.get("name", "my-model")[:64], where=where)
        return replace(model, source="a config.json given to the page")
    if "model" not in values:
        raise InputError("the model is missing")
    name = preset_name(values["model"])  # never a path: the page reads no file that an address names
    if name is None:
        hint = "choose a known one, or drop its config.json"
        raise UnknownNameError("model", values["model"], preset_names(), hint)
    return preset(name)


def _cluster(values: Mapping[str, str]) -> Cluster:
    gpus = read_count(values["gpus"], "gpus", most=MOST_GPUS) if "gpus" in values else None
    if "cluster" in values:
        text, where = unpack(values["cluster"], "the cluster file"), "the cluster file"
        cluster = cluster_of_table(
            parse_table(text, toml=_is_toml(text), where=where), where=where, gpus=gpus
        )
    else:
        missing = [name for name in ("gpu", "gpus") if name not in values]
        if gpus is None or missing:
            raise InputError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        node = values.get("gpus_per_node")
        cluster = cluster_of(
            values["gpu"],
            gpus,
            gpus_per_node=None if node is None else read_count(node, "gpus_per_node"),
            nic=values.get("nic"),
        )
    if cluster.gpus > MOST_GPUS:
        raise InputError(f"the page plans for at most {MOST_GPUS:,} GPUs, not {cluster.gpus:,}")
    if "memory" in values:
        size = parse_bytes(values["memory"], what="memory")
        if not 1e9 <= size <= 1e13:
            raise InputError(f"memory must be from 1 GB to 10 TB, not {shown(values['memory'])}")
        cluster = with_memory(cluster, size / cluster.gpu.hbm_bytes)
    return cluster


def _slid(cluster: Cluster, values: Mapping[str, str]) -> Cluster:
    """The cluster with the sliders' factors."""
    gpus, nic, memory = (_log(values, name) for name in ("gpus", "nic", "memory"))
    if gpus:
        cluster = cluster.with_gpus(min(_scaled(cluster.gpus, gpus), MOST_GPUS))
    if nic:
        cluster = with_network(cluster, 2.0**nic)
    return with_memory(cluster, 2.0**memory) if memory else cluster


def _scaled(number: int, log: float) -> int:
    return max(int(number * 2.0**log + 0.5), 1)


def _log(values: Mapping[str, str], name: str) -> float:
    text = values.get(f"log2_{name}", "0")
    most, step = SLIDERS[name]
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (abs(value) <= most and (value / step).is_integer()):
        raise InputError(
            f"log2_{name} must be from -{most:g} to {most:g} in steps of {step:g}, not {shown(text)}"
        )
    return value


def _space(values: Mapping[str, str], model: Model, prices: CostModel) -> Space:
    """The space as ``meshplan plan`` makes it of the same flags."""
    size: Size = _one_of(values, "space", SIZES, usual_size(prices))
    framework = _one_of(values, "framework", get_args(Framework), "any")
    given = {key: _dimension(key, values[key]) for key in SPACE if key in values}
    return Space.of(size, model, framework, **given)


def _one_of(values: Mapping[str, str], key: str, known: Sequence[str], usual: str | None) -> Any:
    found = values.get(key, usual)
    if found not in known:
        raise InputError(f"{key} must be one of {', '.join(known)}, not {shown(found)}")
    return found


def _dimension(key: str, text: str) -> Any:
    return SPACE[key](text, key) if key == "order" else read_list(text, key, SPACE[key])


def _is_toml(text: str) -> bool:
    """Whether the first line that says something is TOML rather than YAML."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("[") or ("=" in first and ":" not in first.partition("=")[0])


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0.0
    except ValueError:
        return False
