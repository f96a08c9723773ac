"""``meshplan doctor`` and ``meshplan completion``."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from meshplan.cli import main
from meshplan.cli.app import COMMANDS

SMI = """#!/bin/sh
case "$1" in
  topo) printf '\\033[4mGPU0\\tGPU1\\033[0m\\nGPU0\\t X \\tNV18\\n' ;;
  *) echo "NVIDIA H100 80GB HBM3, 81559, 570.86.15"; echo "NVIDIA GB10, [N/A], 570.86.15" ;;
esac
"""


def doctor(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["doctor", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_doctor_says_versions_and_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor(capsys)
    assert found["problems"] == []
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"meshplan  {found['meshplan']} on Python {found['python']}")
    assert "all is well" in text


def test_gpus_are_asked_of_nvidia_smi(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(smi.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = doctor(capsys)
    assert found["gpus"] == [
        {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 81559 << 20, "driver": "570.86.15"},
        {"name": "NVIDIA GB10", "memory_bytes": None, "driver": "570.86.15"},
    ]
    assert found["links"] == ["GPU0\tGPU1", "GPU0\t X \tNV18"]


def test_doctor_survives_a_broken_driver(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    smi.chmod(smi.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert doctor(capsys)["gpus"] == []


def test_doctor_tells_no_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "someone" / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "https://user:word@mirror.example")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    main(["doctor"])
    text = capsys.readouterr().out
    assert "HF_HOME=~/hub" in text
    assert "https://…@mirror.example" in text
    assert "word" not in text
    assert "hf_secret" not in text


def test_a_preset_that_cannot_be_read_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr("meshplan.cluster.presets.load_gpu", broken)
    assert main(["doctor"]) == 1
    assert "problem   GPU preset" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_knows_every_command(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command.name in script for command in COMMANDS)
    assert "one-f-one-b" not in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["completion", "bash"])
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)

    def complete(*words: str) -> list[str]:
        line = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _meshplan"
        done = subprocess.run(
            ["bash", "-c", f'{line}; echo "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert complete("meshplan", "esti") == ["estimate"]
    assert complete("meshplan", "plan", "llama-3.1-8b", "--shard") == ["--sharding"]
    assert complete("meshplan", "plan", "llama-3.1-8b", "--schedule", "1f") == ["1f1b"]


def test_completion_installs_where_the_shell_looks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["completion", "bash", "--install"]) == 0
    place = capsys.readouterr().out.strip()
    assert place == "~/.local/share/bash-completion/completions/meshplan"
    assert "complete -F _meshplan meshplan" in (tmp_path / place[2:]).read_text()
    assert [p.name for p in tmp_path.iterdir()] == [".local"]  # no start-up file


def test_an_unknown_shell_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cyclopts.completion import ShellDetectionError

    def lost() -> None:
        raise ShellDetectionError

    monkeypatch.setattr("cyclopts.completion.detect_shell", lost)
    assert main(["completion"]) == 2
    assert "cannot tell which shell this is" in capsys.readouterr().err
