"""When the actions of a run end, with what repeats made up only if it is asked for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class _Gap(NamedTuple):
    """``places`` left out after index ``here`` of the list; the last ``kept`` of them are in it."""

    here: int
    period: int
    places: int
    shifts: Floats
    """(period,): by how much each comes later than the one a period before."""
    kept: int


class Times:
    """When each action's rank goes on, in computing order from place 1; place 0 is the start of all."""

    def __init__(self, actions: int, ends: list[float]) -> None:
        self.actions, self.ends = actions, ends
        self._gaps: list[_Gap] = []

    def skip(self, period: int, places: int, shifts: Floats, kept: int) -> None:
        """Leave out ``places``: each is as the one a period before, its ``shifts`` (one for each of the last
        period) later. The last ``kept`` are written down for what comes after to look at."""
        ends = self.ends
        kept = min(kept, places)
        self._gaps.append(_Gap(len(ends), period, places, shifts, kept))
        late = np.arange(places - kept, places)
        last = np.array(ends[-period:])
        ends.extend((last[late % period] + shifts[late % period] * (late // period + 1)).tolist())

    def at(self, places: Indices) -> Floats:
        """Times at some places."""
        left_out = np.zeros(len(places), dtype=np.int64)
        before = 0
        for gap in self._gaps:
            start = gap.here + before
            stop = start + gap.places
            if ((places >= start) & (places < stop - gap.kept)).any():
                return self.all()[places]
            before += gap.places - gap.kept
            left_out[places >= stop - gap.kept] = before
        return np.array([self.ends[i] for i in (places - left_out).tolist()])

    def all(self) -> Floats:
        """(actions + 1,)"""
        out = np.empty(self.actions + 1)
        have = np.array(self.ends)
        read = written = 0
        for here, period, places, shifts, kept in self._gaps:
            size = here - read
            out[written : written + size] = have[read:here]
            written += size
            turns = -(-places // period)
            block = out[written - period : written] + shifts * np.arange(1, turns + 1)[:, None]
            out[written : written + places] = block.ravel()[:places]
            written, read = written + places, here + kept
        out[written:] = have[read:]
        return out
