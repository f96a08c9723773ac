"""GPU presets: every number has a source, and the numbers agree with what the architecture gives."""

import csv
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from meshplan.cluster.gpu import Gpu
from meshplan.cluster.presets import _words, gpu_names, gpu_of_table, load_gpu
from meshplan.errors import InputError, UnknownNameError

SHARED = Path(__file__).resolve().parents[3] / "shared"
DATA = Path(sys.modules["meshplan.cluster.presets"].__file__).parent / "data" / "gpus"

WANTED = {
    "a100-40gb", "a100-80gb", "a100-pcie-80gb", "a800-80gb", "v100-16gb", "v100-32gb", "h100-sxm",
    "h100-pcie", "h100-hbm2e-96gb", "h200", "h800", "h20", "b200", "b300", "gb200", "gb300",
    "mi250x", "mi300x", "mi325x", "mi355x", "gaudi2", "gaudi3", "ascend-910b", "ascend-910c",
    "gh200-96gb", "gh200-144gb", "h100-nvl", "h20-141gb", "a100-pcie-40gb", "a40", "a10", "a10g", "rtx-3090",
    "l4", "l40", "l40s", "rtx-4090", "rtx-5090", "rtx-a6000", "rtx-pro-6000", "rtx-pro-6000-ws", "b100", "t4",
    "v100s-pcie-32gb", "mi300a", "mi308x", "mi350x", "trn1", "trn2", "a30", "rtx-6000-ada",
}  # fmt: skip
SHARES_ITS_MEMORY = {"mi300a"}  # with the CPU cores; HIP gives a process 96 of 128 GiB


def test_the_parts_people_train_on_are_there():
    assert set(gpu_names()) >= WANTED


@pytest.mark.parametrize("name", gpu_names())
def test_every_number_has_a_source(name):
    gpu = load_gpu(name)
    numbers = [f for f in Gpu.__dataclass_fields__ if isinstance(getattr(gpu, f), int | float | dict)]
    unsourced = [f for f in numbers if f != "sources" and not gpu.sources.get(f, "").strip()]
    assert not unsourced
    assert set(gpu.sources) <= {*Gpu.__dataclass_fields__, "conflict"}


@pytest.mark.parametrize("name", gpu_names())
def test_memory_is_sane_and_aliases_lead_back(name):
    gpu = load_gpu(name)
    least = 0.75 if name in SHARES_ITS_MEMORY else 0.9
    assert least * gpu.hbm_bytes <= gpu.usable_hbm_bytes <= gpu.hbm_bytes
    assert {load_gpu(alias).name for alias in gpu.aliases} == {name}


def test_aliases_stand_on_the_second_line():
    """The lookup reads only that line, which keeps it fast."""
    for file in DATA.glob("*.toml"):
        text = file.read_text(encoding="utf-8")
        assert tomllib.loads(text.split("\n", 2)[1])["aliases"] == tomllib.loads(text)["aliases"]


@pytest.mark.parametrize(
    ("name", "units", "flop_per_clock", "clock_hz"),
    [  # multiprocessors × FLOP a clock of one × boost clock, from the makers' architecture papers
        ("v100-32gb", 80, 8 * 64 * 2, 1.53e9),
        ("a100-80gb", 108, 4 * 256 * 2, 1.41e9),
        ("h100-sxm", 132, 4 * 512 * 2, 1.83e9),
        ("h100-pcie", 114, 4 * 512 * 2, 1.62e9),
        ("h200", 132, 4 * 512 * 2, 1.83e9),
        ("rtx-4090", 128, 4 * 64 * 2, 2.52e9),
        ("l40s", 142, 4 * 128 * 2, 2.49e9),
        ("mi250x", 110, 1024, 1.7e9),
        ("mi300x", 304, 2048, 2.1e9),
        ("mi325x", 304, 2048, 2.1e9),
        ("mi355x", 256, 4096, 2.4e9),
        ("gh200-96gb", 132, 4 * 512 * 2, 1.83e9),
        ("a100-pcie-40gb", 108, 4 * 256 * 2, 1.41e9),
        ("a40", 84, 4 * 128 * 2, 1.74e9),
        ("a10", 72, 4 * 128 * 2, 1.695e9),
        ("a10g", 80, 4 * 64 * 2, 1.71e9),
        ("rtx-3090", 82, 4 * 64 * 2, 1.695e9),
        ("l40", 142, 4 * 64 * 2, 2.49e9),
        ("l4", 58, 4 * 128 * 2, 2.04e9),
        ("rtx-6000-ada", 142, 4 * 128 * 2, 2.505e9),
        ("a30", 56, 4 * 256 * 2, 1.44e9),
        ("rtx-5090", 170, 4 * 64 * 2, 2.407e9),
        ("rtx-pro-6000", 188, 4 * 128 * 2, 2.43e9),
        ("t4", 40, 8 * 64 * 2, 1.59e9),
        ("v100s-pcie-32gb", 80, 8 * 64 * 2, 1.597e9),
        ("mi300a", 228, 2048, 2.1e9),
        ("mi350x", 256, 4096, 2.2e9),
    ],
)
def test_peaks_are_what_the_architecture_gives(name, units, flop_per_clock, clock_hz):
    gpu = load_gpu(name)
    assert gpu.sms == units
    peak = gpu.peak_flops.get("bf16", gpu.peak_flops.get("fp16"))
    assert peak == pytest.approx(units * flop_per_clock * clock_hz, rel=0.01)


