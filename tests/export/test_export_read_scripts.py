"""Reading Megatron's launch scripts as people write them: shell variables, arrays, branches."""

from __future__ import annotations

import pytest
from export_reading import LLAMA_8B, read

from meshplan.export.reading import Given
from meshplan.export.shell import read_shell
from meshplan.plan.kinds import Recompute, Sharding

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
