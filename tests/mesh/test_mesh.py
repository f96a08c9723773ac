"""The mesh: the textbook's figures, what must hold for any mesh, and what is refused."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.errors import InputError
from meshplan.plan.mesh import Mesh, ranks_in_node, read_order

DEGREE = st.sampled_from([1, 2, 3, 4, 6])
ORDERS = st.permutations(["tp", "cp", "ep", "dp", "pp"])


def test_the_textbooks_mesh():
    """16 GPUs, 8 a node, all degrees 2, nested tp, cp, dp, pp from inside out."""
    mesh = Mesh.of({"tp": 2, "cp": 2, "dp": 2, "pp": 2})
    assert mesh.groups("tp").tolist()[:4] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("cp").tolist()[:4] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("dp").tolist()[:4] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("pp").tolist()[:4] == [[0, 8], [1, 9], [2, 10], [3, 11]]
    for dim, inside in (("tp", True), ("cp", True), ("dp", True), ("pp", False)):
        assert mesh.groups(dim).shape == (8, 2)
        assert mesh.inside_node(dim, 8).tolist() == [inside] * 8
    assert mesh.coordinates(13) == {"tp": 1, "cp": 0, "dp": 1, "pp": 1}
    assert mesh.neighbours(13, "dp") == (9, 9)


def test_llama_3s_order():
    """tp-cp-pp-dp: stages are closer than data-parallel ranks (Llama 3, section 3.3.2)."""
    mesh = Mesh.of({"tp": 8, "cp": 1, "pp": 16, "dp": 8}, "tp-cp-pp-dp")
    assert mesh.groups("tp")[0].tolist() == list(range(8))
    assert mesh.groups("pp")[0].tolist() == list(range(0, 128, 8))
    assert mesh.groups("dp")[0].tolist() == list(range(0, 1024, 128))
    assert mesh.neighbours(8, "pp") == (0, 16)
    assert mesh.neighbours(0, "pp") == (120, 8)


def test_experts_regroup_the_same_ranks():
    """The example in Megatron's documentation of rank groups: ep takes adjacent data-parallel ranks."""
    mesh = Mesh.of({"tp": 2, "dp": 4, "pp": 2, "ep": 4})
    assert mesh.sizes["edp"] == 2
    assert mesh.groups("ep").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert mesh.groups("edp").tolist()[:2] == [[0, 4], [1, 5]]
    assert mesh.coordinates(13) == {"tp": 1, "cp": 0, "dp": 2, "pp": 1, "etp": 0, "ep": 1, "edp": 1}
    assert mesh.groups("tp-ep").tolist() == mesh.groups("etp-ep").tolist()
    assert Mesh.of({"tp": 2, "dp": 4, "pp": 2}).dims == ("tp", "cp", "dp", "pp")


@given(DEGREE, DEGREE, DEGREE, DEGREE, ORDERS)
def test_every_rank_is_in_one_group_of_every_dimension(tp, cp, dp, pp, order):
    mesh = Mesh.of({"tp": tp, "cp": cp, "dp": dp, "pp": pp}, order)
    assert mesh.size == tp * cp * dp * pp
    for dim in ("tp", "cp", "dp", "pp", "dp-cp", "tp-cp", "tp-dp-cp", "tp-pp"):
        groups = mesh.groups(dim)
        assert groups.shape[1] == math.prod(mesh.sizes[d] for d in dim.split("-"))
        assert sorted(groups.ravel().tolist()) == list(range(mesh.size))
        assert (np.diff(groups, axis=1) > 0).all()


@given(DEGREE, DEGREE, DEGREE, DEGREE, ORDERS)
def test_the_order_nests_from_inside_out(tp, cp, dp, pp, order):
    """The step between neighbours of a dimension is the product of the sizes inside it."""
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    mesh = Mesh.of(sizes, order)
    step = 1
    for dim in order:
        if dim == "ep":
            continue
        if sizes[dim] > 1:
            assert (np.diff(mesh.groups(dim), axis=1) == step).all()
        step *= sizes[dim]


@given(DEGREE, DEGREE, DEGREE, DEGREE, ORDERS, st.data())
def test_a_rank_agrees_with_its_groups(tp, cp, dp, pp, order, data):
    mesh = Mesh.of({"tp": tp, "cp": cp, "dp": dp, "pp": pp}, order)
    rank = data.draw(st.integers(0, mesh.size - 1))
    for dim, place in mesh.coordinates(rank).items():
        (group,) = (g for g in mesh.groups(dim).tolist() if rank in g)
        assert group == mesh.group_of(rank, dim).tolist()
        assert group[place] == rank
        assert mesh.neighbours(rank, dim) == (group[place - 1], group[(place + 1) % len(group)])


@given(DEGREE, DEGREE, DEGREE, DEGREE, st.integers(1, 8), st.integers(1, 8))
def test_both_foldings_hold_the_same_pipelines(tp, cp, dp, pp, ep, etp):
    stage = tp * cp * dp
    if stage % (ep * etp):
        with pytest.raises(InputError, match="could be"):
            Mesh.of({"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": ep, "etp": etp})
        return
    mesh = Mesh.of({"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": ep, "etp": etp})
    assert mesh.sizes["edp"] * ep * etp == stage
    assert np.array_equal(mesh.dense.ravel(), mesh.experts.ravel())
    for dim in ("ep", "etp", "edp", "etp-ep", "etp-ep-pp"):
        assert sorted(mesh.groups(dim).ravel().tolist()) == list(range(mesh.size))
    pipelines = {
        tuple(g) for g in np.moveaxis(mesh.experts, mesh.expert_dims.index("pp"), -1).reshape(-1, pp).tolist()
    }
    assert pipelines == {tuple(g) for g in mesh.groups("pp").tolist()}


