"""What we write, loaded by DeepSpeed and accelerate themselves.

Each is skipped, loudly, where it is not installed.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import export_oracles as oracles
import export_samples as samples
import pytest

from meshplan.errors import InputError
from meshplan.export.launch import Job, Launch
from meshplan.export.targets import export
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import ALL_LAYERS

pytestmark = oracles.ALL


def exported(target: str, count: int) -> list[tuple[Job, Launch]]:
    rng, found = random.Random(f"oracle {target}"), []
    for _ in range(count):
        job = samples.random_job(rng)
        try:
            found.append((job, export(job, target)))
        except InputError:
            continue
    return found


@oracles.DEEPSPEED
def test_deepspeed_reads_our_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import config as ds

    monkeypatch.setattr(ds.dist, "get_rank", lambda *a, **k: 0)

    class Ranks:
        """What DeepSpeed asks of a model-parallel unit."""

        def __init__(self, dp: int) -> None:
            self.dp = dp

        def get_data_parallel_world_size(self) -> int:
            return self.dp

    taken = exported("deepspeed", 200)
    assert len(taken) > 50
    for job, launch in taken:
        plan = launch.written
        file = tmp_path / "ds_config.json"
        file.write_text(launch.files["ds_config.json"], encoding="utf-8")
        read = ds.DeepSpeedConfig(str(file), mpu=Ranks(plan.dp))
        assert read.train_batch_size == job.setting.workload.gbs
        assert read.train_micro_batch_size_per_gpu == plan.mbs
        assert read.gradient_accumulation_steps == job.setting.workload.gbs // (plan.dp * plan.mbs)
        assert read.zero_optimization_stage == int(plan.sharding)
        assert read.tensor_parallel_config.autotp_size == (plan.tp if plan.tp > 1 else 0)
        assert read.pipeline["stages"] == (plan.pp if plan.pp > 1 else "auto")
        assert read.expert_parallel_config.autoep_size == plan.ep
        assert read.expert_parallel_config.expert_tensor_parallel_size == plan.etp
        assert read.bfloat16_config.enabled
        if plan.pp > 1:
            assert (read.pipeline["activation_checkpoint_interval"] == 1) == (
                plan.recompute_layers == ALL_LAYERS
            )


@oracles.ACCELERATE
def test_accelerate_reads_our_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    taken = exported("accelerate", 200)
    assert len(taken) > 50
    for job, launch in taken:
        plan = launch.written
        file = tmp_path / "accelerate.yaml"
        file.write_text(launch.files["accelerate.yaml"], encoding="utf-8")
        read: Any = load_config_from_file(str(file))
        assert read.num_processes == job.setting.cluster.gpus
        sizes = {
            k.removeprefix("parallelism_config_"): v
            for k, v in read.parallelism_config.items()
            if k.endswith("_size")
        }
        built = ParallelismConfig(**sizes)
        assert built.total_size == job.setting.cluster.gpus
        assert built.data_parallel_size == plan.dp
        assert (built.tp_size, built.cp_size) == (plan.tp, plan.cp)
        fsdp = read.fsdp_config
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=fsdp["fsdp_version"],
            reshard_after_forward=fsdp["fsdp_reshard_after_forward"],
            activation_checkpointing=fsdp["fsdp_activation_checkpointing"],
            auto_wrap_policy=fsdp["fsdp_auto_wrap_policy"],
            state_dict_type=fsdp["fsdp_state_dict_type"],
            cpu_ram_efficient_loading=fsdp["fsdp_cpu_ram_efficient_loading"],
        )
        assert plugin.fsdp_version == 2
        assert plugin.reshard_after_forward == (plan.sharding is Sharding.ZERO3)
        assert plugin.activation_checkpointing == (plan.recompute_layers == ALL_LAYERS)


@oracles.ACCELERATE
def test_accelerate_launch_takes_our_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of run.sh after ``accelerate launch``, through accelerate's own parser."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    job, launch = next((j, x) for j, x in exported("accelerate", 200) if x.written.gpus > 1)
    file = tmp_path / "accelerate.yaml"
    file.write_text(launch.files["accelerate.yaml"], encoding="utf-8")
    words = [
        "--config_file", str(file), "--num_machines", str(job.nodes), "--num_processes",
        str(job.setting.cluster.gpus),
        "--machine_rank", "0", "--main_process_ip", "localhost", "--main_process_port", "29500",
        "train.py", "--x", "1",
    ]  # fmt: skip
    for flag in (word for word in words if word.startswith("--") and word != "--x"):
        assert flag in launch.files["run.sh"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert args.use_fsdp
    assert args.num_processes == job.setting.cluster.gpus


@oracles.DEEPSPEED
def test_deepspeed_launcher_takes_our_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.launcher.runner import parse_args

    _, launch = exported("deepspeed", 50)[0]
    text = launch.files["run.sh"]
    words = [
        "--no_ssh", "--num_nodes", "2", "--num_gpus", "8", "--node_rank", "0", "--master_addr", "localhost",
        "--master_port", "29500", "train.py", "--deepspeed", "--deepspeed_config", "ds_config.json",
    ]  # fmt: skip
    for flag in (word for word in words if word.startswith("--")):
        assert flag in text
    args = parse_args(words)
    assert args.no_ssh
    assert args.user_script == "train.py"
    assert json.loads(launch.files["ds_config.json"])
    assert os.environ["DS_ACCELERATOR"] == "cpu"
