"""In what precision a run is measured, and what an estimate beside it can be of. Needs no PyTorch."""

from __future__ import annotations

import shutil

import pytest

from meshplan.cli import measure
from meshplan.cli.flags import ClusterFlags, WorkloadFlags
from meshplan.errors import InputError
from meshplan.model.load import load_model


@pytest.mark.parametrize(
    ("nvidia_smi", "device", "launcher", "precision"),
    [
        (None, "auto", "local", "fp32"),
        ("/usr/bin/nvidia-smi", "auto", "local", "bf16"),
        ("/usr/bin/nvidia-smi", "cpu", "local", "fp32"),
        (None, "cuda", "local", "bf16"),
        (None, "auto", "slurm", "bf16"),  # a login node has no GPU, and the runs' nodes have
    ],
)
def test_the_usual_precision(
    nvidia_smi: str | None, device: str, launcher: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: nvidia_smi)
    flags = WorkloadFlags(seq=256, gbs=4)
    assert measure._workload(flags, device, launcher).precision == precision
    asked = WorkloadFlags(seq=256, gbs=4, precision="bf16")
    assert measure._workload(asked, device, launcher).precision == "bf16"


def test_a_gpu_is_not_priced_in_what_only_a_cpu_trains_in() -> None:
    work = measure._workload(WorkloadFlags(seq=256, gbs=4, precision="fp32"), "cpu", "local")
    with pytest.raises(InputError, match="h100-sxm is priced in bf16; --precision bf16 trains in it on"):
        measure._question(load_model("llama-3.1-8b"), ClusterFlags(gpu="h100-sxm", gpus=2), work)
    assert measure._question(load_model("llama-3.1-8b"), ClusterFlags(), work) is None
