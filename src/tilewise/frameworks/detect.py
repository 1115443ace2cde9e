"""From an array to its framework's adapter, importing nothing that the caller has not imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from tilewise.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")

# Root package of an array's type -> adapter module.
ADAPTERS = {
    "numpy": "tilewise.frameworks.numpy_adapter",
    "torch": "tilewise.frameworks.torch_adapter",
    "jax": "tilewise.frameworks.jax_adapter",
    "jaxlib": "tilewise.frameworks.jax_adapter",
    "mlx": "tilewise.frameworks.mlx_adapter",
}
ENTRIES: list[Callable[..., Any]] = []  # the functions behind the public ones
_adapters: dict[type, Any] = {}


def detect(x: Any) -> Any:
    """The adapter of an array; InvalidInput if no framework that tilewise knows made it."""
    adapter = _adapters.get(type(x))
    return adapter if adapter is not None else _look_up(type(x))


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """A public function of arrays. Its adapter is met before it runs, so that a compiler can be told of `function`."""

    @wraps(function)
    def public(*args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0] if args else next(iter(kwargs.values()), None)
        while isinstance(first, (tuple, list)) and first:
            first = first[0]
        _announce(type(first))
        return function(*args, **kwargs)

    ENTRIES.append(function)
    return public


def _announce(kind: type) -> None:
    adapter = _adapters.get(kind)
    if adapter is not None or kind.__module__.partition(".")[0] in ADAPTERS:  # else the function says what is wrong
        (adapter if adapter is not None else _look_up(kind)).announce()


# torch.compile runs what is marked so while it traces, in place of tracing it.
_announce._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _look_up(kind: type) -> Any:
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in ADAPTERS:
            adapter = import_module(ADAPTERS[root]).adapter
            _adapters[kind] = adapter
            return adapter
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise InvalidInput(f"the first array must be of NumPy, PyTorch, JAX or MLX, but is a {name}.")
