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
_current: ContextVar[Chip | None] = ContextVar("tilewise_tpu_target", default=None)
_interpreted: ContextVar[Any] = ContextVar("tilewise_tpu_interpret", default=False)


def chip_named(name: str) -> Chip:
    """The chip; InvalidInput names those there are."""
    if name not in CHIPS:
        raise InvalidInput(f"target must be one of {', '.join(map(repr, CHIPS))}, but is {name!r}.")
    return CHIPS[name]


def current() -> Chip | None:
    """The chip that target() names, or None."""
    return _current.get()


@contextmanager
def target(name: str) -> Iterator[Chip]:
    """Inside it, JAX calls are planned and lowered for this TPU: for jax.export and for compiling ahead of time.

    Args:
        name: "v4", "v5e", "v5p", "v6e" or "tpu7x".

    Raises:
        InvalidInput: another name.
    """
    chip = chip_named(name)
    token = _current.set(chip)
    try:
        with lowering_for(chip):
            yield chip
    finally:
        _current.reset(token)


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


@contextmanager
def interpreted(parameters: Any) -> Iterator[None]:
    """Inside it, TPU kernels run in interpret mode, on any machine: `parameters` is a pltpu.InterpretParams or True."""
    token = _interpreted.set(parameters)
    try:
        yield
    finally:
        _interpreted.reset(token)


def interpret_parameters() -> Any:
    """What interpreted() set, or False."""
    return _interpreted.get()
