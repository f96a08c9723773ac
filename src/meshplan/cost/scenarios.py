"""The textbook model's five scenarios: its own rounded inputs, kept apart from the presets."""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.cluster.cluster import Cluster, Tier
from meshplan.cluster.gpu import Gpu
from meshplan.cost.handbook import Handbook
from meshplan.model.layers import Attention, Layer, Mlp
from meshplan.model.model import Model
from meshplan.plan.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One question to the textbook model."""

    id: str
    model: Model
    cost_model: Handbook
    gpus: int
    workload: Workload

    @property
    def cluster(self) -> Cluster:
        """Nodes of eight H100."""
        nvlink = Tier(name="nvlink", span=8, bandwidth=450e9, latency_s=0.0)
        network = Tier(name="network", span=self.gpus, bandwidth=50e9, latency_s=0.0)
        tiers = (nvlink, network) if self.gpus > nvlink.span else (nvlink,)
        return Cluster(gpu=H100, gpus=self.gpus, tiers=tiers, memory_fraction=0.9, name="handbook")

    @property
    def title(self) -> str:
        """The question in one line."""
        w = self.workload
        return f"{self.model.name}, {self.gpus} GPUs, seq {w.seq}, gbs {w.gbs}"


H100 = Gpu(
    name="h100-handbook",
    title="H100 as the textbook rounds it",
    peak_flops={"bf16": 989e12},
    hbm_bytes=80e9,
    usable_hbm_bytes=80e9,
    hbm_bandwidth=3.35e12,
    scaleup_bandwidth=450e9,
    scaleup_domain=8,
    gpus_per_host=8,
    nic_bandwidth=50e9,
    sms=132,
    watts=700.0,
    host_bandwidth=64e9,
)


def _llama(name: str, layers: int, hidden: int, heads: int, width: int) -> Model:
    layer = Layer(attention=Attention(heads=heads, kv_heads=8, head_dim=128), mlp=Mlp(width=width))
    return Model(name=name, hidden=hidden, vocab=128256, layers=(layer,) * layers)


LLAMA_70B = _llama("llama-70b", 80, 8192, 64, 28672)
LLAMA_8B = _llama("llama-8b", 32, 4096, 32, 14336)
_70B, _8B = Handbook(parameters=70.6e9), Handbook(parameters=8.03e9)

SCENARIOS = tuple(
    Scenario(id=id_, model=model, cost_model=cost_model, gpus=gpus, workload=Workload(seq=seq, gbs=gbs))
    for id_, model, cost_model, gpus, seq, gbs in (
        ("A", LLAMA_70B, _70B, 64, 8192, 512),
        ("B", LLAMA_70B, _70B, 64, 131072, 32),
        ("C", LLAMA_8B, _8B, 8, 8192, 64),
        ("D", LLAMA_70B, _70B, 1024, 8192, 512),
        ("E", LLAMA_70B, _70B, 1024, 8192, 2048),
    )
)
