"""Which backends there are, where their modules stand, and in which order a device asks them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

MODULES = {
    "cpu": "tilewise.backends.cpu",
    "tpu": "tilewise.backends.tpu",
    "composed": "tilewise.backends.composed",
}
FUSED = tuple(name for name in MODULES if name != "composed")


@cache
def load(name: str) -> ModuleType:
    """The backend module; imported when first asked for."""
    return import_module(MODULES[name])
