"""Scripts that take arguments, go through loops and put a command together before they run it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from meshplan.cli import main
from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.reading import Given, Reading, resolve
from meshplan.export.recognise import recognise
from meshplan.export.shell import read_shell
from meshplan.export.shell_arithmetic import arithmetic
from meshplan.model.layers import Moe

TRAIN = r"""#!/bin/bash
set -e
WHERE=$1
SIZE=$2
BATCH=$3
TP=${4}
PP=${5}
SP=$6
FREEZE=$7
SEQ=${10}
if [ $WHERE = one ]; then
  NODES=1
elif [ $WHERE = many ]; then
  NODES=$NNODES
fi
if [ $SIZE = 8B ]; then
  LAYERS=32 WIDTH=4096 HEADS=32 FFN=14336
elif [ $SIZE = 70B ]; then
  LAYERS=80 WIDTH=8192 HEADS=64 FFN=28672
fi
if [ $SP = true ] && [ $TP -gt 1 ]; then
  sp_options=" --sequence-parallel"
elif [ $SP = false ]; then
  sp_options=""
fi
if [ $FREEZE = true ]; then
  frozen=" --freeze-everything"
fi
command="torchrun --nnodes $NODES --nproc-per-node 8 pretrain_gpt.py --num-layers $LAYERS \
  --hidden-size $WIDTH \
  --num-attention-heads $HEADS --group-query-attention --num-query-groups 8 --ffn-hidden-size $FFN --swiglu \
  --normalization 'RMSNorm' --vocab-size 128256 --untie-embeddings-and-output-weights --disable-bias-linear \
  --position-embedding-type rope --seq-length $SEQ --micro-batch-size 1 --global-batch-size $BATCH --bf16 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --use-distributed-optimizer \
  $sp_options $frozen"
echo ${command}
eval ${command}
"""
ARGUMENTS = ("one", "8B", "64", "2", "2", "true", "false", "x", "y", "8192")
EXPERTS = r"""
NLAYERS=61
DENSE=3
list=()
for ((i=0; i<NLAYERS; i++)); do
  if (( i < DENSE )); then
    list+=(0)
  else
    list+=(1)
  fi