@pytest.mark.parametrize(
    ("name", "links", "bytes_per_link"),
    [
        ("v100-16gb", 6, 25e9), ("a100-40gb", 12, 25e9), ("a100-80gb", 12, 25e9), ("a800-80gb", 8, 25e9),
        ("h100-sxm", 18, 25e9), ("h800", 8, 25e9), ("h200", 18, 25e9), ("h20", 18, 25e9), ("b200", 18, 50e9),
        ("gb200", 18, 50e9), ("b300", 18, 50e9), ("gb300", 18, 50e9), ("mi300x", 7, 64e9),
        ("mi325x", 7, 64e9), ("gaudi2", 21, 12.5e9), ("gaudi3", 21, 25e9), ("gh200-96gb", 18, 25e9),
        ("h20-141gb", 18, 25e9), ("b100", 18, 50e9), ("mi300a", 6, 64e9), ("mi350x", 7, 76.5e9),
    ],
)  # fmt: skip
def test_scale_up_is_links_times_their_speed(name, links, bytes_per_link):
    assert load_gpu(name).scaleup_bandwidth == pytest.approx(links * bytes_per_link)


@pytest.mark.parametrize(
    ("name", "bus_bits", "bits_per_pin"),
    [
        ("v100-32gb", 4096, 1.755e9), ("a100-40gb", 5120, 2.43e9), ("a100-80gb", 5120, 3.186e9),
        ("h100-sxm", 5120, 5.23e9), ("h200", 6144, 6.25e9), ("b200", 7680, 7.992e9), ("mi300x", 8192, 5.2e9),
        ("mi325x", 8192, 5.86e9), ("mi355x", 8192, 7.8e9), ("rtx-4090", 384, 21e9), ("rtx-a6000", 384, 16e9),
        ("h100-nvl", 6016, 5.2e9), ("a40", 384, 14.5e9), ("a10", 384, 12.5e9), ("a10g", 384, 12.5e9),
        ("rtx-3090", 384, 19.5e9), ("l4", 192, 12.5e9), ("l40", 384, 18e9), ("rtx-5090", 512, 28e9),
        ("rtx-6000-ada", 384, 20e9), ("a30", 3072, 2.43e9),
        ("rtx-pro-6000", 512, 25e9), ("rtx-pro-6000-ws", 512, 28e9), ("t4", 256, 10e9),
        ("v100s-pcie-32gb", 4096, 2.214e9), ("mi300a", 8192, 5.2e9), ("mi350x", 8192, 7.8e9),
    ],
)  # fmt: skip
def test_memory_bandwidth_is_bus_width_times_rate(name, bus_bits, bits_per_pin):
    assert load_gpu(name).hbm_bandwidth == pytest.approx(bus_bits * bits_per_pin / 8, rel=0.01)


