"""What cannot be read is refused in one sentence, and nothing is run."""

from __future__ import annotations

import pytest
from export_reading import LLAMA_8B, complaint, read

from meshplan.errors import InputError


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


def test_a_flag_twice_is_refused_where_it_decides_and_noted_where_it_does_not() -> None:
    plain = LLAMA_8B.replace("\\\n", " ") + "--micro-batch-size 1 --global-batch-size 8 --bf16"
    text = plain + " --seq-length 4096 --clip-grad 1.0 --lr 1e-4 --clip-grad 1.0"
    notes = " ".join(read(text).notes)
    assert "--clip-grad is given twice" in notes
    with pytest.raises(InputError, match="--seq-length is given twice"):
        read(plain + " --seq-length 2048 --lr 1 --seq-length 4096")
