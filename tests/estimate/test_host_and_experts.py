"""``--offload``, ``--moe-imbalance`` and ``--capacity-factor``: priced, said, written and read back."""

import json
from dataclasses import replace

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.model.load import load_model
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

GIB = 2.0**30
DENSE = "llama-2-7b --gpu h100-sxm --gpus 8 --seq 4096 --gbs 64"
MOE = "qwen3-30b-a3b --gpu h100-sxm --gpus 16 --seq 4096 --gbs 64"


def asked(capsys, line, codes=(0,)):
    code = main([*line.split(), "--json"])
    assert code in codes
    return json.loads(capsys.readouterr().out)


def test_estimate_shows_what_is_offloaded(capsys):
    data = asked(capsys, f"estimate {DENSE} --dp 8 --offload optimizer")
    assert data["workload"]["offload"] == "optimizer"
    assert data["memory"]["optimizer"] == 0
    # 6.74 B parameters of 12 bytes, once over eight GPUs of one host
    start = "host memory holds 100% of master weights and moments, 81 GB of the 8 GPUs"
    assert any(text.startswith(start) for text in data["assumptions"])
    assert main(["estimate", *DENSE.split(), "--dp", "8", "--offload", "optimizer"]) == 0
    assert "optimizer in host memory" in capsys.readouterr().out


def test_deepspeed_4527_parameters_alone_stay_on_the_gpu(capsys):
    """DeepSpeed's own estimator of 6,805 M parameters over four GPUs, ZeRO-3 with the optimizer offloaded:
    3.66 GiB a GPU, of which 131 M parameters of the largest layer are 4 bytes each: 3.17 GiB of weights,
    neither gradients nor optimizer. What runs needs more: the issue saw 14.7 to 21.3 GB."""
    run = "llama-2-7b --gpu a100-80gb --gpus 4 --seq 2048 --gbs 4 --sharding zero3 --stack deepspeed"
    data = asked(capsys, f"estimate {run} --offload optimizer")
    weights = data["memory"]["weights"] / GIB
    assert weights * 6805 / 6738 == pytest.approx(3.66 - 4 * 131e6 / GIB, rel=0.01)
    assert data["memory"]["gradients"] == data["memory"]["optimizer"] == 0
    assert 14.7 < data["memory_bytes"] / 1e9 < 21.3 + 3.4 + 1.0  # the weights are offloaded there as well


def test_offload_is_a_way_out(capsys):
    """13 B parameters on one node of 24 GB cards: 16 bytes each over eight are 26 GB, without Adam's 12 there
    is room."""
    data = asked(capsys, "plan llama-2-13b --gpu rtx-4090 --gpus 8 --seq 1024 --gbs 8 --space full", (0, 1))
    assert not data["plans"]
    ways = data["nothing"]["ways"]
    assert ["--offload", "optimizer"] in [flag.split() for way in ways for flag in way["flags"]]
    assert all(way["memory_bytes"] <= data["cluster"]["memory_limit_bytes"] for way in ways)


@pytest.mark.parametrize("command", ["plan", "why-not"])
def test_other_commands_take_it(capsys, command):
    line = f"{command} {DENSE} --tp 1 --pp 1 --sharding zero1 --offload optimizer"
    data = asked(capsys, line)
    assert data["workload"]["offload"] == "optimizer"
    plan = data["plans"][0] if command == "plan" else data["plan"]
    assert plan["memory"]["optimizer"] == 0


def test_check_says_who_cannot(capsys):
    line = f"check {DENSE} --dp 8 --sharding zero3 --offload optimizer --framework megatron"
    assert "megatron-offload" in json.dumps(asked(capsys, line, (1,)))


def test_the_handbook_refuses(capsys):
    assert main(f"plan {DENSE} --offload optimizer --cost-model handbook".split()) == 2
    assert "handbook cost model knows neither offload" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("megatron", "megatron.args"),
        ("megatron-bridge", "meshplan_recipe.py"),
        ("deepspeed", "ds_config.json"),
    ],
)
def test_written_and_read_back(capsys, tmp_path, target, file):
    line = f"export {MOE} --offload optimizer --capacity-factor 1.25 --to {target} --out {tmp_path} --pp 1"
    data = asked(capsys, line)
    assert "offload" not in {note["part"] for note in data["notes"]}
    found = asked(capsys, f"read {tmp_path / file}", (0, 1))
    assert found["workload"]["offload"] == "optimizer"
    assert found["workload"]["capacity_factor"] == (None if target == "deepspeed" else 1.25)


