"""Recipes that we write, held against the sources of Megatron-Bridge itself.

Its wheel is plain Python, but importing it wants TransformerEngine, which needs a GPU's toolkit to build: so
its modules are read as syntax trees. Every recipe must be there, and every field that we set must be one of
the class it is set on. Needs ``pip install --no-deps megatron-bridge megatron-core`` (Python 3.12); skipped,
loudly, where they are not there.
"""

from __future__ import annotations

import ast
import random
from functools import cache

import export_oracles as oracles
import export_samples as samples

from meshplan.errors import InputError
from meshplan.export.bridge import PRECISIONS, RECIPES
from meshplan.export.targets import export

BRIDGE = oracles.bridge_folder()
pytestmark = [*oracles.ALL, oracles.BRIDGE]


# Section of the configuration → classes that may stand there (``training/config.py``, ConfigContainer).
SECTIONS = {
    "model": ("GPTModelProvider", "MLAModelProvider"),
    "train": ("TrainingConfig",),
    "dataset": ("GPTDatasetConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "optimizer": ("OptimizerConfig",),
    "checkpoint": ("CheckpointConfig",),
    "dist": ("DistributedInitConfig",),
}


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Every class of Megatron-Bridge and Megatron-Core by name."""
    assert BRIDGE is not None
    found: dict[str, list[ast.ClassDef]] = {}
    for folder in (BRIDGE / "training", BRIDGE / "models", BRIDGE / "data", BRIDGE.parent / "core",
                   BRIDGE.parent / "training"):  # fmt: skip
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(node)
    return found


@cache
def fields_of(name: str) -> frozenset[str]:
    """Fields of the class and of those it inherits from; aliases of imports are followed by their name."""
    fields: set[str] = set()
    for node in classes().get(name, []):
        fields |= {
            line.target.id
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for base in node.bases:
            other = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
            other = other.removeprefix("MCore").removeprefix("MegatronLM")
            if other and other != name:
                fields |= fields_of(other)
    return frozenset(fields)


def assigned(module: str) -> dict[str, ast.expr]:
    """``path.of.field`` → value, of the assignments to ``cfg``."""
    found = {}
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            text = ast.unparse(node.targets[0])
            if text.startswith("cfg."):
                found[text.removeprefix("cfg.")] = node.value
    return found


def test_every_recipe_is_exported_by_its_package() -> None:
    assert BRIDGE is not None
    for preset, (package, stem) in RECIPES.items():
        place = BRIDGE.joinpath("recipes", *package.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        text = file.read_text(encoding="utf-8")
        imported = {
            alias.asname or alias.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert f"{stem}_pretrain_config" in imported, f"{preset}: no {stem}_pretrain_config in {package}"


def test_precisions_are_names_of_the_library() -> None:
    assert BRIDGE is not None
    text = (BRIDGE / "training" / "mixed_precision.py").read_text(encoding="utf-8")
    names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert set(PRECISIONS.values()) <= names


def test_what_the_recipe_starts_is_there() -> None:
    assert BRIDGE is not None
    for module, name in (("gpt_step", "forward_step"), ("pretrain", "pretrain")):
        tree = ast.parse((BRIDGE / "training" / f"{module}.py").read_text(encoding="utf-8"))
        assert any(getattr(node, "name", "") == name for node in tree.body), module
    container = fields_of("ConfigContainer")
    assert {*SECTIONS, "mixed_precision", "comm_overlap"} <= container


def test_every_field_that_we_set_is_one_of_its_class() -> None:
    rng, models = random.Random("bridge fields"), tuple(RECIPES)
    seen: set[str] = set()
    taken = 0
    for _ in range(600):
        try:
            launch = export(samples.random_job(rng, models), "megatron-bridge")
        except InputError:
            continue
        taken += 1
        seen |= set(assigned(launch.files["meshplan_recipe.py"]))
    assert taken > 100
    for path in sorted(seen):
        section, _, field = path.partition(".")
        if not field:
            assert section in fields_of("ConfigContainer"), path
            continue
        known = frozenset().union(*(fields_of(name) for name in SECTIONS[section]))
        assert field in known, f"cfg.{path}: no such field in {' or '.join(SECTIONS[section])}"
    assert {"model.rotary_base", "model.layernorm_epsilon", "ddp.use_megatron_fsdp"} <= seen
