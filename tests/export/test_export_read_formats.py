"""Reading what other frameworks are launched with: overrides, TOML, JSON, YAML, Python modules."""

from __future__ import annotations

import json

import pytest
from export_reading import complaint, read

from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.reading import Given, resolve
from meshplan.export.recognise import recognise
from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS

BRIDGE = (
    "run_recipe.py --recipe llama31_8b_pretrain_config train.global_batch_size=128 dataset.seq_length=8192"
    " train.micro_batch_size=1 model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP"
)


def test_loops_over_literal_lists() -> None:
    """As the recipes of Megatron-Bridge are tried: the first of the list is read."""
    text = (
        'CONFIGS=("4,2" "8,1")\nfor config in "${CONFIGS[@]}"; do\n'
        f"  IFS=',' read -r TP PP <<< \"$config\"\n  srun uv run python {BRIDGE}\ndone\n"
    )
    reading = read(text)
    assert (reading.plan.tp, reading.plan.pp) == (4, 2)
    assert any("loop" in note for note in reading.notes)
    lost = "while read -r TP PP; do\n  python " + BRIDGE + "\ndone < configs.txt\n"
    assert "is $TP, which has no value" in complaint(lost)
    assert "is $PP, which has no value" in complaint(f"TP=2\npython {BRIDGE}\n")


def test_overrides_said_twice() -> None:
    text = "TP=2\nPP=1\npython " + BRIDGE
    assert read(f"{text} train.micro_batch_size=1").plan.mbs == 1
    assert "given twice (1 and 2)" in complaint(f"{text} train.micro_batch_size=2")


NEMO = [
    "python train.py trainer.devices=8 trainer.num_nodes=4 model.tensor_model_parallel_size=4"
    " model.pipeline_model_parallel_size=2 model.micro_batch_size=1 model.global_batch_size=128"
    " model.encoder_seq_length=4096 model.num_layers=32 model.hidden_size=4096 model.num_attention_heads=32"
    " model.ffn_hidden_size=14336 model.num_query_groups=8 model.sequence_parallel=True"
    " model.activations_checkpoint_granularity=full model.activations_checkpoint_method=uniform"
    " model.activations_checkpoint_num_layers=1",
    "uv run python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config -tp 4 -pp 2 -gb"
    " 128 -mb 1"
    " model.sequence_parallel=true dataset.seq_length=4096 model.recompute_granularity=full"
    " model.recompute_method=uniform model.recompute_num_layers=1",
]


@pytest.mark.parametrize("text", NEMO)
def test_override_lists(text: str) -> None:
    reading = read(text, Given(gpus=32))
    plan = reading.plan
    assert reading.kind == "megatron-bridge"
    assert (plan.tp, plan.pp, plan.dp, plan.mbs) == (4, 2, 4, 1)
    assert plan.sp
    assert plan.recompute_layers == ALL_LAYERS
    assert plan.sharding is Sharding.ZERO1
    assert (reading.setting.workload.gbs, reading.setting.workload.seq) == (128, 4096)
    assert len(reading.setting.model.layers) == 32


TITAN = """\
torchrun --nproc_per_node 8 --nnodes 8 -m torchtitan.train --module llama3 --config llama3_70b \\
  --parallelism.tensor_parallel_degree 4 --parallelism.pipeline-parallel-degree=2 \\
  --parallelism.pipeline_parallel_schedule Interleaved1F1B --training.local_batch_size 16 \\
  --training.disable_cuda_graphs --parallelism.no-enable-sequence-parallel activation-checkpoint:none
"""


def test_a_torchtitan_command_line() -> None:
    reading = read(TITAN)
    plan = reading.plan
    assert reading.setting.model.name == "llama-3.1-70b"
    assert (plan.tp, plan.pp, plan.vp, plan.dp, plan.mbs) == (4, 2, 2, 8, 1)
    assert not plan.sp
    assert plan.schedule is Schedule.INTERLEAVED
    assert plan.sharding is Sharding.ZERO2, "by default parameters stay gathered under a pipeline"
    assert plan.recompute_layers == 0
    assert reading.setting.workload.seq == 8192, "from the stock configuration"
    assert reading.defaults["seq_len"] == "8192"
    # 80 layers and two ends over four stages: 82 = 21 + 21 + 20 + 20, the ends one short
    assert plan.layout == (20, 21, 20, 19)


def test_old_torchtitan_toml() -> None:
    text = """
[model]
name = "llama3"
flavor = "405B"
[training]
batch_size = 2
seq_len = 8192
tensor_parallel_degree = 8
[experimental]
pipeline_parallel_degree = 8
context_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""
    reading = read(text, Given(gpus=512))
    plan = reading.plan
    assert (plan.tp, plan.cp, plan.pp, plan.dp) == (8, 2, 8, 4)
    assert plan.cp_kind is CpKind.ALL_GATHER
    assert plan.recompute_layers == ALL_LAYERS
    assert any("TOML" in note for note in reading.notes)


def test_a_torchtitan_module_with_assignments() -> None:
    text = """
from torchtitan.models.llama3.config_registry import llama3_8b

def mine():
    config = llama3_8b()
    config.parallelism.tensor_parallel_degree = 2
    config.training.local_batch_size = 4
    config.training.seq_len = 4096
    return config
