"""What may watch a call of PyTorch: transforms, modes, traces, forward-mode derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from tilewise.errors import Unsupported

_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
_transformed = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state


def watched() -> bool:
    """Must PyTorch see what happens inside a call?"""
    return _transformed() or _modes() > 0 or forward_ad._current_level >= 0 or _tracing() is not None


def direct(arrays: Any) -> bool:
    """Are these tensors with memory of their own, and does nothing watch the call?"""
    if watched():
        return False
    for x in arrays:
        if x is not None and type(x) is not _TENSOR and type(x) is not _PARAMETER:
            return False
    return not arrays[1].is_meta


def refuse_forward_mode(name: str, arrays: Any) -> None:
    dual = forward_ad._current_level >= 0 and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in arrays
    )
    if dual or (_transformed() and _under_jvp()):
        raise Unsupported(f"{name}: it has no forward-mode derivative (jvp); use reverse mode (backward, grad, vjp).")


def _under_jvp() -> bool:
    interpreters = torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters()
    return any(i.key() == torch._C._functorch.TransformType.Jvp for i in interpreters)
