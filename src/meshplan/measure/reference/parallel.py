"""Spread a stage of the decoder over a plan's groups: tp with DTensor, experts, recompute, FSDP2."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from meshplan.measure.reference.context import GatheredAttention, RingAttention
from meshplan.measure.reference.decoder import Decoder, LayerBlock
from meshplan.measure.reference.experts import MoeBlock
from meshplan.measure.reference.groups import Groups
from meshplan.plan.kinds import CpKind, Recompute, Sharding
from meshplan.plan.plans import Plan


def initialise(decoder: Decoder, groups: Groups | None, device: str) -> None:
    """Fill a whole (not yet tp-split) stage: each parameter from its own name, so that any cut of the model
    over ranks starts from the same numbers. Routed experts keep this rank's part."""
    ep, etp = (1, 1) if groups is None else (groups.size("ep"), groups.size("etp"))
    at = (0, 0) if groups is None or groups.experts is None else (groups.at("ep"), groups.at("etp"))
    decoder.to_empty(device=device)
    with torch.no_grad():
        for name, p in decoder.named_parameters():
            if name.endswith("norm.weight"):
                p.fill_(1.0)
                continue
            shape = list(p.shape)
            expert = ".experts." in name
            wide = {"w1": 2, "w3": 2, "w2": 1}[name[-2:]] if expert else 0
            if expert:
                shape[0] *= ep
                shape[wide] *= etp
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            value = torch.randn(shape, generator=generator) * 0.02
            if name.endswith("bias"):
                value = value * 0.1
            if expert:
                value = value.chunk(ep, 0)[at[0]].chunk(etp, wide)[at[1]]
            p.copy_(value)


def spread(
    decoder: Decoder, groups: Groups, *, precision: str, reshard: bool, fsdp: bool, moe_balanced: bool = False
) -> Decoder:
    """Apply tp, cp, ep and FSDP of the plan to one stage, in place."""
    plan = groups.plan
    for layer in decoder.layers.values():
        _context(layer, groups)
        _experts(layer, groups, balanced=moe_balanced)
    _recompute(decoder, plan)
    if plan.tp > 1:
        _tensor_parallel(decoder, groups)
    if fsdp:
        _fully_shard(decoder, groups, precision, reshard=reshard)
    return decoder


def _context(layer: Any, groups: Groups) -> None:
    if groups.plan.cp == 1:
        return
    group = groups.group("cp")
    kind = RingAttention if groups.plan.cp_kind is CpKind.RING else GatheredAttention
    layer.attention.core = lambda q, k, v: kind.apply(q.contiguous(), k.contiguous(), v.contiguous(), group)


def _experts(layer: Any, groups: Groups, *, balanced: bool) -> None:
    if not isinstance(layer.mlp, MoeBlock):
        return
    layer.mlp.balanced = balanced
    if groups.size("ep") > 1:
        layer.mlp.ep_group = groups.group("ep")
    if groups.size("etp") > 1:
        layer.mlp.etp_group = groups.group("etp")


def _recompute(decoder: Decoder, plan: Plan) -> None:
    names = list(decoder.layers)
    decoder.whole = set(names[: min(plan.recompute_layers, len(names))])
    modules = plan.recompute_modules
    if Recompute.OPERATORS in modules:
        decoder.whole, decoder.context_fn = set(names), _by_operator
        return
    for layer in decoder.layers.values():
        moe = isinstance(layer.mlp, MoeBlock)
        layer.attention.keep_core = Recompute.CORE_ATTN not in modules
        layer.keep_mlp = (Recompute.MOE if moe else Recompute.MLP) not in modules
        if moe:
            layer.mlp.experts.keep_activation = Recompute.MOE_ACT not in modules
        else:
            layer.mlp.keep_activation = Recompute.MLP_ACT not in modules


