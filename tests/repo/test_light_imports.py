"""The core stays light: neither importing meshplan nor planning pulls in the heavy or the slow parts."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = (
    "torch", "transformers", "huggingface_hub", "starlette", "uvicorn", "fastapi", "scipy", "pandas",
    "matplotlib", "plotly", "polars", "sympy",
)  # fmt: skip
SLOW = ("pydantic", "ruamel", "rich")
"""In the core, but not worth their start-up time where they are not needed."""

SPY = """
import json, sys

class Spy:
    asked = set()
    def find_spec(self, name, path=None, target=None):
        self.asked.add(name.partition(".")[0])
        return None

sys.meta_path.insert(0, Spy())
{code}
print(json.dumps(sorted(Spy.asked)), file=sys.stderr)
"""
PLAN = (
    "from meshplan.cli import main; main(['plan', 'meta-llama/Llama-3.1-70B', '--gpu', 'h100-sxm',"
    " '--gpus', '64', '--seq', '8192', '--gbs', '512'])"
)


def asked_for(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter looks for, installed or not, while it runs ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", SPY.format(code=code)], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_meshplan_imports_nothing_else() -> None:
    asked = asked_for("import meshplan")
    assert "meshplan" in asked
    assert not asked & {*HEAVY, *SLOW, "numpy", "cyclopts"}


def test_every_public_name_without_the_heavy_parts() -> None:
    asked = asked_for("from meshplan import *")
    assert "numpy" in asked
    assert not asked & {*HEAVY, *SLOW, "cyclopts"}


def test_planning_without_the_heavy_and_slow_parts() -> None:
    asked = asked_for(PLAN)
    assert {"numpy", "cyclopts"} <= asked
    assert not asked & {*HEAVY, *SLOW}


def test_the_spy_sees_what_is_imported() -> None:
    # Without this the tests above could pass because they see nothing.
    assert "pydantic" in asked_for("import pydantic")
    code = "\ntry:\n    import no_such_package_anywhere\nexcept ImportError:\n    pass\n"
    assert "no_such_package_anywhere" in asked_for(code)