"""
    reading = read(text, Given(gpus=8, model="llama-3.1-8b"))
    assert (reading.plan.tp, reading.plan.dp, reading.plan.mbs) == (2, 4, 4)
    assert reading.setting.workload.seq == 4096


def test_deepspeed_json_with_auto_values() -> None:
    data = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"},
        "bf16": {"enabled": "auto"},
        "my_own_key": 1,
    }
    reading = read(json.dumps(data), Given(gpus=16, model="llama-3.1-8b"))
    assert reading.plan.sharding is Sharding.ZERO3
    assert (reading.plan.mbs, reading.plan.dp) == (2, 16)
    assert reading.unknown == ("my_own_key",)


def test_deepspeed_pipeline_with_zero_two_would_not_start() -> None:
    data = {"train_batch_size": 64, "gradient_accumulation_steps": 8, "train_micro_batch_size_per_gpu": 1,
            "pipeline": {"stages": 2}, "zero_optimization": {"stage": 2},
            "bf16": {"enabled": True}}  # fmt: skip
    reading = read(json.dumps(data), Given(gpus=16, model="llama-3.1-8b"))
    assert any("pipeline" in problem for problem in reading.problems)


def test_batch_sizes_that_contradict_the_gpus() -> None:
    data = {"train_batch_size": 64, "gradient_accumulation_steps": 8, "train_micro_batch_size_per_gpu": 1}
    reading = read(json.dumps(data), Given(gpus=32, model="llama-3.1-8b"))
    assert any("imply dp 8" in problem for problem in reading.problems)


def test_a_launch_script_and_its_configuration_beside_it() -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}  # fmt: skip
    text = (
        "deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed_config conf/ds.json"
        " --gradient_checkpointing True"
    )
    reading = read(text, Given(model="llama-3.1-8b"), beside={"ds.json": json.dumps(config)})
    assert reading.plan.recompute_layers == ALL_LAYERS
    assert (reading.plan.dp, reading.plan.mbs) == (16, 4)
    assert reading.setting.workload.gbs == 128


# What cannot be read: one sentence each.


SWIFT = """\
NPROC_PER_NODE=8 \\
megatron sft \\
    --model Qwen/Qwen3-30B-A3B-Base \\
    --pipeline_model_parallel_size 2 \\
    --expert_model_parallel_size 4 \\
    --micro_batch_size 1 --global_batch_size 16 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \\
    --max_length 8192 --sequence_parallel true
"""


def test_ms_swift_is_megatron_with_underscores() -> None:
    reading = read(SWIFT)
    plan, workload = reading.plan, reading.setting.workload
    assert reading.kind == "megatron"
    assert reading.setting.model.name == "qwen3-30b-a3b"
    assert (plan.pp, plan.ep, plan.etp, plan.mbs) == (2, 4, 1, 1)
    assert (workload.gbs, workload.seq, workload.precision) == (16, 8192, "bf16")
    assert plan.recompute_layers == ALL_LAYERS
    assert reading.setting.cluster.gpus == 8
    assert read(SWIFT.replace("--expert_model_parallel_size 4 ", "--decoder_last_pipeline_num_layers 20 ")
                ).plan.layout == (28, 20)  # fmt: skip
    with pytest.raises(InputError, match="lora trains adapters"):
        read(SWIFT.replace("--max_length", "--tuner_type lora --max_length"))
    with pytest.raises(InputError, match="'some/where', which is not a known model; say which with --model"):
        read(SWIFT.replace("Qwen/Qwen3-30B-A3B-Base", "some/where"))


MODEL_CONFIG = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 8
  --ffn-hidden-size: 14336
  --swiglu: true
  --untie-embeddings-and-output-weights: true
  --disable-bias-linear: true
  --normalization: RMSNorm
  --position-embedding-type: rope
  --rotary-base: 500000
  --vocab-size: 128256
  --micro-batch-size: 1
  --global-batch-size: 64
  --seq-length: 8192
  --tensor-model-parallel-size: 4
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --bf16: true
  --data-path: ${DATA_PATH}/corpus
  --log-throughput: false
"""


def test_a_test_configuration_of_megatron_is_read() -> None:
    reading = read(MODEL_CONFIG)
    assert reading.setting.model.name == "llama-3-8b"
    assert (reading.plan.tp, reading.plan.sharding.label) == (4, "zero1")
    with pytest.raises(InputError, match=r"--seq-length is \$SEQ, which has no value"):
        read(MODEL_CONFIG.replace("8192", "${SEQ}"))
    with pytest.raises(InputError, match="MODEL_ARGS must be a table"):
        read("MODEL_ARGS:\nTEST: 1\n")


TRAINER = """\
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
gradient_checkpointing: true
"""
AUTO = (
    '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",'
    ' "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
)


def test_arguments_of_a_trainer_with_their_deepspeed_configuration() -> None:
    beside = {"ds_z3_config.json": AUTO}
    found = recognise(TRAINER, where="x", sibling=lambda name: beside.get(name.rpartition("/")[2]))
    assert isinstance(found, Found)
    reading = resolve(found, Given(gpus=8))
    assert reading.setting.model.name == "llama-3.1-8b"
    assert (reading.plan.mbs, reading.plan.sharding.label, reading.plan.dp) == (2, "zero3", 8)
    assert (reading.setting.workload.gbs, reading.setting.workload.seq) == (64, 4096)
    with pytest.raises(InputError, match="not beside it"):
        read(TRAINER)
    with pytest.raises(InputError, match="trains adapters"):
        read(TRAINER.replace("finetuning_type: full", "finetuning_type: lora"))


def test_products_of_numbers_in_modules_are_sizes() -> None:
    import ast

    from meshplan.export.trees import literal_of

    assert literal_of(ast.parse("8 * 2048", mode="eval").body, "x") == 16_384
    for text in ("8 * n", "f(2)", "2 ** 99", "8 * 2.5", "True * 2"):
        with pytest.raises(InputError, match="not a plain value"):
            literal_of(ast.parse(text, mode="eval").body, "x")
