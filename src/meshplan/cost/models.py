"""The cost models by name."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter

from meshplan.cost.costs import CostModel
from meshplan.errors import InputError, UnknownNameError

DEFAULT = "full"
"""What prices plans unless another is asked for."""
COST_MODELS = {
    "full": "meshplan.cost.full.model:FullModel.of",
    "handbook": "meshplan.cost.handbook:Handbook",
}
"""Name → ``module:factory``, imported when it is used."""
STACKS = {
    "torchtitan": "torchtitan", "pytorch": "torchtitan", "accelerate": "torchtitan", "deepspeed": "deepspeed",
}  # fmt: skip
"""Framework → the software that the full cost model prices it with; ``USUAL_STACK`` for all others."""
USUAL_STACK = "megatron-core-2025"


def stack_of(framework: str) -> str:
    """The stack that plans for a framework are priced with, unless another is asked for."""
    return STACKS.get(framework, USUAL_STACK)


def stack_name(model: CostModel) -> str | None:
    """The stack of a cost model; ``None`` where it knows none."""
    return getattr(getattr(model, "stack", None), "name", None)


def priced_by(model: CostModel) -> str:
    """A cost model and its stack in words."""
    stack = stack_name(model)
    return f"cost model {model.name}" + (f" · stack {stack}" if stack else "")


def cost_model_named(name: str = DEFAULT, *, framework: str = "any", stack: str | None = None) -> CostModel:
    """The cost model of this name, with its default constants and the stack of ``framework``, or ``stack``.

    Raises ``UnknownNameError``, and ``InputError`` for a stack that the cost model has no use for.
    """
    if name not in COST_MODELS:
        raise UnknownNameError("cost model", name, COST_MODELS, f"known: {', '.join(COST_MODELS)}")
    module, _, attribute = COST_MODELS[name].partition(":")
    factory = attrgetter(attribute)(import_module(module))
    if name != "full" and stack is not None:
        raise InputError(f"--stack is for the full cost model, and the plans are priced by {name}")
    model: CostModel = factory(stack or stack_of(framework)) if name == "full" else factory()
    return model
