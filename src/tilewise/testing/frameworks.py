"""NumPy arrays to a framework's and back, and its own way to ask for gradients. Imports a framework when it is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewise.frameworks.detect import ADAPTERS

Call = Callable[..., Any]  # (**arrays) -> (out, lse)


class Numpy:
    """NumPy: no gradients of its own."""

    name = "numpy"
    shares_memory = True

    @property
    def device(self) -> str:
        """Where planning takes its arrays to be."""
        return "cpu"

    def missing(self) -> str | None:
        """Why this framework cannot be used here, or None."""
        return None

    def cannot_hold(self, dtype: str) -> str | None:
        """Why it has no arrays of this dtype, or None."""
        return None

    def array(self, x: np.ndarray) -> Any:
        return x

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def gradients(self, call: Call, arrays: dict[str, Any], wanted: list[str], dout: Any, dlse: Any) -> list[Any]:
        """Gradients of sum(out * dout) + sum(lse * dlse) with respect to the named arrays."""
        raise NotImplementedError


class _Imported(Numpy):
    package: str

    def missing(self) -> str | None:
        if find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if find_spec(ADAPTERS[self.name]) is None:
            return f"tilewise has no adapter for {self.name} yet"
        return None

    @property
    def module(self) -> Any:
        return import_module(self.package)


class Torch(_Imported):
    """PyTorch on the CPU: arrays share the memory of the NumPy ones, strides and guard bytes included."""

    name = package = "torch"

    def cannot_hold(self, dtype: str) -> str | None:
        return None

    def array(self, x: np.ndarray) -> Any:
        torch = self.module
        raw = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}.get(x.dtype.name)
        if raw is None:
            return torch.from_numpy(np.asarray(x))
        return torch.from_numpy(x.view(raw)).view(getattr(torch, x.dtype.name))

    def numpy(self, x: Any) -> np.ndarray:
        from tilewise.frameworks.numpy_adapter import DTYPES

        torch, name = self.module, str(x.dtype).removeprefix("torch.")
        raw = {"bfloat16": torch.int16, "float8_e4m3fn": torch.uint8, "float8_e5m2": torch.uint8}.get(name)
        x = x.detach()
        return x.numpy() if raw is None else x.view(raw).numpy().view(DTYPES[name])

    def gradients(self, call: Call, arrays: dict[str, Any], wanted: list[str], dout: Any, dlse: Any) -> list[Any]:
        for name in wanted:
            arrays[name] = arrays[name].detach().requires_grad_()
        out, lse = call(**arrays)
        return list(self.module.autograd.grad([out, lse], [arrays[name] for name in wanted], [dout, dlse]))


class Jax(_Imported):
    """JAX on its default device."""

    name = package = "jax"
    shares_memory = False

    @property
    def device(self) -> str:
        return import_module(ADAPTERS["jax"]).adapter.info("x", self.module.numpy.zeros(1)).device

    def cannot_hold(self, dtype: str) -> str | None:
        if dtype == "float64" and not self.module.config.jax_enable_x64:
            return "JAX holds float64 only with jax_enable_x64"
        return None

    def array(self, x: np.ndarray) -> Any:
        if x.dtype == np.int64:  # JAX would make it int32 with a warning
            x = x.astype(np.int32)
        return self.module.numpy.array(np.ascontiguousarray(x))

    def gradients(self, call: Call, arrays: dict[str, Any], wanted: list[str], dout: Any, dlse: Any) -> list[Any]:
        others = {name: x for name, x in arrays.items() if name not in wanted}
        _, pull = self.module.vjp(
            lambda *primals: call(**others, **dict(zip(wanted, primals, strict=True))), *(arrays[w] for w in wanted)
        )
        return list(pull((dout, dlse)))


class Mlx(_Imported):
    """MLX on its default device."""

    name, package = "mlx", "mlx.core"
    shares_memory = False

    def missing(self) -> str | None:
        if find_spec("mlx") is None:
            return "mlx is not installed"
        return super().missing()

    def cannot_hold(self, dtype: str) -> str | None:
        if dtype.startswith("float8"):
            return f"MLX has no {dtype}"
        return None

    def array(self, x: np.ndarray) -> Any:
        mx = self.module
        x = np.ascontiguousarray(x)
        if x.dtype.name == "bfloat16":
            return mx.array(x.view(np.uint16)).view(mx.bfloat16)
        return mx.array(x, dtype=getattr(mx, "bool_" if x.dtype == bool else x.dtype.name))

    def numpy(self, x: Any) -> np.ndarray:
        import ml_dtypes

        mx = self.module
        if x.dtype == mx.bfloat16:
            return np.array(x.view(mx.uint16)).view(ml_dtypes.bfloat16)
        return np.array(x)

    def gradients(self, call: Call, arrays: dict[str, Any], wanted: list[str], dout: Any, dlse: Any) -> list[Any]:
        others = {name: x for name, x in arrays.items() if name not in wanted}
        _, grads = self.module.vjp(
            lambda *primals: call(**others, **dict(zip(wanted, primals, strict=True))),
            [arrays[name] for name in wanted], [dout, dlse],
        )  # fmt: skip
        return list(grads)


FRAMEWORKS = {framework.name: framework for framework in (Numpy(), Torch(), Jax(), Mlx())}
