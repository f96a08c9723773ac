"""Cluster files: what is read, and one sentence for everything that cannot be."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshplan.cluster.files import CLUSTER_KEYS, cluster_of_table, load_cluster, parse_table
from meshplan.cluster.presets import cluster_of
from meshplan.errors import InputError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster.yaml"


@pytest.fixture
def write(tmp_path):
    def write(text, name="cluster.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refused(path, **more):
    with pytest.raises(InputError) as error:
        load_cluster(path, **more)
    text = str(error.value)
    assert "\n" not in text
    return text.removeprefix(f"cluster file '{path}'").lstrip(": ")


def test_the_example():
    cluster = load_cluster(EXAMPLE)
    assert cluster.name == "our-h100"
    assert cluster.gpu.name == "h100-sxm"
    assert [(t.name, t.span, t.bandwidth) for t in cluster.tiers] == [
        ("NVLink", 8, 450e9),
        ("pod", 512, 50e9),
        ("spine", 1024, 12.5e9),  # 400 Gb/s, oversubscribed 4 to 1
    ]
    assert [t.latency_s for t in cluster.tiers] == [3.4e-6, 14e-6, 14e-6]


def test_fewer_gpus_than_the_file_has():
    cluster = load_cluster(EXAMPLE, gpus=64)
    assert [(t.name, t.span) for t in cluster.tiers] == [("NVLink", 8), ("pod", 64)]


def test_a_short_file_is_the_flags(write):
    found = load_cluster(write("gpu: h100\ngpus: 64\n"))
    assert found.tiers == cluster_of("h100", 64).tiers
    found = load_cluster(write("gpu: h100\ngpus: 12\ngpus_per_node: 4\nnic: 100 Gb/s\n"))
    assert found.tiers == cluster_of("h100", 12, gpus_per_node=4, nic="100 Gb/s").tiers


def test_toml_says_the_same(write):
    toml = """
        name = "our-h100"
        gpu = "h100-sxm"
        gpus = 1024
        memory_fraction = 0.9
        tiers = [
            { name = "NVLink", span = 8, bandwidth = "450 GB/s", latency = "3.4 us" },
            { name = "pod", span = 512, bandwidth = "400 Gb/s" },
            { name = "spine", bandwidth = "400 Gb/s", oversubscription = 4.0 },
        ]
    """
    assert load_cluster(write(toml, "cluster.toml")) == load_cluster(EXAMPLE)


def test_a_gpu_of_ones_own(write):
    cluster = load_cluster(write("gpu: {like: ascend-910b, peak_flops: {bf16: 313 TFLOP/s}}\ngpus: 16\n"))
    assert cluster.gpu.peak("bf16") == 313e12
    assert cluster.tiers[0].span == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu: h100\ngpu_count: 64\n", "unknown key 'gpu_count'; did you mean 'gpu'? (and 1 more)"),
        ("gpu: h100\ngpus: 64\nmemory: 0.9\n", "unknown key 'memory'; did you mean 'memory_fraction'?"),
        ("gpu: h100\ngpus: 64\nfoo: 1\n", "unknown key 'foo'; known: " + ", ".join(CLUSTER_KEYS)),
        ("gpu: h100\ngpus: many\n", "gpus must be a whole number, not 'many'"),
        ("gpu: h100\ngpus: 8.0\n", "gpus must be a whole number, not '8.0'"),
        ("gpu: h100\ngpus: true\n", "gpus must be a whole number, not 'True'"),
        ("gpu: h100\ngpus: 0\n", "gpus must be from 1 to 10,000,000, not 0"),
        ("gpu: h100\n", "gpus is missing"),
        ("gpus: 8\n", "gpu is missing"),
        ("gpu: h101\ngpus: 8\n", "unknown GPU 'h101'; did you mean 'H100'?"),
        ("gpu: [h100]\ngpus: 8\n", "gpu must be the name of a preset or a table"),
        ("gpu: {like: h100, hmb: 1 GiB}\ngpus: 8\n", "gpu: unknown key 'hmb'; did you mean 'hbm'?"),
        ("gpu: h100\ngpus: 12\n", "12 GPUs do not fill whole nodes of 8; use 8 or 16"),
        ("gpu: h100\ngpus: 64\nmemory_fraction: .nan\n", "memory_fraction must be above 0"),
        ("gpu: h100\ngpus: 64\nnic: 400\n", "nic: '400' has no unit; write '400 GB/s' or '400 Gb/s'"),
        ("gpu: h100\ngpus: 64\nname: 3\n", "name must be text, not '3'"),
        ("gpu: h100\ngpu: h200\ngpus: 8\n", 'is not YAML: found duplicate key "gpu"'),
        ("gpu: h100\n  gpus: 8\n", "is not YAML: "),
        ("a: [", "is not YAML: "),
        ("[" * 3000, "is nested more than 50 deep at line 1"),
        ("a: &x [1]\nb: *x\n", "YAML aliases (*x) are not supported; write the value out"),
        ("!!python/object:os.system {}", "is not YAML: "),
        ("- a\n", "must hold a table of keys and values"),
        ("", "is empty"),
        ("1: 2\n", "keys must be text, not '1'"),
        ("gpu: h100\ngpus: " + "9" * 5000, "is not YAML: "),
    ],
)
def test_files_that_cannot_be(write, text, words):
    assert words in refused(write(text))


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        ("[]", "tiers is empty"),
        ("[{span: 8, bandwidth: 450}, {bandwidth: 50 GB/s}]", "tiers[0].bandwidth: '450' has no unit"),
        ("[{span: 8, bandwith: 450 GB/s}]", "unknown key 'tiers[0].bandwith'; did you mean 'bandwidth'?"),
        ("[{span: 8}]", "tiers[0].bandwidth is missing"),
        ("[{bandwidth: 450 GB/s}, {bandwidth: 50 GB/s}]", "tiers[0].span is missing; only the last tier"),
        ("[{span: 8, bandwidth: 450 GB/s}, {span: 32, bandwidth: 50 GB/s}]", "reach only 32 of 64 GPUs"),
        ("[{span: 8, bandwidth: 450 GB/s}, {span: 8, bandwidth: 50 GB/s}, {bandwidth: 1 GB/s}]", "must grow"),
        ("[{span: 0, bandwidth: 450 GB/s}, {bandwidth: 50 GB/s}]", "span must be a whole number of GPUs"),
        ("[{span: 8, bandwidth: 0 GB/s}, {bandwidth: 50 GB/s}]", "bandwidth must be positive"),
        (
            "[{span: 8, bandwidth: 1 GB/s, latency: 5}, {bandwidth: 50 GB/s}]",
            "tiers[0].latency: '5' has no unit",
        ),
        ("[{span: 8, bandwidth: 1 GB/s, oversubscription: 0.5}, {bandwidth: 50 GB/s}]", "must be 1 or more"),
        ("[8]", "tiers[0] must be a table, not '8'"),
        ("8", "tiers must be a list, not '8'"),
        ("[{span: 8, bandwidth: 450 GB/s}, {bandwidth: 50 GB/s}]\nnic: 1 GB/s", "give either tiers or nic"),
    ],
)
def test_tiers_that_cannot_be(write, tiers, words):
    assert words in refused(write(f"gpu: h100\ngpus: 64\ntiers: {tiers}\n"))


def test_files_that_cannot_be_opened(tmp_path, write):
    assert refused(tmp_path / "none.yaml") == "does not exist"
    assert refused(tmp_path) == "is a folder, not a file"
    assert "larger than 1 MiB" in refused(write("# " + "x" * (1 << 20) + "\n"))
    assert "is not TOML: " in refused(write("gpu = 'h100\n", "c.toml"))
    (tmp_path / "latin.yaml").write_bytes(b"gpu: \xff\n")
    assert "is not UTF-8 text" in refused(tmp_path / "latin.yaml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(CLUSTER_KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from((*CLUSTER_KEYS, "other")), JSON), st.none() | st.integers(-1, 100))
@settings(deadline=None)
def test_any_table_is_a_cluster_or_one_sentence(table, gpus):
    text = "file: fine"
    try:
        cluster_of_table({"gpu": "h100", **table}, where="file", gpus=gpus)
    except InputError as error:
        text = str(error)
    assert text.startswith("file: ")
    assert len(text.splitlines()) == 1


@given(st.text(alphabet="gpus: h10{}[]&*!-\n\t'\"|>#%@,?abc", max_size=60))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_a_table_or_one_sentence(text):
    for toml in (False, True):
        found, sentence = {}, "fine"
        try:
            found = parse_table(text, toml=toml, where="file")
        except InputError as error:
            sentence = str(error)
        assert isinstance(found, dict)
        assert len(sentence.splitlines()) == 1
