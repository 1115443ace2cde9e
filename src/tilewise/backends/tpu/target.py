"""TPU chips by name, and `tw.target("v6e")`: lower, export and plan for a chip that is not there. Needs no libtpu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tilewise.errors import InvalidInput

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Chip:
    """A TPU generation.

    Attributes:
        topology: what libtpu calls a small slice of it. kind: JAX's device_kind. cores: of a logical device.
        vmem, smem: bytes a core.
    """

    name: str
    topology: str
    kind: str
    cores: int
    vmem: int
    smem: int = MIB


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "v4:2x2x1", "TPU v4", 1, 16 * MIB),
        Chip("v5e", "v5e:2x2", "TPU v5 lite", 1, 128 * MIB),
        Chip("v5p", "v5p:2x2x1", "TPU v5", 2, 64 * MIB),
        Chip("v6e", "v6e:2x2", "TPU v6 lite", 1, 128 * MIB),
        Chip("tpu7x", "tpu7x:2x2x1", "TPU7x", 1, 64 * MIB),
    )
}
_device: ContextVar[str | None] = ContextVar("tilewise_tpu_device", default=None)
_modes: list[Any] = []  # parameters of interpret mode, by number


def chip_named(name: str) -> Chip:
    """The chip; InvalidInput names those there are."""
    if name not in CHIPS:
        raise InvalidInput(f"target must be one of {', '.join(map(repr, CHIPS))}, but is {name!r}.")
    return CHIPS[name]


def device() -> str | None:
    """The device that JAX calls are planned for, whatever this machine has: "tpu:v6e"; None: their own."""
    return _device.get()


def current() -> Chip | None:
    """The chip that target() names, or None."""
    return chip_of(device() or "")


def chip_of(device: str) -> Chip | None:
    """The chip of a device "tpu:v6e", or None."""
    return CHIPS.get(device.partition(":")[2])


def device_of_kind(kind: str) -> str:
    """JAX's device_kind of a TPU -> "tpu:v6e", or "tpu" where it is none that we know."""
    return next((f"tpu:{chip.name}" for chip in CHIPS.values() if kind in (chip.kind, f"TPU {chip.name}")), "tpu")


@contextmanager
def target(name: str) -> Iterator[Chip]:
    """Inside it, JAX calls are planned and lowered for this TPU: for jax.export and for compiling ahead of time.

    Nothing is run: calls must be traced (jax.jit(...).lower, jax.export.export). Needs plain jax, no libtpu.

    Args:
        name: "v4", "v5e", "v5p", "v6e" or "tpu7x".

    Raises:
        InvalidInput: another name.
    """
    chip = chip_named(name)
    with _planned_for(f"tpu:{chip.name}"), lowering_for(chip):
        yield chip


@contextmanager
def interpreted(parameters: Any) -> Iterator[None]:
    """Inside it, JAX calls run the TPU kernels in interpret mode, on any machine.

    Args:
        parameters: a jax.experimental.pallas.tpu.InterpretParams, or True.
    """
    if parameters not in _modes:
        _modes.append(parameters)
    with _planned_for(f"tpu:interpreted {_modes.index(parameters)}"):
        yield


def interpret_parameters(device: str) -> Any:
    """What interpreted() was given for this device, or False."""
    _, _, number = device.partition(":interpreted ")
    return _modes[int(number)] if number else False


@contextmanager
def _planned_for(name: str) -> Iterator[None]:
    token = _device.set(name)
    try:
        yield
    finally:
        _device.reset(token)


def lowering_for(chip: Chip) -> AbstractContextManager[Any]:
    """Pallas lowers for this chip inside it."""
    from jax.sharding import AbstractMesh, use_abstract_mesh

    try:
        from jax.sharding import AbstractDevice
    except ImportError:
        from jax._src.mesh import AbstractDevice
    # A mesh with no axes names the device and leaves sharding alone.
    device = AbstractDevice(device_kind=chip.kind, num_cores=chip.cores, platform="tpu")
    return use_abstract_mesh(AbstractMesh((), (), (), abstract_device=device))