def test_the_textbooks_h100():
    gpu = load_gpu("h100-sxm")
    assert gpu.peak("bf16") == 989e12
    assert gpu.scaleup_bandwidth == 450e9
    assert gpu.nic_bandwidth == 50e9
    assert gpu.gpus_per_host == gpu.scaleup_domain == 8


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100", "h100-sxm"), ("H100-80GB", "h100-sxm"), ("H100 SXM", "h100-sxm"), ("h100_sxm", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("H100-96GB-HBM2e", "h100-hbm2e-96gb"), ("A100", "a100-80gb"),
        ("A100-80GB", "a100-80gb"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("A100-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"), ("MI250", "mi250"), ("AMD Instinct MI300X", "mi300x"),
        ("ascend_910B(Atlas 900 A2)", "ascend-910b"), ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("GB200 NVL72", "gb200"), ("trn1-neuroncore", "trn1"),
        # as nvidia-smi -L, rocm-smi and torch_npu print them
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"), ("NVIDIA A800-SXM4-80GB", "a800-80gb"), ("NVIDIA A40", "a40"),
        ("NVIDIA A10", "a10"), ("NVIDIA A10G", "a10g"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA H100 NVL", "h100-nvl"), ("NVIDIA H200", "h200"), ("NVIDIA H800", "h800"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H20-3e", "h20-141gb"), ("NVIDIA GH200 480GB", "gh200-96gb"), ("NVIDIA B200", "b200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"), ("NVIDIA GB200", "gb200"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA B300 SXM6 AC", "b300"), ("NVIDIA L40", "l40"), ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"), ("NVIDIA RTX A6000", "rtx-a6000"), ("Tesla T4", "t4"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-ws"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"), ("Tesla V100S-PCIE-32GB", "v100s-pcie-32gb"),
        ("AMD Instinct MI300A", "mi300a"), ("AMD Instinct MI308X", "mi308x"),
        ("AMD Instinct MI350X", "mi350x"),
        ("AMD Instinct MI325X", "mi325x"), ("AMD Instinct MI355X", "mi355x"), ("Ascend910B3", "ascend-910b"),
        # as papers and clouds write them
        ("GH200", "gh200-96gb"), ("A100-80GB-SXM4", "a100-80gb"), ("A100 SXM 40 GB", "a100-40gb"),
        ("A100-40G", "a100-40gb"), ("A100 80G PCIe", "a100-pcie-80gb"), ("DGX A100 80GB", "a100-80gb"),
        ("H100-80GB-SXM5", "h100-sxm"), ("H100 SXM5 80 GB", "h100-sxm"), ("HGX H100", "h100-sxm"),
        ("H100-NVL-94GB", "h100-nvl"), ("H800-SXM", "h800"), ("H800-80GB-SXM5", "h800"), ("H200-SXM", "h200"),
        ("H200-141GB-SXM", "h200"), ("B200-SXM-180GB", "b200"), ("B200-180GB-SXM", "b200"),
        ("HGX B300", "b300"),
        ("H20-96G", "h20"), ("H20 141 GB", "h20-141gb"), ("A800-80GB-SXM", "a800-80gb"),
        ("V100S", "v100s-pcie-32gb"),
        ("V100 32 GB SXM2", "v100-32gb"), ("Ascend-910B3", "ascend-910b"), ("3090", "rtx-3090"),
        ("5090", "rtx-5090"),
        ("RTX PRO 6000", "rtx-pro-6000"), ("MI350", "mi350x"), ("Trainium2", "trn2"),
        ("trn2.48xlarge", "trn2"),
        ("Gaudi 2", "gaudi2"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("NVIDIA A30", "a30"),
        ("MI300X OAM", "mi300x"),
    ],
)  # fmt: skip
def test_names_as_people_write_them(typed, name):
    assert load_gpu(typed).name == name


@pytest.mark.parametrize(
    "typed",
    [
        "h101",
        "rtx 6090",
        "A100-96GB",
        "V100-PCIE-16GB",
        "H200 NVL",
        "gpu",
        "",
        "¿",
        "x" * 100_000,
        "a/b",
        "\0",
    ],
)
def test_unknown_names(typed):
    with pytest.raises(UnknownNameError) as error:
        load_gpu(typed)
    assert len(str(error.value)) < 200


def test_no_name_fits_two_gpus():
    found = {
        name: {load_gpu(alias).name for alias in (name, *load_gpu(name).aliases)} for name in gpu_names()
    }
    assert found == {name: {name} for name in gpu_names()}
    spelled: dict[frozenset[str], set[str]] = {}
    for name in gpu_names():
        for alias in (name, *load_gpu(name).aliases):
            spelled.setdefault(_words(alias), set()).add(name)
    assert [names for names in spelled.values() if len(names) > 1] == []


def test_the_nearest_names_are_offered():
    with pytest.raises(UnknownNameError, match="did you mean 'H100'"):
        load_gpu("h101")


