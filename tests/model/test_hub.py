from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from meshplan.errors import InputError, UnknownNameError
from meshplan.model.hub import cache_folder, is_repo
from meshplan.model.load import load_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 100,
}
REPO = "someone/small-llama"


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))


def fill(cache: Path, *, ref: str | None = "main-revision", revision: str = "main-revision") -> None:
    """A cache as huggingface_hub lays it out: the snapshot's file is a link to a blob."""
    repo = cache / "models--someone--small-llama"
    snapshot = repo / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "blobs" / "f00d").write_text(json.dumps(CONFIG))
    (snapshot / "config.json").symlink_to("../../blobs/f00d")
    if ref is not None:
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(ref)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "nothing" / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"


@pytest.mark.parametrize(("variable", "below"), [("HF_HUB_CACHE", "."), ("HF_HOME", "hub")])
def test_a_model_in_the_cache_is_found(
    variable: str, below: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    fill(tmp_path / "cache" / below)
    model = load_model(REPO)
    assert model.name == "small-llama"
    assert model.hidden == 64
    assert model.source == f"{REPO} on the Hugging Face hub"


def test_the_revision_is_what_main_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    fill(tmp_path, ref="other")
    with pytest.raises(UnknownNameError):
        load_model(REPO)


def test_without_a_reference_any_snapshot_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    fill(tmp_path, ref=None)
    assert load_model(REPO).hidden == 64


def test_a_reference_cannot_lead_out_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    fill(tmp_path, ref="../../../..")
    with pytest.raises(UnknownNameError):
        load_model(REPO)


def test_without_download_nothing_is_fetched() -> None:
    with pytest.raises(UnknownNameError, match="--download"):
        load_model(REPO)


def test_downloading_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'meshplan\[hub\]'"):
        load_model(REPO, download=True)


def test_downloading_fetches_the_configuration_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def hf_hub_download(repo: str, file: str) -> str:
        asked.append((repo, file))
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        return str(tmp_path / "config.json")

    hub = types.SimpleNamespace(hf_hub_download=hf_hub_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)  # type: ignore[arg-type]
    assert load_model(REPO, download=True).hidden == 64
    assert asked == [(REPO, "config.json")]


def test_a_failed_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def hf_hub_download(repo: str, file: str) -> str:
        raise ConnectionError("no route\nto host")

    hub = types.SimpleNamespace(hf_hub_download=hf_hub_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"cannot download config\.json of 'someone/small-llama': no route$"):
        load_model(REPO, download=True)


def test_offline_means_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        load_model(REPO, download=True)


@pytest.mark.parametrize("name", ["a/b", "meta-llama/Llama-3.1-70B", "Org_1/x.y"])
def test_hub_names(name: str) -> None:
    assert is_repo(name)


@pytest.mark.parametrize("name", ["a", "a/b/c", "../b", "a/..", "/a/b", "a/b\n", "a b/c", "-a/b"])
def test_what_is_no_hub_name(name: str) -> None:
    assert not is_repo(name)