@pytest.mark.parametrize(
    ("target", "file", "sharding"),
    [("megatron", "megatron.args", "zero1"), ("megatron-bridge", "meshplan_recipe.py", "zero1"),
     ("deepspeed", "ds_config.json", "zero3")],
)  # fmt: skip
def test_a_part_is_written_and_read_back(capsys, tmp_path, target, file, sharding):
    """Megatron-Core's optimizer_offload_fraction; DeepSpeed's ratio, "only valid with ZeRO Stage 3"."""
    line = f"export {DENSE} --offload optimizer --offload-fraction 0.25 --to {target} --out {tmp_path}"
    data = asked(capsys, f"{line} --sharding {sharding}")
    assert not {note["part"] for note in data["notes"]} & {"offload", "offload fraction"}
    found = asked(capsys, f"read {tmp_path / file}", (0, 1))["workload"]
    assert (found["offload"], found["offload_fraction"]) == ("optimizer", 0.25)


def test_deepspeed_offloads_a_part_with_zero_3_only(capsys, tmp_path):
    line = f"export {DENSE} --offload optimizer --offload-fraction 0.25 --to deepspeed --sharding"
    assert main(f"{line} zero2 --out {tmp_path}".split()) == 2
    assert "with zero3 only, not zero2" in capsys.readouterr().err
    asked(capsys, f"{line} zero3 --out {tmp_path}")
    zero = json.loads((tmp_path / "ds_config.json").read_text())["zero_optimization"]
    assert zero["offload_optimizer"]["ratio"] == 0.25


def test_a_part_of_the_optimizer_leaves_the_gpu(capsys):
    """Twelve bytes of 6.74 B parameters over eight GPUs are 10.1 GB, of which a quarter leaves."""
    run = "estimate llama-2-7b --gpu h100-sxm --gpus 8 --seq 4096 --gbs 64"
    data = asked(capsys, f"{run} --offload optimizer --offload-fraction 0.25")
    assert data["memory"]["optimizer"] == pytest.approx(0.75 * 12 * 6_738_415_616 / 8, rel=0.001)


def test_targets_without_it_refuse(capsys, tmp_path):
    for target in ("torchtitan", "accelerate", "pytorch"):
        assert main(f"export {DENSE} --offload optimizer --to {target} --out {tmp_path}".split()) == 2
        assert "FSDP2 keeps weights and gradients in host memory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_megatron_needs_the_precision_aware_optimizer(capsys, tmp_path):
    """``megatron/training/arguments.py``, core_v0.16: offload without it is refused."""
    asked(capsys, f"export {DENSE} --offload optimizer --to megatron --out {tmp_path}")
    args = tmp_path / "megatron.args"
    text = args.read_text()
    assert "--optimizer-offload-fraction 1.0" in text
    args.write_text(text.replace("--use-precision-aware-optimizer\n", ""))
    problems = asked(capsys, f"read {args}", (1,))["problems"]
    assert "--optimizer-cpu-offload needs --use-precision-aware-optimizer" in problems


def test_experts_beyond_the_mean(capsys):
    """Half as many tokens again: all-to-alls take half as long again, routed activations likewise."""
    even, uneven, capped = (
        asked(capsys, f"estimate {MOE} --dp 16 --ep 8 {flags}", (0, 1))
        for flags in ("", "--moe-imbalance 1.5", "--moe-imbalance 1.5 --capacity-factor 1.25")
    )
    assert uneven["time"]["ep"] / even["time"]["ep"] == pytest.approx(1.5, rel=0.01)
    assert capped["time"]["ep"] / even["time"]["ep"] == pytest.approx(1.25, rel=0.01)
    assert uneven["time"]["matmul"] > even["time"]["matmul"]
    assert uneven["memory"]["activations"] > 1.1 * even["memory"]["activations"]
    assert "the fullest expert rank gets 1.5 times the mean of tokens" in uneven["assumptions"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--moe-imbalance 0.5", "moe_imbalance must be from 1 to 1,000, not 0.5"),
        ("--capacity-factor nan", "--capacity-factor must be a positive number like 1.25, not 'nan'"),
        ("--offload-fraction 0.5", "nothing is offloaded"),
        ("--offload optimizer --offload-fraction 2", "offload fraction must be above 0 and at most 1, not 2"),
        ("--offload weights", "--offload 'weights' is not one of none, optimizer"),
    ],
)
def test_refused(capsys, flags, words):
    assert main(f"estimate {MOE} {flags}".split()) == 2
    assert words in capsys.readouterr().err


