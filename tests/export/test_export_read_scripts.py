"""Reading launch files as people write them: shell variables, arrays, branches, other formats."""

from __future__ import annotations

import json

import pytest

from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.reading import Given, Reading, resolve
from meshplan.export.recognise import recognise
from meshplan.export.shell import read_shell
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS

LLAMA_8B = """\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm \\
  --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 \\
"""


def read(text: str, given: Given | None = None, beside: dict[str, str] | None = None) -> Reading:
    files = beside or {}
    found = recognise(text, where="it", sibling=lambda name: files.get(name.rpartition("/")[2]))
    assert isinstance(found, Found)
    return resolve(found, given or Given())


def complaint(text: str, given: Given | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read(text, given)
    said = str(caught.value)
    assert "\n" not in said
    return said


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4
PP=$((TP / 2))
GBS=${GBS:-256}
MODEL="
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
  --num-attention-heads 32 --group-query-attention --num-query-groups 8
"
ARGS=(
    --tensor-model-parallel-size $TP      # inside a node
    --pipeline-model-parallel-size "$PP"
    --sequence-parallel
)
ARGS+=(--micro-batch-size 2 --global-batch-size ${GBS})
if [ "$TP" -gt 1 ]; then
    ARGS+=(--use-distributed-optimizer)
else
    ARGS+=(--recompute-activations)
fi
case "$MODE" in
    long) ARGS+=(--seq-length 131072) ;;
    *)    ARGS+=(--seq-length 8192) ;;
esac
cat <<'EOF' > notes.txt
--tensor-model-parallel-size 99 isn't an argument
EOF
srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 pretrain_gpt.py \\
    $MODEL "${ARGS[@]}" --bf16 --swiglu --disable-bias-linear --normalization RMSNorm \\
    --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 \\
    --data-path $(cat blend.txt) 2>&1 | tee log.txt
"""


def test_a_slurm_script_with_variables() -> None:
    reading = read(SCRIPT)
    plan = reading.plan
    assert reading.setting.model.name == "llama-3-8b"
    assert (plan.tp, plan.pp, plan.dp, plan.mbs) == (4, 2, 4, 2)
    assert plan.sharding is Sharding.ZERO1
    assert plan.recompute_modules is Recompute.NONE
    assert reading.setting.cluster.gpus == 32
    assert reading.setting.workload.gbs == 256
    assert reading.setting.workload.seq == 131072, "with $MODE unknown the first arm is read"
    assert any("branches" in note for note in reading.notes)
    assert reading.problems == ()


def test_what_is_not_there_is_filled_in_and_marked() -> None:
    reading = read(f"pretrain_gpt.py {LLAMA_8B} --seq-length 8192 --micro-batch-size 1 --bf16")
    for name in ("tp", "cp", "pp", "sharding", "recompute", "gpu", "gpus", "gbs"):
        assert name in reading.defaults, name
    assert reading.plan.sharding is Sharding.DDP
    assert reading.defaults["gpu"] == "h100-sxm"


def test_etp_defaults_to_tp() -> None:
    """Megatron's default that surprises people: experts are split by tp unless told otherwise."""
    text = (
        f"pretrain_gpt.py {LLAMA_8B} --num-experts 8 --expert-model-parallel-size 2"
        f" --tensor-model-parallel-size 4"
        " --sequence-parallel --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16"
    )
    reading = read(text, Given(gpus=16))
    assert reading.plan.etp == 4
    assert reading.defaults["etp"] == "4"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ("--pipeline-model-parallel-size 3", "32 layers do not divide over pp 3"),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3", "virtual stage"),
        ("--pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 4", "virtual stage"),
        ("--tensor-model-parallel-size 3", "does not divide"),
        ("--recompute-granularity full", "--recompute-method"),
        ("--recompute-granularity selective --recompute-num-layers 2", "no number of layers"),
        ("--overlap-param-gather --overlap-grad-reduce", "--use-distributed-optimizer"),
        ("--use-distributed-optimizer --overlap-param-gather", "--overlap-grad-reduce"),
        ("--use-megatron-fsdp", "fsdp_dtensor"),
        ("--expert-model-parallel-size 2", "--num-experts"),
        ("--context-parallel-size 2 --cp-comm-type a2a+p2p", "hierarchical"),
        ("--fp16", "exclude each other"),
        ("--global-batch-size 63", "gbs"),
        ("--pipeline-model-parallel-layout 'Et|t|tL' --pipeline-model-parallel-size 2", "3 stages"),
        ("--pipeline-model-parallel-layout 'Ett|ttL' --pipeline-model-parallel-size 2", "4 layers"),
        (
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
            " --num-virtual-stages-per-pipeline-rank 4"
            " --global-batch-size 20",
            "multiples of pp",
        ),
    ],
)
def test_why_it_would_not_start(flags: str, part: str) -> None:
    base = f"pretrain_gpt.py {LLAMA_8B} --seq-length 8192 --micro-batch-size 1 --bf16"
    if "--global-batch-size" not in flags:
        base += " --global-batch-size 64"
    reading = read(f"{base} {flags}", Given(gpus=16))
    assert any(part in problem for problem in reading.problems), reading.problems


