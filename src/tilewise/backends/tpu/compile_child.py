"""The process that compile_offline starts: a request as JSON on stdin, what the compiler says as JSON on stdout."""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from tilewise.backends.tpu.dense_tiles import DenseTiles
from tilewise.backends.tpu.example_call import dense_arguments, dense_function, paged_function, paged_operands
from tilewise.backends.tpu.target import Chip, chip_named, lowering_for
from tilewise.backends.tpu.tiles import PagedTiles
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import ArrayInfo, PagedProblem, Problem


def main() -> None:
    """Compile and print."""
    request = json.load(sys.stdin)
    chip = chip_named(request["chip"])
    device = topologies.get_topology_desc(platform="tpu", topology_name=chip.topology).devices[0]
    function, arguments = _call(request, SingleDeviceSharding(device))
    print(json.dumps(compile_for(chip, function, arguments)))


def compile_for(chip: Chip, function: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Lower and compile; the errors are the compiler's."""
    start = time.perf_counter()
    with lowering_for(chip):
        lowered = jax.jit(function).lower(*arguments)
    middle = time.perf_counter()
    text = lowered.compile().as_text() or ""
    end = time.perf_counter()
    kernels = [line for line in text.splitlines() if 'custom_call_target="tpu_custom_call"' in line]
    memory = r'used_scoped_memory_configs":\[\{"memory_space":"1","offset":"0","size":"(\d+)"'
    sizes = [int(size) for line in kernels for size in re.findall(memory, line)]
    copies = re.findall(r"= (\S+ (?:copy|pad)\(%[\w.]*pages[\w.]*)", text)
    return {"vmem": max(sizes, default=0), "seconds": [middle - start, end - middle], "copies": copies}


def _call(request: dict[str, Any], sharding: Any) -> tuple[Any, tuple[Any, ...]]:
    """(function, arguments): a paged or dense call, or what "module:function" gives for a sharding (benchmarks)."""
    if request["call"] not in ("paged", "dense"):
        module, _, name = request["call"].partition(":")
        return getattr(importlib.import_module(module), name)(sharding, **request.get("options", {}))
    spec = AttentionSpec(**{**request["spec"], "window": tuple(request["spec"]["window"])})
    if request["call"] == "dense":
        sizes = dict(request["problem"])
        for name in ("bias", "mask"):
            if sizes[name] is not None:
                shape, dtype, device = sizes[name]
                sizes[name] = ArrayInfo(tuple(shape), dtype, device)
        dense, blocks = Problem(**sizes), DenseTiles(**request["tiles"])
        return dense_function(spec, dense, blocks), dense_arguments(spec, dense, sharding)
    problem, tiles = PagedProblem(**request["problem"]), PagedTiles(**request["tiles"])
    return paged_function(spec, problem, tiles), (paged_operands(spec, problem, sharding),)


if __name__ == "__main__":
    main()
