"""From an array to its framework's adapter, importing nothing that the caller has not imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tilewise.errors import InvalidInput

# Root package of an array's type -> adapter module.
ADAPTERS = {
    "numpy": "tilewise.frameworks.numpy_adapter",
    "torch": "tilewise.frameworks.torch_adapter",
    "jax": "tilewise.frameworks.jax_adapter",
    "jaxlib": "tilewise.frameworks.jax_adapter",
    "mlx": "tilewise.frameworks.mlx_adapter",
}
_adapters: dict[type, Any] = {}


def detect(x: Any) -> Any:
    """The adapter of an array; InvalidInput if no framework that tilewise knows made it."""
    adapter = _adapters.get(type(x))
    return adapter if adapter is not None else _look_up(x)


def _look_up(x: Any) -> Any:
    for kind in type(x).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in ADAPTERS:
            adapter = import_module(ADAPTERS[root]).adapter
            _adapters[type(x)] = adapter
            return adapter
    name = f"{type(x).__module__}.{type(x).__qualname__}"
    raise InvalidInput(f"the first array must be of NumPy, PyTorch, JAX or MLX, but is a {name}.")