def _by_operator() -> Any:
    """torch's selective checkpointing: attention, every second matrix product and what TP scatters kept."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    counts = {False: 0, True: 0}
    aten = torch.ops.aten
    products = {aten.mm.default, aten.linear.default}
    kept = {
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
    }

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if op in products:
            counts[ctx.is_recompute] += 1
            keep = counts[ctx.is_recompute] % 2 == 1
        else:
            keep = op in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _tensor_parallel(decoder: Decoder, groups: Groups) -> None:
    """torch's own TP: column and row parallel products, sequence-parallel stream, loss parallel."""
    mesh, sp = groups.tp, groups.plan.sp
    stream = Shard(1) if sp else Replicate()
    for layer in decoder.layers.values():
        plan = {
            "attention": PrepareModuleInput(
                input_layouts=(stream, None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=stream),
        }
        dense = [n for n in ("mlp", "shared") if getattr(layer, n) is not None]
        for name in dense:
            if isinstance(getattr(layer, name), MoeBlock):
                continue
            plan[name] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
            plan |= {f"{name}.w1": ColwiseParallel(), f"{name}.w2": RowwiseParallel(output_layouts=stream)}
            if getattr(layer, name).w3 is not None:
                plan[f"{name}.w3"] = ColwiseParallel()
        parallelize_module(layer, mesh, plan, src_data_rank=None)
        _repeat(layer, mesh, sp=sp)
    if decoder.embedding is not None:
        decoder.embedding.tp_mesh, decoder.embedding.sp = mesh, sp
        _place(decoder.embedding, "weight", mesh, Shard(0))
    if decoder.norm is not None:
        decoder.norm.partial = sp
        _place(decoder.norm, "weight", mesh, Replicate())
    if decoder.head is not None:
        head = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(decoder, mesh, {"head": head}, src_data_rank=None)


def _repeat(layer: LayerBlock | Any, mesh: Any, *, sp: bool) -> None:
    """Norms and router are whole on every rank; where each sees other tokens or heads, their gradient is a
    sum over tp."""
    for norm, partial in (
        (layer.attention_norm, sp), (layer.mlp_norm, sp),
        (layer.attention.q_norm, True), (layer.attention.k_norm, True),
    ):  # fmt: skip
        if norm is not None:
            norm.partial = partial
            _place(norm, "weight", mesh, Replicate())
    if isinstance(layer.mlp, MoeBlock):
        layer.mlp.partial = True
        _place(layer.mlp, "router", mesh, Replicate())


def _place(module: nn.Module, name: str, mesh: Any, placement: Any) -> None:
    value = getattr(module, name)
    spread_out = distribute_tensor(value.detach(), mesh, [placement], src_data_rank=None)
    setattr(module, name, nn.Parameter(spread_out))


def _fully_shard(decoder: Decoder, groups: Groups, precision: str, *, reshard: bool) -> None:
    """FSDP2 on each layer, the embedding, and norm and head together; routed experts over their own group."""
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if precision == "bf16"
        else MixedPrecisionPolicy()
    )
    mesh = groups.data
    common: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": reshard}
    for layer in decoder.layers.values():
        if isinstance(layer.mlp, MoeBlock):
            experts, edp = layer.mlp.experts, groups.size("edp")
            # More ranks than experts: cut the next dimension, so that no rank is left empty-handed.
            cut = 0 if experts.w1.shape[0] % edp == 0 else 1
            over = groups.expert_data if groups.experts is not None else groups.data
            fully_shard(experts, mesh=over, shard_placement_fn=_cutting(cut), **common)
        fully_shard(layer, mesh=mesh, **common)
    if not decoder.tied and decoder.embedding is not None:
        fully_shard(decoder.embedding, mesh=mesh, **common)
    if decoder.norm is not None and decoder.head is not None:
        # The last thing forward needs is the first thing backward needs: not resharded between.
        last = {**common, "reshard_after_forward": False}
        fully_shard([decoder.norm, decoder.head], mesh=mesh, **last)
    fully_shard(decoder, mesh=mesh, **common)
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the whole batch's tokens, so gradients are sums.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _cutting(dim: int) -> Any:
    def cut(_parameter: nn.Parameter) -> Any:
        return Shard(dim)

    return cut


def synchronise(decoder: nn.Module, plan: Plan, *, last: bool) -> None:
    """Before a micro-batch: whether its backward reduces gradients and gives parameters back."""
    if not isinstance(decoder, FSDPModule):
        return
    if plan.sharding <= Sharding.ZERO1 or plan.pp > 1:
        # Where backwards do not overlap each is finished as if it were the last: torch otherwise remembers
        # the forward of all micro-batches, and gathers a unit of an earlier one at the end for nothing.
        decoder.set_is_last_backward(last or plan.pp == 1)
        decoder.set_requires_gradient_sync(last)
    else:
        decoder.set_requires_all_reduce(last)
    if plan.sharding < Sharding.ZERO3 or plan.pp > 1:
        decoder.set_reshard_after_backward(last)