def test_gpus_of_published_runs_are_known():
    table = SHARED / "measurements" / "measurements.csv"
    if not table.is_file():
        pytest.skip(f"SKIPPED LOUDLY: no table of published runs at {table}")
    with table.open(encoding="utf-8") as file:
        names = {row["gpu"] for row in csv.DictReader(file)}
    nobody_knows = {"ascend_unreleased", "V100/A100 (unstated)"}
    assert len(names) > 20
    for name in names - nobody_knows:
        load_gpu(name)


def test_precisions():
    gpu = load_gpu("b200")
    assert gpu.peak("mxfp8") == gpu.peak_flops["fp8"] == 4.5e15
    assert gpu.peak("nvfp4") == gpu.peak_flops["fp4"] == 9e15
    with pytest.raises(InputError, match="v100-32gb has no bf16 matrix multiplication; it has fp16, fp32"):
        load_gpu("v100-32gb").peak("bf16")


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("t4", ["bf16", "fp8", "mxfp8", "fp4", "tf32"]),
        ("v100s-pcie-32gb", ["bf16", "fp8", "tf32"]),
        ("a40", ["fp8", "mxfp8", "nvfp4"]),
        ("a10g", ["fp8"]),
        ("rtx-3090", ["fp8"]),
        ("a100-pcie-40gb", ["fp8"]),
        ("l4", ["mxfp8", "nvfp4"]),
        ("gh200-96gb", ["mxfp8", "nvfp4"]),
        ("h20-141gb", ["nvfp4"]),
        ("mi300a", ["mxfp8", "fp4"]),
        ("mi350x", ["nvfp4"]),
        ("trn2", ["mxfp8", "nvfp4"]),
    ],
)
def test_precisions_that_a_part_lacks_are_refused(name, lacks):
    for precision in lacks:
        with pytest.raises(InputError, match=f"GPU {name} has no {precision} matrix multiplication"):
            load_gpu(name).peak(precision)


def test_a_gpu_like_another():
    gpu = gpu_of_table(
        {"like": "h100-sxm", "hbm": "96 GiB", "peak_flops": {"bf16": "900 TFLOP/s"}}, name="mine", where="gpu"
    )
    assert gpu.name == "mine"
    assert gpu.hbm_bytes == 96 * 2**30
    assert gpu.usable_hbm_bytes == pytest.approx(0.98 * 96 * 2**30)
    assert gpu.peak_flops == {**load_gpu("h100-sxm").peak_flops, "bf16": 900e12}
    assert gpu.sources["hbm_bytes"] == "gpu"
    assert gpu.sources["nic_bandwidth"] == load_gpu("h100-sxm").sources["nic_bandwidth"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"like": "h100", "hmb": "96 GiB"}, "unknown key 'hmb'; did you mean 'hbm'?"),
        ({"like": "h100", "hbm": 96}, "gpu.hbm: '96' has no unit; write '96 GiB' or '96 GB'"),
        ({"like": "h100", "sms": 0}, "gpu.sms must be a whole number of at least 1, not '0'"),
        ({"like": "h100", "sms": 1.5}, "gpu.sms must be a whole number"),
        ({"like": "h100", "hbm": "0 GiB"}, "hbm_bytes must be a positive number, not 0"),
        ({"like": "h100", "usable_hbm": "81 GiB"}, "more memory is usable than the part has"),
        ({"like": "h100", "peak_flops": {"int4": "1 TFLOP/s"}}, "unknown precision 'int4'"),
        ({"like": "h100", "peak_flops": "1 PFLOP/s"}, "gpu.peak_flops must be a table"),
        ({"like": "h100", "title": 3}, "gpu.title must be text"),
        ({"like": ["h100"]}, "gpu.like must be text"),
        ({"like": "h101"}, "unknown GPU 'h101'"),
        ({"hbm": "80 GiB"}, "is missing; give it, or start from a preset with 'like: h100-sxm'"),
        ({}, "gpu: hbm is missing"),
    ],
)
def test_tables_that_cannot_be(table, words):
    with pytest.raises(InputError) as error:
        gpu_of_table(table, name="mine", where="gpu")
    assert words in str(error.value)


def test_presets_load_without_pydantic_yaml_or_rich():
    code = (
        "import sys; from meshplan.cluster.presets import cluster_of; cluster_of('H100', 64); "
        "print([m for m in ('pydantic', 'ruamel', 'ruamel.yaml', 'rich', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