def test_layers_lost_by_integer_division_are_a_problem() -> None:
    """NVIDIA/Megatron-LM#468: 80 layers, PP16 and 2 layers a virtual stage would train 64 layers."""
    text = (
        "pretrain_gpt.py --num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 2048"
        " --micro-batch-size 1 --global-batch-size 256 --pipeline-model-parallel-size 16"
        " --num-layers-per-virtual-pipeline-stage 2 --vocab-size 51200 --bf16"
    )
    assert any("5 layers" in problem for problem in read(text, Given(gpus=128)).problems)


def test_environment_rules() -> None:
    args = f"pretrain_gpt.py {LLAMA_8B} --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --bf16"
    tensor = args + " --tensor-model-parallel-size 2"
    wrong = read(f"export CUDA_DEVICE_MAX_CONNECTIONS=8\n{tensor}", Given(gpus=8))
    assert any("CUDA_DEVICE_MAX_CONNECTIONS is 8" in problem for problem in wrong.problems)
    right = read(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{tensor}", Given(gpus=8))
    assert right.problems == ()
    silent = read(tensor, Given(gpus=8))
    assert silent.problems == ()
    assert any("CUDA_DEVICE_MAX_CONNECTIONS" in note for note in silent.notes)
    fsdp = args + " --use-megatron-fsdp --ckpt-format fsdp_dtensor"
    refused = read(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{fsdp}", Given(gpus=8))
    assert any("FSDP" in problem for problem in refused.problems)


def test_unknown_flags_are_listed() -> None:
    text = (
        f"pretrain_gpt.py {LLAMA_8B} --seq-length 8192 --micro-batch-size 1"
        f" --tensor-model-paralel-size 4 --bf16"
    )
    assert read(text).unknown == ("--tensor-model-paralel-size",)


def test_a_script_inside_a_string() -> None:
    command = f"python pretrain_gpt.py {LLAMA_8B} --seq-length 4096 --micro-batch-size 1 --bf16"
    text = f'CMD="\ncd /x;\n{command}"\nsrun bash -c "$CMD"'
    assert read(text).setting.workload.seq == 4096


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


def test_virtual_stages_and_ends() -> None:
    base = (
        "pretrain_gpt.py --num-layers 126 --hidden-size 16384 --num-attention-heads 128 --seq-length 8192"
        " --micro-batch-size 1 --global-batch-size 512 --vocab-size 128256 --bf16 --swiglu"
        " --ffn-hidden-size 53248"
        " --group-query-attention --num-query-groups 8 --disable-bias-linear --normalization RMSNorm"
        " --untie-embeddings-and-output-weights --position-embedding-type rope --tensor-model-parallel-size 8"
        " --sequence-parallel --use-distributed-optimizer --pipeline-model-parallel-size 16"
    )
    ends = read(
        base + " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
        Given(gpus=1024),
    )
    assert ends.setting.model.name == "llama-3.1-405b"
    assert ends.plan.layout is None, "7, 8 × 14, 7 is how an even layout with short ends looks"
    counts = read(
        base + " --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7", Given(gpus=1024)
    )
    assert counts.plan == ends.plan
    assert counts.problems == ()


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


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("   \n\n", "empty"),
        ("ELF\0\0\0\x01", "binary"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": 2', "not complete JSON"),
        ('{"train_batch_size": 8, "train_batch_size": 16}', "given twice"),
        ('{"model_type": "llama", "hidden_size": 4096}', "config.json"),
        ('{"hello": 1}', "no DeepSpeed configuration"),
        ("[1, 2, 3]", "JSON list"),
        ('{"train_batch_size": "many"}', "whole number"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": 7}}', "stage"),
        ('{"train_batch_size": 8, "zero_optimization": 3}', "must be a table"),
        (
            f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size 4 --tensor-model-parallel-size 8",
            "given twice (4 and 8)",
        ),
        (f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size $TP --micro-batch-size 1", "$TP"),
        (
            f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size ${{TP}} --micro-batch-size 1",
            "no value in this file",
        ),
        (
            f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size four --micro-batch-size 1",
            "whole number",
        ),
        (f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size 0 --micro-batch-size 1", "from 1"),
        (f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size -2 --micro-batch-size 1", "from 1"),
        (f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size 1e3 --micro-batch-size 1", "whole number"),
        (f"pretrain_gpt.py {LLAMA_8B} --tensor-model-parallel-size 99999999999999999999", "whole number"),
        (
            f"pretrain_gpt.py {LLAMA_8B} --cp-comm-type carrier-pigeon --context-parallel-size 2"
            f" --micro-batch-size 1",
            "p2p",
        ),
        (
            f"pretrain_gpt.py {LLAMA_8B} --recompute-granularity some --micro-batch-size 1",
            "full or selective",
        ),
        (
            f"pretrain_gpt.py {LLAMA_8B} --moe-layer-freq '__import__(1)' --num-experts 8"
            f" --micro-batch-size 1",
            "zeros and ones",
        ),
        (
            "pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --global-batch-size 8",
            "--hidden-size is missing",
        ),
        ("pretrain_gpt.py --tensor-model-parallel-size 4 --micro-batch-size 1", "which model"),
        ("python pretrain_bert.py --num-layers 24 --hidden-size 1024", "only training of decoders"),
        (
            "torchrun train.py --hybrid-layer-pattern M-M- --num-layers 4 --hidden-size 64"
            " --num-attention-heads 4",
            "Mamba",
        ),
        ("colossalai run --nproc_per_node 8 train.py --plugin gemini", "ColossalAI"),
        ("python3 -m MaxText.train MaxText/configs/base.yml dcn_data_parallelism=2", "MaxText"),
        ("[2026-01-01 00:00:00] iteration 1/100 | elapsed 12.3 s | loss 10.4\n" * 40, "no launch settings"),
        ("import torch\nmodel = torch.nn.Linear(1, 1)\n", "Python file without settings"),
        ("import torchtitan.train as t\ndef f(:\n", "Python with an error"),
        (
            "from torchtitan.config import ParallelismConfig\nX ="
            " ParallelismConfig(tensor_parallel_degree=f())\n",
            "not a plain value",
        ),
        ("from torchtitan.config import ParallelismConfig as P\nimport x\n", "sets nothing"),
        ("echo 'never closed\npretrain_gpt.py", "never closed"),
        ('pretrain_gpt.py "${ARGS[@]"', "never closed"),
        ("[parallelism]\ntensor_parallel_degree = ", "not complete TOML"),
        ("[training]\nseq_len = 1\nseq_len = 2\n", "given twice"),
        ("[tool.ruff]\nline-length = 110\n", "no known framework"),
        ("apiVersion: v1\nkind: Pod\n", "without a command"),
        (
            "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\ndistributed_type: NO\n",
            "distributed_type",
        ),
        ("compute_environment: LOCAL_MACHINE\nfsdp_config: [1]\n", "must be a table"),
        ("compute_environment: &a LOCAL\ndistributed_type: *a\n", "alias"),
        ("deepspeed train.py --deepspeed_config nowhere.json", "not beside it"),
        (
            "torchrun -m torchtitan.train --module llama3 --config llama3_8b"
            " --parallelism.pipeline_parallel_schedule Fast"
            " --parallelism.pipeline_parallel_degree 2",
            "1F1B",
        ),
    ],
)
def test_one_sentence_each(text: str, part: str) -> None:
    said = complaint(text)
    assert part in said, said
    assert said.startswith("it: ") or said.startswith("it ")
    assert len(said) < 600


def test_nothing_is_executed(tmp_path) -> None:
    """Command substitution, arithmetic with calls, traps: read as text."""
    marker = tmp_path / "ran"
    text = (
        f"TP=$(touch {marker}; echo 4)\nX=`touch {marker}`\ntrap 'touch {marker}' EXIT\neval touch {marker}\n"
        f"pretrain_gpt.py {LLAMA_8B} --micro-batch-size 1 --tensor-model-parallel-size $((4 + $(touch"
        f" {marker})))"
    )
    complaint(text)
    assert not marker.exists()


def test_shell_words() -> None:
    """The lexer against what bash does (expected values by hand from the manual)."""
    script = read_shell(
        r"""
A=1 B="two words" C='$A' D=$A$B E=${NONE:-x y} F=${A:-z}
echo $B "$B" $C "$C" $D \
  "${A}b" a\ b 'it'"'"'s' $((A + 2 * 3)) ${E} "${E}" ${F} $'x'
L=(1 "2 3" $B); L+=(4)
echo "${L[@]}" ${L[@]} $L
"""
    )
    words = [[w.text for w in command] for command in script.commands]
    assert words[0][:12] == [
        "echo",
        "two",
        "words",
        "two words",
        "$A",
        "$A",
        "1two",
        "words",
        "1b",
        "a b",
        "it's",
        "7",
    ]
    assert words[0][12:16] == ["x", "y", "x y", "1"]
    assert words[1] == ["echo", "1", "2 3", "two", "words", "4", "1", "2", "3", "two", "words", "4", "1"]


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


def test_a_flag_twice_is_refused_where_it_decides_and_noted_where_it_does_not() -> None:
    plain = LLAMA_8B.replace("\\\n", " ") + "--micro-batch-size 1 --global-batch-size 8 --bf16"
    text = plain + " --seq-length 4096 --clip-grad 1.0 --lr 1e-4 --clip-grad 1.0"
    notes = " ".join(read(text).notes)
    assert "--clip-grad is given twice" in notes
    with pytest.raises(InputError, match="--seq-length is given twice"):
        read(plain + " --seq-length 2048 --lr 1 --seq-length 4096")


def test_products_of_numbers_in_modules_are_sizes() -> None:
    import ast

    from meshplan.export.trees import literal_of

    assert literal_of(ast.parse("8 * 2048", mode="eval").body, "x") == 16_384
    for text in ("8 * n", "f(2)", "2 ** 99", "8 * 2.5", "True * 2"):
        with pytest.raises(InputError, match="not a plain value"):
            literal_of(ast.parse(text, mode="eval").body, "x")
