"""Launch files around the one that trains: batch scripts, sourced files, Kubernetes, SkyPilot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshplan.cli import main
from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.reading import Given, Reading, resolve
from meshplan.export.recognise import recognise

LLAMA_8B = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --ffn-hidden-size 14336 --swiglu --normalization RMSNorm --vocab-size 128256"
    " --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope"
)
TRAIN = f"""#!/bin/bash
torchrun --nnodes "${{NNODES:-1}}" --nproc-per-node "${{GPUS:-8}}" pretrain_gpt.py {LLAMA_8B} \\
  --seq-length 8192 --micro-batch-size ${{MBS:-1}} --global-batch-size 256 --bf16 \\
  --tensor-model-parallel-size ${{TP:-2}} --use-distributed-optimizer
"""


def read(text: str, **files: str) -> Reading:
    beside = {name.replace("_", "."): body for name, body in files.items()}
    found = recognise(text, where="it", sibling=lambda name: beside.get(name.rpartition("/")[2]))
    assert isinstance(found, Found)
    return resolve(found, Given())


def test_a_batch_script_that_starts_another() -> None:
    batch = (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nexport TP=4 NNODES=$SLURM_NNODES\nMBS=2\n"
    )
    reading = read(batch + "srun --export=ALL bash $HOME/x/train.sh\n", train_sh=TRAIN)
    assert reading.plan.tp == 4, "exported"
    assert reading.plan.mbs == 1, "not exported: the other script never sees it"
    assert reading.setting.cluster.gpus == 32
    assert any("train.sh" in note for note in reading.notes)


@pytest.mark.parametrize(
    "line",
    [
        "TP=4 MBS=2 bash train.sh",
        "TP=4 MBS=2 ./train.sh",
        "env A=1\nTP=4 MBS=2 exec bash -x ./train.sh",
        "srun bash -c 'TP=4 MBS=2 exec bash ./train.sh'",
        "export TP=4 MBS=2; srun -N 1 ./train.sh",
        "TP=4; MBS=2; source ./train.sh",
        "TP=4; MBS=2\n. train.sh",
        "source env.sh && source train.sh",
    ],
)
def test_the_ways_to_start_a_script(line: str) -> None:
    reading = read(f"#!/bin/bash\n{line}\n", train_sh=TRAIN, env_sh="TP=4\nMBS=2\n")
    assert (reading.plan.tp, reading.plan.mbs) == (4, 2)


def test_slurm_variables_follow_from_directives() -> None:
    batch = (
        "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --gres=gpu:h100:8\n"
        "export NNODES=$SLURM_NNODES GPUS=$SLURM_GPUS_ON_NODE\nsrun ./train.sh\n"
    )
    assert read(batch, train_sh=TRAIN).setting.cluster.gpus == 32


def test_scripts_that_start_each_other() -> None:
    with pytest.raises(InputError, match="no launch settings"):
        read(
            "#!/bin/bash\nbash a.sh\nbash a.sh\n", a_sh="bash b.sh\nbash b.sh\n", b_sh="bash a.sh\n" * 20_000
        )


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no launch settings"):
        read("#!/bin/bash\nsrun bash train.sh\n")


POD = """\
            spec:
              containers:
                - name: pytorch
                  image: nvcr.io/nvidia/pytorch:25.06-py3
                  command: [torchrun, --nnodes=$(NNODES), --nproc-per-node=8, pretrain_gpt.py]
                  args: [{args}]
                  env:
                    - name: NNODES
                      value: "4"
                    - name: TP
                      value: "8"
                    - name: SECRET
                      valueFrom: {secretKeyRef: {name: a, key: b}}
                  resources: {limits: {nvidia.com/gpu: 8}}
"""
PYTORCH_JOB = f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: llama}}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
{POD}
    Worker:
      replicas: 3
      template:
{POD}
"""
ARGS = (
    LLAMA_8B.replace(" ", ", ")
    + ", --seq-length, '8192', --micro-batch-size, '1', --global-batch-size, '256', --bf16"
    + ", --tensor-model-parallel-size, $(TP)"
)


def test_a_pytorch_job() -> None:
    reading = read(PYTORCH_JOB.replace("{args}", ARGS))
    assert reading.what == "a Kubernetes manifest with a launch script of Megatron-LM"
    assert reading.setting.cluster.gpus == 32
    assert (reading.plan.tp, reading.plan.dp) == (8, 4)


