"""Which of the frameworks whose own code reads what we write are here: marks that skip loudly where not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def here(*names: str) -> bool:
    """Whether all these modules can be imported."""
    return all(_found(name) for name in names)


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is not there
        return False


def oracle(missing: str, there: bool) -> pytest.MarkDecorator:
    """Skip, loudly, unless ``there``; ``missing``: what is not there, and how to get it."""
    return pytest.mark.skipif(not there, reason=f"ORACLE NOT RUN: {missing}")


ALL = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
"""For every module of such tests."""
MEGATRON = oracle(
    "megatron-core is not installed (pip install torch megatron-core, outside this environment)",
    here("megatron"),
)
PARSER = oracle(
    "this megatron-core has no argument parser (0.17 and later do)", here("megatron", "megatron.training")
)
TITAN = oracle(
    "torchtitan is not installed (pip install torchtitan triton, outside this environment)",
    here("torchtitan"),
)
DEEPSPEED = oracle("deepspeed is not installed", here("deepspeed"))
ACCELERATE = oracle("accelerate and transformers are not installed", here("accelerate", "transformers"))


def bridge_folder() -> Path | None:
    """Where Megatron-Bridge's own sources are, if they are here."""
    spec = importlib.util.find_spec("megatron") if here("megatron") else None
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place / "bridge" for place in places if (place / "bridge" / "recipes").is_dir()), None)


BRIDGE = oracle(
    "megatron-bridge is not installed (pip install --no-deps, Python 3.12)", bridge_folder() is not None
)