done
printf -v FREQ "[%s]" "$(IFS=', '; echo "${list[*]}")"
"""


def found(text: str, *arguments: str) -> Found:
    what = recognise(text, where="it", arguments=arguments)
    assert isinstance(what, Found)
    return what


def read(text: str, *arguments: str) -> Reading:
    return resolve(found(text, *arguments), Given())


def test_a_script_is_read_as_started_with_its_arguments() -> None:
    reading = read(TRAIN, *ARGUMENTS)
    assert (reading.plan.tp, reading.plan.pp, reading.plan.sp) == (2, 2, True)
    assert (reading.setting.workload.seq, reading.setting.workload.gbs) == (8192, 64)
    assert (len(reading.setting.model.layers), reading.setting.model.hidden) == (32, 4096)
    assert reading.unknown == ()
    big = read(TRAIN, *ARGUMENTS[:1], "70B", "64", "1", "8", "true", "true", *ARGUMENTS[7:])
    assert (big.plan.tp, big.plan.pp, len(big.setting.model.layers)) == (1, 8, 80)
    assert "--freeze-everything" in big.unknown


def test_missing_arguments_are_named_as_the_script_names_them() -> None:
    with pytest.raises(InputError) as error:
        found(TRAIN)
    told = str(error.value)
    assert "which has no value in this file" in told
    assert told.endswith("read FILE -- WHERE SIZE BATCH TP PP SP FREEZE $8 $9 SEQ")
    with pytest.raises(InputError, match="3 arguments were given, and the script takes: WHERE SIZE BATCH TP"):
        found(TRAIN, *ARGUMENTS[:3])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text(TRAIN)
    assert main(["read", str(script), "--", *ARGUMENTS]) == 0
    assert "tp2 cp1 dp2 pp2 mbs1" in capsys.readouterr().out
    assert main(["read", str(script), *ARGUMENTS[:9], "16384", "--gpu", "h200"]) == 0
    assert "seq 16,384" in capsys.readouterr().out
    assert main(["read", str(script)]) == 2
    assert "-- WHERE SIZE BATCH" in capsys.readouterr().err
    job = tmp_path / "job.yaml"
    job.write_text("model: llama-3.1-8b\ncluster: {gpu: h100-sxm, gpus: 8}\nworkload: {seq: 4096, gbs: 8}\n")
    assert main(["read", str(job), "--", "8B"]) == 2
    assert "unexpected argument '8B': nothing in it reads one" in capsys.readouterr().err
    script.write_text(TRAIN.replace("$", ""))
    assert main(["read", str(script), "8B"]) == 2
    assert "unexpected argument '8B'" in capsys.readouterr().err


def test_arguments_handed_on_to_the_next_script() -> None:
    text = "bash inner.sh one 8B 64 $2 1 true false x y 4096\n"
    what = recognise(text, where="it", sibling=lambda name: TRAIN, arguments=("a", "4"))
    assert isinstance(what, Found)
    assert what.columns["tp"] == 4


def test_a_list_made_in_a_loop_says_which_layers_are_sparse() -> None:
    script = EXPERTS + (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 61 --hidden-size 2048"
        " --num-attention-heads 16 --ffn-hidden-size 8192 --moe-ffn-hidden-size 1024 --num-experts 64"
        " --moe-router-topk 6 --swiglu"
        " --moe-layer-freq $FREQ --seq-length 4096 --micro-batch-size 1 --global-batch-size 8 --bf16"
        " --tensor-model-parallel-size 1 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
        " --vocab-size 32000\n"
    )
    model = found(script).model
    assert model is not None
    assert [isinstance(layer.mlp, Moe) for layer in model.layers] == [False] * 3 + [True] * 58


# Each prints what it comes to; bash itself is asked, where it is there.
SCRIPTS = {
    "list": (EXPERTS.replace("61", "6") + 'echo "$FREQ"', "[0,0,0,1,1,1]"),
    "words": ('for i in 1 2 3; do all+="$i,"; done; echo $all', "1,2,3,"),
    "seq": ("n=(); for i in $(seq 2 4); do n+=($((i * i))); done; echo ${n[@]}", "4 9 16"),
    "while": ("i=0; while [ $i -lt 5 ]; do i=$((i + 2)); done; echo $i", "6"),
    "until": ("i=9; until [ $i -lt 5 ]; do (( i -= 3 )); done; echo $i", "3"),
    "shift": (
        'while [[ $# -gt 0 ]]; do case "$1" in --tp) TP="$2"; shift 2;; --pp) PP=$2; shift; shift;;'
        " *) shift;; esac; done; echo $TP $PP",
        "4 2",
    ),
    "joined": (
        "if [ a = a ] && [ 1 -gt 2 ]; then x=1; elif [ a = b ] || [ 3 -eq 3 ]; then x=2; fi; echo $x", "2",
    ),
    "choice": ("TP=4; echo $(( (TP > 1) ? 10 / 3 : 0 ))", "3"),
    "printf": ("printf -v x '%s-%d' a 7; echo $x", "a-7"),
    "nested": ("for ((i=0;i<2;i++)); do for ((j=0;j<2;j++)); do s+=$i$j; done; done; echo $s", "00011011"),
    "never": ("for ((i=0;i<0;i++)); do s=bad; done; echo ok$s", "ok"),
    "count": ("echo $# ${2}", "5 4"),
    "let": ("x=3; let x+=4; echo $x", "7"),
    "unset": ("if [ a = b ]; then y=1; fi; echo a $y b", "a b"),
}  # fmt: skip
GIVEN = ("--tp", "4", "x", "--pp", "2")


@pytest.mark.parametrize("name", SCRIPTS)
def test_loops_and_arithmetic_as_the_shell_does_them(name: str) -> None:
    text, expected = SCRIPTS[name]
    last = read_shell(text, arguments=GIVEN).commands[-1]
    assert " ".join(word.text for word in last) == f"echo {expected}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="NOT CHECKED: bash is not here")
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_bash_says(name: str) -> None:
    text, expected = SCRIPTS[name]
    run = subprocess.run(["bash", "-c", text, "it", *GIVEN], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == expected


@pytest.mark.parametrize(
    "text",
    [
        "while true; do x=1; done; echo end",
        "while [ 1 -eq 1 ]; do x=1; done; echo end",
        "for ((;;)); do x=1; done; echo end",
        "i=0; while [ $i -lt 5 ]; do x=1; done; echo end",
        "for ((i=0; i<10; i--)); do x=1; done; echo end",
        "for ((i=0; i<10",
        "while [[ $# -gt 0 ]]; do x=$1; done; echo end",
        "done; fi; esac; echo end",
    ],
)  # fmt: skip
def test_loops_without_an_end_come_to_one(text: str) -> None:
    script = read_shell(text)
    assert len(script.commands) < 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7), ("-7 / 2", -3), ("-7 % 2", -1), ("!0 + !5", 1), ("2 < 3 && 4 >= 4", 1),
        ("n++ + n", None), ("(1, 2)", None), ("1 / 0", None), ("1 +", None), ("__import__('os')", None),
        ("9" * 30, None), ("", None),
        ("n ? 5 : 6", 5), ("n = 3", None), ("(((((3)))))", 3), ("(" * 2000, None), ("$n + ${n}", 2),
    ],
)  # fmt: skip
def test_arithmetic(text: str, value: int | None) -> None:
    """As C does it (ISO C99 6.5); nothing that sets a variable without a place to set it."""
    assert arithmetic(text, {"n": 1}.get) == value
