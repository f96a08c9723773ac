"""Whether torch is there; nothing is imported until a command needs it."""

from __future__ import annotations

from importlib.util import find_spec

from meshplan.measure.failures import MachineError

INSTALL = "pip install 'meshplan[measure]'"
TESTED = ((2, 13), (2, 15))
"""From the first version that has every call the engine makes, up to the first one not tried."""


def need_torch(what: str) -> None:
    """Raise ``MachineError`` with the install command unless a usable torch is installed."""
    if find_spec("torch") is None:
        raise MachineError(f"{what} needs PyTorch, which is not installed; {INSTALL} installs it")
    from importlib.metadata import version

    found = version("torch")
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    if numbers < TESTED[0]:
        raise MachineError(f"{what} needs torch 2.13 or later, not {found}; {INSTALL} installs one")