@given(DEGREE, DEGREE, DEGREE, DEGREE, ORDERS, st.sampled_from([1, 2, 3, 4, 8, 72]))
def test_nodes_by_counting(tp, cp, dp, pp, order, node):
    mesh = Mesh.of({"tp": tp, "cp": cp, "dp": dp, "pp": pp}, order)
    for dim in ("tp", "cp", "dp", "pp", "dp-cp"):
        inside = mesh.inside_node(dim, node).tolist()
        fewest = mesh.ranks_per_node(dim, node).tolist()
        for group, is_inside, count in zip(mesh.groups(dim).tolist(), inside, fewest, strict=True):
            on_nodes = [len(list(some)) for _, some in itertools.groupby(group, lambda rank: rank // node)]
            assert is_inside == (len(on_nodes) == 1)
            assert count == min(on_nodes)


@given(*[st.sampled_from([1, 2, 4, 8])] * 4, ORDERS, st.sampled_from([1, 2, 4, 8, 16]))
def test_the_closed_form_for_columns_agrees_with_the_mesh(tp, cp, dp, pp, order, node):
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    mesh = Mesh.of(sizes, order)
    columns = {dim: np.array([size, size]) for dim, size in sizes.items()}
    for dim in ("tp", "cp", "dp", "pp", "dp-cp"):
        (held,) = set(mesh.ranks_per_node(dim, node).tolist())
        assert ranks_in_node(dim.split("-"), columns, order, node).tolist() == [held, held]


@pytest.mark.parametrize(
    ("sizes", "order", "words"),
    [
        ({"tp": 0}, "tp-cp-ep-dp-pp", "tp must be a whole number of at least 1, not '0'"),
        ({"tp": -2}, "tp-cp-ep-dp-pp", "tp must be a whole number"),
        ({"tp": 2.0}, "tp-cp-ep-dp-pp", "tp must be a whole number"),
        ({"tp": True}, "tp-cp-ep-dp-pp", "tp must be a whole number"),
        ({"fsdp": 2}, "tp-cp-ep-dp-pp", "unknown dimension 'fsdp'; known: tp, cp, dp, pp, ep, etp"),
        (
            {"tp": 10**5, "dp": 10**5},
            "tp-cp-ep-dp-pp",
            "tp 100000 × dp 100000 makes more than 10,000,000 ranks",
        ),
        ({"tp": 2}, "tp-xp-dp-pp", "unknown dimension 'xp'; known: tp, cp, ep, dp, pp"),
        ({"tp": 2}, "", "unknown dimension ''"),
        ({"tp": 2}, "tp-tp-dp-pp", "names tp more than once; try 'tp-dp-pp'"),
        ({"tp": 2, "pp": 2}, "tp-cp-dp", "leaves out pp, which is 2; try 'tp-cp-dp-pp'"),
        ({"cp": 2, "pp": 2}, "tp-dp-pp", "leaves out cp, which is 2; try 'tp-cp-dp-pp'"),
        ({"dp": 4, "ep": 2}, "tp-cp-pp-dp", "leaves out ep, which is 2; try 'tp-cp-ep-pp-dp'"),
        (
            {"dp": 8, "ep": 3},
            "tp-cp-ep-dp-pp",
            "ep 3 × etp 1 = 3 does not divide tp 1 × cp 1 × dp 8 = 8; ep could be 2 or 4",
        ),
        ({"dp": 8, "ep": 16}, "tp-cp-ep-dp-pp", "ep could be 8"),
        ({"tp": 2, "dp": 2, "ep": 2, "etp": 3}, "tp-cp-ep-dp-pp", "etp could be 2 or 4"),
        ({"tp": 4, "dp": 2, "ep": 4, "etp": 4}, "tp-cp-ep-dp-pp", "ep could be 2"),
        (
            {"tp": 2, "dp": 4, "pp": 2, "ep": 4},
            "tp-cp-ep-pp-dp",
            "stages are 2 ranks apart in attention and 4 in the experts",
        ),
    ],
)
def test_meshes_that_cannot_be(sizes, order, words):
    with pytest.raises(InputError) as error:
        Mesh.of(sizes, order)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_an_error_offers_works():
    Mesh.of({"tp": 2, "dp": 4, "pp": 2, "ep": 4}, "tp-cp-ep-dp-pp")
    Mesh.of({"tp": 2, "dp": 4, "pp": 2, "ep": 2}, "tp-cp-ep-pp-dp")  # ep · etp = tp · cp


def test_questions_that_cannot_be():
    mesh = Mesh.of({"tp": 2, "dp": 4})
    for ask in (
        lambda: mesh.coordinates(8),
        lambda: mesh.group_of(-1, "tp"),
        lambda: mesh.neighbours(8, "tp"),
    ):
        with pytest.raises(InputError, match="ranks go from 0 to 7"):
            ask()
    for dim in ("ep", "edp", "xp", "", "tp-tp", "tp-ep"):
        with pytest.raises(InputError, match="no groups"):
            mesh.groups(dim)
    with pytest.raises(InputError, match="no groups 'cp-ep'"):
        Mesh.of({"tp": 2, "dp": 4, "ep": 2}).groups("cp-ep")


def test_an_order_may_leave_out_what_is_one():
    assert read_order("tp-pp", {"tp": 8, "pp": 4}) == ("tp", "pp", "cp", "ep", "dp")
    assert read_order(" TP - dp", {"tp": 8, "dp": 4}) == ("tp", "ep", "dp", "cp", "pp")
