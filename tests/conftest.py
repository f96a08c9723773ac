"""The same for all tests: property tests do not depend on the clock or on chance."""

from __future__ import annotations

import contextlib
import os

with contextlib.suppress(ImportError):  # not every environment that runs some of the tests has it
    from hypothesis import HealthCheck, settings

    # A busy machine is slow, and a failure that cannot be repeated helps nobody. To look further than the
    # usual examples: HYPOTHESIS_PROFILE=explore.
    calm = [HealthCheck.too_slow]
    settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=calm)
    settings.register_profile("explore", deadline=None, suppress_health_check=calm, print_blob=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
