"""Search: enumerate the plans of a space, drop the invalid, price the rest, rank them.

The room bears the name of its one verb, and ``from meshplan import search`` must give something to call
whether or not a module of the room was imported before: so the package itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``meshplan.search.search.search``, which see."""
        from meshplan.search.search import search

        return search(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
