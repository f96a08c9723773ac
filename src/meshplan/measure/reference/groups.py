"""The process groups of a plan as torch meshes, from meshplan's own rank mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshplan.plan.kinds import Sharding
from meshplan.plan.mesh import Mesh
from meshplan.plan.plans import DEFAULT_ORDER, Plan


@dataclass(frozen=True, kw_only=True)
class Groups:
    """One rank's place in a plan.

    ``main`` has the dimensions pp, replica, shard, tp (``shard`` joins dp and cp; ZeRO shards over it);
    ``parts`` splits the middle into dp and cp; ``experts`` is pp, edp, ep, etp, where there are experts.
    """

    plan: Plan
    rank: int
    main: DeviceMesh
    parts: DeviceMesh
    experts: DeviceMesh | None

    @classmethod
    def of(cls, plan: Plan, device: str, *, experts: bool, order: tuple[str, ...] = DEFAULT_ORDER) -> Groups:
        """Make the groups; collective over the default process group, which has ``plan.gpus`` ranks."""
        sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
        if experts:
            sizes |= {"ep": plan.ep, "etp": plan.etp}
        mesh = Mesh.of(sizes, order)
        wanted = ("pp", "dp", "cp", "tp")
        dense = np.transpose(mesh.dense, [mesh.dense_dims.index(d) for d in wanted])
        # Replicas stand outermost of dp, as in HSDP over nodes.
        replicas = plan.dp * plan.cp if plan.sharding is Sharding.DDP else plan.replicas
        shards = plan.dp * plan.cp // replicas
        joined = dense.reshape(plan.pp, replicas, shards, plan.tp)
        main = _mesh(device, joined, ("pp", "replica", "shard", "tp"))
        parts = _mesh(device, dense, wanted)
        folded = None
        if experts and mesh.experts is not None:
            names = ("pp", "edp", "ep", "etp")
            array = np.transpose(mesh.experts, [mesh.expert_dims.index(d) for d in names])
            folded = _mesh(device, array, names)
        return cls(plan=plan, rank=dist.get_rank(), main=main, parts=parts, experts=folded)

    def at(self, dim: str) -> int:
        """This rank's coordinate in ``dim``."""
        return int(self._of(dim).get_local_rank(dim))

    def size(self, dim: str) -> int:
        """Ranks of the group of ``dim``; 1 where there are no experts."""
        if dim in ("edp", "ep", "etp") and self.experts is None:
            return 1
        mesh = self._of(dim)
        return int(mesh.size(mesh.mesh_dim_names.index(dim)))

    def group(self, dim: str) -> Any:
        """The process group of ``dim`` that this rank is in."""
        return self._of(dim).get_group(dim)

    @property
    def tp(self) -> DeviceMesh:
        """The tensor-parallel mesh, of one dimension."""
        return self.main["tp"]

    @property
    def data(self) -> DeviceMesh:
        """What FSDP shards dense parameters over: (replica, shard), or shard alone."""
        return self.main["replica", "shard"] if self.size("replica") > 1 else self.main["shard"]

    @property
    def expert_data(self) -> DeviceMesh:
        """What FSDP shards routed experts over."""
        if self.experts is None:
            raise ValueError("no experts")
        return self.experts["edp"]

    def named(self) -> dict[str, str]:
        """Name of each process group with more than one rank → dimension (for a census)."""
        found: dict[str, str] = {}
        for dim in ("pp", "replica", "shard", "tp", "cp", "edp", "ep", "etp"):
            if self.size(dim) > 1:
                found.setdefault(self.group(dim).group_name, dim)
        return found

    def _of(self, dim: str) -> DeviceMesh:
        if dim in ("pp", "replica", "shard", "tp"):
            return self.main
        if dim in ("dp", "cp"):
            return self.parts
        if self.experts is None:
            raise ValueError(f"no experts, so no {dim}")
        return self.experts


def _mesh(device: str, ranks: Any, names: tuple[str, ...]) -> DeviceMesh:
    return DeviceMesh(device, torch.from_numpy(np.ascontiguousarray(ranks)), mesh_dim_names=names)
