"""The mesh against the frameworks themselves: torch's device mesh and Megatron's rank generator."""

import itertools
import warnings

import pytest

from meshplan.errors import InputError
from meshplan.plan.mesh import Mesh

pytestmark = pytest.mark.oracle

CASES = [
    ({"tp": 2, "cp": 2, "dp": 2, "pp": 2}, "tp-cp-ep-dp-pp"),
    ({"tp": 4, "cp": 3, "dp": 2, "pp": 2}, "tp-cp-pp-dp"),
    ({"tp": 2, "cp": 2, "dp": 3, "pp": 4}, "pp-dp-cp-tp"),
    ({"tp": 2, "dp": 4, "pp": 2, "ep": 4}, "tp-cp-ep-dp-pp"),
    ({"tp": 4, "cp": 2, "dp": 4, "pp": 2, "ep": 8, "etp": 2}, "tp-cp-ep-dp-pp"),
    ({"tp": 2, "cp": 2, "dp": 8, "pp": 4, "ep": 16}, "tp-cp-ep-dp-pp"),
    ({"tp": 2, "cp": 2, "dp": 8, "pp": 4, "ep": 2, "etp": 2}, "tp-cp-ep-pp-dp"),
]


@pytest.fixture
def fake_ranks():
    """Starts torch.distributed as one rank of many, without any process or network behind it."""
    torch = pytest.importorskip("torch", reason="SKIPPED LOUDLY: torch is not installed (the 'oracle' extra)")
    dist = torch.distributed

    def start(rank, world):
        if dist.is_initialized():
            dist.destroy_process_group()
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        return dist

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(("sizes", "order"), CASES)
def test_torchs_device_mesh_makes_the_same_groups(fake_ranks, sizes, order):
    mesh = Mesh.of(sizes, order)
    for rank in {0, 1, mesh.size // 2 + 1, mesh.size - 1}:
        dist = fake_ranks(rank, mesh.size)
        names = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec("\n".join(mesh.torch_lines("cpu")), names)
        found = {dim: names["mesh"].get_group(dim) for dim in mesh.dense_dims}
        if "dp_cp" in names:
            found["dp-cp"] = names["dp_cp"].get_group()
        if "expert_mesh" in names:
            found |= {dim: names["expert_mesh"].get_group(dim) for dim in mesh.expert_dims}
        assert len(found) >= 4
        for dim, group in found.items():
            assert dist.get_process_group_ranks(group) == mesh.group_of(rank, dim).tolist(), dim
        place = names["mesh"].get_coordinate()
        assert dict(zip(mesh.dense_dims, place, strict=True)).items() <= mesh.coordinates(rank).items()


@pytest.fixture
def generator():
    pytest.importorskip("torch", reason="SKIPPED LOUDLY: torch is not installed (the 'oracle' extra)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = pytest.importorskip(
            "megatron.core.parallel_state", reason="SKIPPED LOUDLY: megatron-core is not installed"
        )
    return state.RankGenerator


@pytest.mark.parametrize(("sizes", "order"), CASES)
def test_megatrons_rank_generator_makes_the_same_groups(generator, sizes, order):
    mesh = Mesh.of(sizes, order)
    tp, cp, dp, pp = (mesh.sizes[dim] for dim in ("tp", "cp", "dp", "pp"))
    dense = generator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    for token in ("tp", "cp", "dp", "pp", "dp-cp", "tp-cp", "tp-pp", "tp-dp-cp"):
        assert mesh.groups(token).tolist() == dense.get_ranks(token), token
    if mesh.experts is None:
        return
    experts = generator(
        tp=mesh.sizes["etp"], ep=mesh.sizes["ep"], dp=mesh.sizes["edp"], pp=pp, cp=1, order=order
    )
    for token in ("ep", "tp-ep", "tp-ep-pp"):
        assert mesh.groups(token).tolist() == experts.get_ranks(token), token
    assert mesh.groups("etp").tolist() == experts.get_ranks("tp")
    assert mesh.groups("edp").tolist() == experts.get_ranks("dp")
    assert mesh.groups("pp").tolist() == experts.get_ranks("pp") == dense.get_ranks("pp")


def test_foldings_are_refused_just_where_megatrons_pipelines_differ(generator):
    """Over all orders of a small mesh, with ep · etp equal to tp · cp or not."""
    refused = 0
    for order in itertools.permutations(("tp", "cp", "ep", "dp", "pp")):
        for ep in (2, 4):
            text = "-".join(order)
            dense = generator(tp=2, ep=1, dp=4, pp=2, cp=1, order=text)
            experts = generator(tp=1, ep=ep, dp=8 // ep, pp=2, cp=1, order=text)
            same = dense.get_ranks("pp") == experts.get_ranks("pp")
            made = True
            try:
                Mesh.of({"tp": 2, "dp": 4, "pp": 2, "ep": ep}, text)
            except InputError:
                made = False
                refused += 1
            assert made == same, text
    assert refused > 20
