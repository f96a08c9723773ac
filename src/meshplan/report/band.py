"""How far off the cost model usually is; see ``search.band``."""

from __future__ import annotations

from meshplan.search.band import Band, error_band

__all__ = ["Band", "error_band"]
