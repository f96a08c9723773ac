"""Small pieces with their own backward, which keep what a fused kernel keeps."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as fn
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate


def local(parameter: torch.Tensor, *, partial: bool) -> torch.Tensor:
    """The local part of a parameter repeated over tp; ``partial``: its gradient is a sum over tp."""
    if isinstance(parameter, DTensor):
        return parameter.to_local(grad_placements=[Partial() if partial else Replicate()])
    return parameter


def _is_fake(x: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(x, FakeTensor)


class _RmsNorm(torch.autograd.Function):
    """Keeps the input and one number a row, as the fused kernels do (torch's CPU one is not fused)."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, eps: float) -> Any:
        if _is_fake(x):  # shapes of the fused kernel, without the temporaries of this arithmetic
            rstd = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
            out = torch.empty_like(x)
        else:
            wide = x.float()
            rstd = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
            out = (wide * rstd).to(x.dtype) * weight
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, rstd = ctx.saved_tensors
        if _is_fake(x):
            return torch.empty_like(x), torch.empty_like(weight), None
        grad = grads[0]
        normed = x.float() * rstd
        inner = grad.float() * weight
        dx = rstd * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        dims = tuple(range(grad.dim() - 1))
        return dx.to(x.dtype), (grad * normed).sum(dims).to(weight.dtype), None


class RmsNorm(nn.Module):
    """RMSNorm with a weight."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.partial = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, width) → the same."""
        return _RmsNorm.apply(x, local(self.weight, partial=self.partial), self.eps)  # type: ignore[no-any-return,unused-ignore]


class _SwiGlu(torch.autograd.Function):
    """silu(gate) · up that keeps its two inputs only, as a fused kernel does."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate) if _is_fake(gate) else fn.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gate, up = ctx.saved_tensors
        if _is_fake(gate):
            return torch.empty_like(gate), torch.empty_like(up)
        grad = grads[0]
        s = torch.sigmoid(gate)
        return grad * up * s * (1 + gate * (1 - s)), grad * gate * s


def swiglu(gate: torch.Tensor, up: torch.Tensor, *, fused: bool) -> torch.Tensor:
    """silu(gate) · up; not fused, torch also keeps silu(gate)."""
    if fused:
        return _SwiGlu.apply(gate, up)  # type: ignore[no-any-return,unused-ignore]
    return fn.silu(gate) * up