def test_bridge_947_fits_where_it_ran(capsys):
    """NVIDIA-NeMo/Megatron-Bridge#947: Qwen3-30B-A3B on sixteen H100 of 80 GB, eight sequences of 4,096 in a
    micro-batch, ran with steps of 14.4 to 15.9 s: the loss is TransformerEngine's, in place."""
    run = "qwen3-30b-a3b --gpu h100-sxm --gpus 16 --seq 4096 --gbs 512 --mbs 8 --pp 2 --vp 2 --ep 2"
    data = asked(capsys, f"estimate {run} --recompute full --stack megatron-bridge")
    assert data["fits"]
    assert 14.4 * 0.9 < data["step_s"] < 15.9 * 1.1


def test_torchtitan_1789_with_the_stack_of_its_experts(capsys):
    """pytorch/torchtitan#1789: 73.3 GiB with four sequences a GPU; its configuration compiles the loss."""
    run = "deepseek-v2-lite --gpu h100-sxm --gpus 8 --seq 4096 --gbs 32 --mbs 4 --ep 8 --sharding zero3"
    data = asked(capsys, f"estimate {run} --recompute operators --stack torchtitan-moe")
    assert data["memory_bytes"] / GIB == pytest.approx(73.3, rel=0.05)
    assert data["tokens_per_s_per_gpu"] == pytest.approx(11_600, rel=0.2)


def test_biases_of_experts_are_paid_for():
    """gpt-oss-20b: the gradient of the experts' biases reads 2 bytes of each of 2 · 2,880 + 2,880 columns for
    each routed token: 4 · 4,096 · 17,280 bytes are 283 MB a layer, 85 us at an H100's 3.35 TB/s. Megatron's
    ``_apply_bias`` moves 64 bytes of each of 2,880 columns besides, 3.02 GB, in three kernels forward and six
    backward for each of a rank's 4 experts: at 0.8 of the bandwidth and 3 us a kernel, as aiconfigurator
    counts."""
    model, cluster = load_model("gpt-oss-20b"), cluster_of("h100-sxm", 8)
    without = replace(
        model,
        layers=tuple(replace(layer, mlp=replace(layer.mlp, bias=False)) for layer in model.layers),
    )
    full = FullModel(stack=replace(load_stack("megatron-core-2025"), memory_rate=1.0))
    plans, work = Plans.of(Plan(dp=8, ep=8, mbs=1, sharding=1)), Workload(seq=4096, gbs=8)
    more, less = (float(full.price(m, cluster, work, plans).time["elementwise"][0]) for m in (model, without))
    assert (more - less) / len(model.layers) == pytest.approx(
        (283e6 + 3.02e9) / (0.8 * 3.35e12) + 36 * 3e-6, rel=0.1
    )
    torch = FullModel(stack=replace(load_stack("torchtitan-compile"), memory_rate=1.0))
    more, less = (
        float(torch.price(m, cluster, work, plans).time["elementwise"][0]) for m in (model, without)
    )
    assert (more - less) / len(model.layers) == pytest.approx(283e6 / 3.35e12, rel=0.3)


def test_a_clamped_activation_keeps_three_more_tensors_where_it_is_unfused():
    """gpt-oss-20b in eager PyTorch: of 4,096 tokens, four experts each, 2,880 columns in bf16 are 94.4 MB;
    SwiGLU keeps its two inputs, silu and the product, the clamped one three more. Fused it keeps none."""
    model, cluster = load_model("gpt-oss-20b"), cluster_of("h100-sxm", 8)
    plans, work = Plans.of(Plan(dp=8, ep=8, mbs=1, sharding=3)), Workload(seq=4096, gbs=8)

    def kept(name, activation):
        full = FullModel(stack=load_stack(name))
        return float(
            full.price(replace(model, activation=activation), cluster, work, plans).memory["activations"][0]
        )

    one = 4 * 4096 * 2880 * 2
    more = kept("torchtitan-moe", "swigluoai") - kept("torchtitan-moe", "silu")
    assert more / len(model.layers) == pytest.approx(3 * one, rel=0.001)
    name = "megatron-core-2025"
    assert kept(name, "swigluoai") == kept(name, "silu")