def test_a_train_job() -> None:
    text = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: llama}}
spec:
  trainer:
    numNodes: 2
    command: [bash, -c]
    args:
      - |
        export TP=4
        torchrun pretrain_gpt.py {LLAMA_8B} --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 \\
          --bf16 --tensor-model-parallel-size $TP
    resourcesPerNode: {{requests: {{nvidia.com/gpu: 8}}}}
"""
    reading = read(text)
    assert reading.setting.cluster.gpus == 16
    assert reading.plan.tp == 4


def test_a_sky_task() -> None:
    text = (
        "name: llama\nnum_nodes: 4\nenvs: {TP: 8}\nresources:\n  accelerators: H200:8\nrun: |\n"
        "  NNODES=$SKYPILOT_NUM_NODES GPUS=$SKYPILOT_NUM_GPUS_PER_NODE bash train.sh\n"
    )
    reading = read(text, train_sh=TRAIN)
    assert reading.what == "a SkyPilot task with a launch script of Megatron-LM"
    assert (reading.setting.cluster.gpus, reading.setting.cluster.gpu.name) == (32, "h200")
    assert reading.plan.tp == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{command: [sleep, inf]}]}\n", "no launch settings"),
        ("apiVersion: v1\nkind: Service\n", "without a command"),
        ("apiVersion: v1\nkind: Pod\nspec: [\n", "its YAML"),
        ("apiVersion: v1\nkind: Pod\n" + "---\na: 1\n" * 300, "301 YAML documents"),
        ("resources: 3\nrun: [1, 2]\nnum_nodes: x\n", "no launch settings"),
        ("resources: {accelerators: {}}\nrun: 'echo {'\n", "no launch settings"),
        ("apiVersion: v1\nkind: Job\nspec: {containers: [3, {env: [3, {name: 4}], args: 3}]}\n", "without a"),
    ],
)
def test_manifests_that_start_nothing_known(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as failed:
        read(text)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed", "megatron-bridge", "pytorch"])
@pytest.mark.parametrize("launcher", ["slurm", "kubernetes", "skypilot"])
def test_our_own_launchers(
    target: str, launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "16", "--seq", "8192", "--gbs", "64"]
    fixed = ["--tp", "4", "--cp", "1", "--pp", "1", "--mbs", "1"]
    out = str(tmp_path / "x")
    code = main(["export", *ask, *fixed, "--to", target, "--out", out, "--launcher", launcher, "--json"])
    assert code == 0, capsys.readouterr().err
    capsys.readouterr()
    name = {"slurm": "job.sbatch", "kubernetes": "jobset.yaml", "skypilot": "sky.yaml"}[launcher]
    answers = []
    for file in ("run.sh", name):
        assert main(["read", f"{out}/{file}", "--json"]) == 0, capsys.readouterr()
        answers.append(json.loads(capsys.readouterr().out))
    for key in ("model", "cluster", "workload", "plan", "problems", "rules"):
        assert answers[0][key] == answers[1][key]


def test_torchrun_without_nodes_is_one_node() -> None:
    """torchrun's ``--nnodes`` is 1:1 unless another is given (torch/distributed/run.py)."""
    line = f"torchrun --nproc_per_node 8 pretrain_gpt.py {LLAMA_8B} --seq-length 8192 --micro-batch-size 1"
    reading = read(f"{line} --global-batch-size 64 --bf16 --tensor-model-parallel-size 3\n")
    assert reading.setting.cluster.gpus == 8
    assert "gpus" not in reading.defaults
    assert "tp 3 × cp 1 × pp 1 = 3 does not divide 8 GPUs" in reading.problems
    assert read(f"#SBATCH --nodes=4\n{line} --global-batch-size 64\n").setting.cluster.gpus == 32
    several = line.replace("--nproc_per_node", "--nnodes $N --nproc_per_node")
    assert "gpus" in read(f"{several} --global-batch-size 64\n").defaults, "how many is not said"


def test_a_model_without_a_name_has_its_layers_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.sh"
    line = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 18 --hidden-size 2048 --bf16"
    script.write_text(f"{line} --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1\n")
    main(["read", str(script)])
    (model,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("model")]
    assert model.count("18 layers") == 1
