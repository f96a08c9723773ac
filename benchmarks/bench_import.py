"""What starting costs: Python, numpy, ``import meshplan``, and ``plan`` and ``estimate`` for a real question.

    python benchmarks/bench_import.py

Best of ten fresh processes each.
"""

from __future__ import annotations

import subprocess
import sys
import time

ROUNDS = 10
PLAN = (
    "from meshplan.cli import main; main(['plan', 'meta-llama/Llama-3.1-70B', '--gpu', 'h100-sxm',"
    " '--gpus', '64', '--seq', '8192', '--gbs', '512'])"
)
WORK = {
    "python": "pass",
    "import numpy": "import numpy",
    "import meshplan": "import meshplan",
    "every name of meshplan": "from meshplan import *",
    "meshplan plan": PLAN,
    "meshplan estimate": PLAN.replace("'plan'", "'estimate'").replace("])", ", '--tp', '8', '--pp', '4'])"),
}


def best(code: str) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> dict[str, float]:
    """Print and return seconds on top of starting Python."""
    seconds = {name: best(code) for name, code in WORK.items()}
    start = seconds["python"]
    numpy = seconds["import numpy"] - start
    print(f"{'python':<24}{start * 1e3:>8.0f} ms")
    for name, value in list(seconds.items())[1:]:
        own = value - start
        print(f"{name:<24}{own * 1e3:>8.0f} ms more, {own / numpy:.2f} × numpy")
    return {name: value - start for name, value in seconds.items()}


if __name__ == "__main__":
    main()
