"""The core never imports torch; without it, the commands that need it say how to get it."""

import subprocess
import sys

CODE = """
import sys
sys.modules["torch"] = None  # as if it were not there
from meshplan.cli.app import COMMANDS, run
import importlib
for command in COMMANDS:
    importlib.import_module(command.app.split(":")[0])
assert run(["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "8", "--seq", "4096", "--gbs", "64"]) == 0
"""

MISSING = """
import sys
import importlib.util as util
find = util.find_spec
util.find_spec = lambda name, *a: None if name == "torch" else find(name, *a)
import meshplan.measure.needs as needs
needs.find_spec = util.find_spec
from meshplan.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def python(code, *args):
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=240, check=False
    )


def test_no_command_imports_torch_before_it_runs():
    done = python(CODE)
    assert done.returncode == 0, done.stderr


def test_without_torch_a_sentence_has_the_install_command():
    done = python(MISSING, "memory-check", "llama-3.1-8b", "--seq", "4096")
    assert done.returncode == 3
    assert done.stderr == (
        "error: memory-check needs PyTorch, which is not installed; pip install 'meshplan[measure]'"
        " installs it\n"
    )
