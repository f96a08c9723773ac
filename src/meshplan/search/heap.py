"""The C heap, told to keep what is freed: a search allocates arrays of the same sizes over and over.

glibc gives the top of the heap back to the system after every block of plans and gets zeroed pages
again for the next one; that costs as much as the arithmetic (``benchmarks/bench_handbook.py``). This is
a choice of the whole process, so only programs make it (the command line, the benches), never an import.
"""

from __future__ import annotations

import ctypes
import sys

KEEP_BYTES = 1 << 28
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt(3)``."""


def keep_freed_memory() -> bool:
    """Keep up to ``KEEP_BYTES`` of freed heap; ``False`` where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 25)) and bool(mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES))
