"""Whether a plan computes what one process computes: loss and every gradient, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from meshplan.measure.reference.engine import Engine

MOST_ELEMENTS = 300_000_000
"""Above this many parameters only the loss is compared: gradients would not fit a file worth writing."""
TOLERANCE = {"fp32": 2e-4, "bf16": 6e-2}
"""Largest difference of a gradient over the largest of its tensor; loss: a tenth of it. fp32: sums of
another order (measured 1e-6 to 2e-5); bf16: 8 bits of mantissa through the layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Loss of plan and of one process, and the parameter that differs most."""

    loss: float
    reference_loss: float
    worst: float
    """Largest relative difference of a gradient; 0 where only the loss was compared."""
    parameter: str
    compared: int
    """Gradients compared, over all ranks."""
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether both are within the tolerance."""
        off = abs(self.loss - self.reference_loss) / max(abs(self.reference_loss), 1e-12)
        return off <= self.tolerance / 10 and self.worst <= self.tolerance

    def sentence(self) -> str:
        """The comparison in words."""
        losses = f"loss {self.loss:.6f} against {self.reference_loss:.6f} of one process"
        if not self.compared:
            return f"{losses}; gradients not compared"
        where = f" ({self.parameter})" if self.parameter else ""
        return (
            f"{losses}; {self.compared} gradients differ by at most {self.worst:.2g} of their largest{where},"
            f" tolerance {self.tolerance:g}"
        )


def write_reference(engine: Engine, path: Path) -> None:
    """Loss and gradients of a run of one process."""
    loss = engine.whole_loss(engine.step(update=False))
    few = sum(p.numel() for s in engine.stages.values() for p in s.parameters()) <= MOST_ELEMENTS
    grads = {name: grad for name, grad, _ in engine.gradients()} if few else {}
    part = path.with_suffix(".part")
    torch.save({"loss": loss, "gradients": grads}, part)
    part.replace(path)


def compare(engine: Engine, path: Path) -> Agreement:
    """One step of the plan against the file; collective, the same answer on every rank."""
    loss = engine.whole_loss(engine.step(update=False))
    reference = torch.load(path, weights_only=True, mmap=True)
    worst, parameter, compared = 0.0, "", 0
    for name, grad, place in engine.gradients():
        wanted = reference["gradients"].get(name)
        if wanted is None:
            continue
        compared += 1
        part = wanted if place is None else wanted[place]
        off = float((grad - part).abs().max() / part.abs().max().clamp_min(1e-12))
        if not off <= worst:  # also where it is not a number
            worst, parameter = off, name
    found: list[tuple[float, str, int]] = [(0.0, "", 0)] * dist.get_world_size()
    dist.all_gather_object(found, (worst, parameter, compared))
    worst, parameter, _ = max(found, key=lambda f: (f[0] != f[0], f[0]))
    return Agreement(
        loss=loss, reference_loss=float(reference["loss"]), worst=worst, parameter=parameter,
        compared=sum(f[2] for f in found), tolerance=TOLERANCE[engine.workload.precision],
    )  # fmt: skip
