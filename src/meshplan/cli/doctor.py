"""``meshplan doctor``: what is installed and what this machine has, for bug reports."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import cyclopts

import meshplan
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json
from meshplan.report.parts import wrap
from meshplan.report.screen import Screen, printable

app = cyclopts.App(name="doctor", help_formatter=HelpFormatter())

SCHEMA_VERSION = 1
CORE = ("numpy", "cyclopts", "rich", "pydantic", "ruamel.yaml")
OTHERS = ("torch", "transformers", "huggingface_hub", "starlette", "uvicorn", "megatron-core", "torchtitan")
VARIABLES = (
    "MESHPLAN_DEBUG", "MESHPLAN_NO_PROGRESS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TERM", "COLUMNS",
    "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME",
)  # fmt: skip
"""Environment that changes what meshplan or the frameworks do; no tokens among them."""
TIMEOUT_S = 10
PROBLEMS = 1


@app.default
def doctor(*, json_: Json = False) -> int:
    """Show versions, GPUs, links and settings, for a bug report; nothing is sent anywhere.

    The home folder and host name are left out. Exit code 0: all is well; 1: something needed is missing.
    """
    found = examined()
    if json_:
        print(json.dumps(found, indent=2))
    else:
        sys.stdout.write(Screen.of().text(_text(found, Screen.of().width)))
    return PROBLEMS if found["problems"] else 0


def examined() -> dict[str, Any]:
    """What there is to say about this installation and machine."""
    packages = {name: _version(name) for name in (*CORE, *OTHERS)}
    problems = [f"{name} is not installed" for name in CORE if packages[name] is None]
    problems += _broken_data()
    return {
        "schema_version": SCHEMA_VERSION,
        "meshplan": meshplan.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "packages": packages,
        "gpus": _gpus(),
        "links": _links(),
        "environment": {name: _redacted(os.environ[name]) for name in VARIABLES if name in os.environ},
        "encoding": sys.stdout.encoding or "",
        "problems": problems,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _broken_data() -> list[str]:
    """Shipped data that cannot be read: a broken installation."""
    from meshplan.cluster.presets import gpu_names, load_gpu
    from meshplan.model.presets import preset, preset_names

    problems = []
    for what, names, load in (("GPU", gpu_names(), load_gpu), ("model", preset_names(), preset)):
        for name in names:
            try:
                load(name)
            except Exception as error:  # whatever it is, the report shall say it
                problems.append(f"{what} preset {name} cannot be read: {type(error).__name__}")
    return problems


def _gpus() -> list[dict[str, Any]]:
    """GPUs as nvidia-smi or rocm-smi name them; none where neither is there."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    found = []
    for line in _run(query).splitlines():
        name, mib, driver = (part.strip() for part in line.rsplit(",", 2))
        found.append({"name": name, "memory_bytes": _bytes(mib), "driver": driver})
    return found


def _bytes(mib: str) -> int | None:
    """Unified memory is ``[N/A]`` to nvidia-smi."""
    return int(mib) << 20 if mib.isdigit() else None


def _links() -> list[str]:
    """How GPUs are linked (the matrix of ``nvidia-smi topo -m``), without addresses."""
    lines = _run(["nvidia-smi", "topo", "-m"]).splitlines()
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines if line.strip()]


def _run(words: list[str]) -> str:
    if shutil.which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _redacted(value: str) -> str:
    """A setting without the user's folder, or a password in an address."""
    home = str(Path.home())
    return printable(re.sub(r"//[^/@\s]*@", "//…@", value.replace(home, "~") if home != "/" else value))


def _text(found: dict[str, Any], width: int) -> str:
    packages = [f"{n} {v}" for n, v in found["packages"].items() if v is not None]
    missing = [n for n, v in found["packages"].items() if v is None]
    settings = [f"{name}={value}" for name, value in found["environment"].items()]
    gpus = [_gpu_text(gpu) for gpu in found["gpus"]]
    python = f"Python {found['python']}, {found['system']}, {found['cores']} cores"
    lines = [
        f"meshplan  {found['meshplan']} on {python}",
        f"packages  {', '.join(packages)}",
        f"without   {', '.join(missing)}" if missing else "",
        f"GPUs      {'; '.join(f'{gpus.count(g)}× {g}' for g in dict.fromkeys(gpus)) or 'none'}",
        *(f"          {line}" for line in found["links"]),
        f"settings  {' '.join(settings) or 'none'}",
        f"encoding  {found['encoding']}",
        *([f"problem   {text}" for text in found["problems"]] or ["all is well"]),
    ]
    kept = (line for line in lines if line)
    return "\n".join(part for line in kept for part in _within(line, width)) + "\n"


def _within(line: str, width: int) -> list[str]:
    """A line of ours wrapped; one of the links' table (set in) stays as it is."""
    return [line] if line.startswith(" ") else wrap(line, width, " " * 10)


def _gpu_text(gpu: dict[str, Any]) -> str:
    memory = gpu["memory_bytes"]
    return f"{gpu['name']}, {'' if memory is None else f'{memory / 2**30:.1f} GiB, '}driver {gpu['driver']}"
