"""tilewise emit, tilewise compile: the kernel of a model's serving step as text, and what a compiler makes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

BackendName = Annotated[str, typer.Argument(metavar="BACKEND", help='"tpu".')]
ModelName = Annotated[
    str, typer.Option("--model", help="llama-3-8b, gemma-2-9b, gpt-oss-20b, qwen3-4b or mistral-7b: its attention.")
]
ChipName = Annotated[str, typer.Option("--chip", help="v4, v5e, v5p, v6e or tpu7x.")]
Tokens = Annotated[int, typer.Option(help="New tokens a step; as many as --seqs: a decode step.")]
Seqs = Annotated[int, typer.Option(help="Sequences a step.")]
Context = Annotated[int, typer.Option(help="The most keys of a sequence.")]
PageSize = Annotated[int, typer.Option(help="Keys of a page.")]
Dtype = Annotated[str, typer.Option(help="Of q.")]
PageDtype = Annotated[str | None, typer.Option(help="Of the pages. Default: that of q.")]


def emit(
    backend: BackendName, model: ModelName = "llama-3-8b", chip: ChipName = "v6e", tokens: Tokens = 2048,
    seqs: Seqs = 64, context: Context = 4096, page_size: PageSize = 16, dtype: Dtype = "bfloat16",
    page_dtype: PageDtype = None,
    form: Annotated[str, typer.Option("--format", help="mlir, stablehlo or bytecode.")] = "mlir",
    out: Annotated[Path | None, typer.Option(help="Write to a file. Bytecode needs one, or a pipe.")] = None,
) -> None:  # fmt: skip
    """Print the kernel of a model's serving step. Needs no device and no compiler: plain JAX."""
    from tilewise.emit import emit as emit_kernel

    with _named(backend, chip):
        call = _call(model, tokens, seqs, context, page_size, dtype, page_dtype)
        found = emit_kernel(backend, *call, format=form)
    if out is not None:
        out.write_bytes(found if isinstance(found, bytes) else found.encode())
        typer.echo(f"wrote {out}: {len(found)} {'bytes' if isinstance(found, bytes) else 'characters'}")
    elif isinstance(found, bytes):
        sys.stdout.buffer.write(found)
    else:
        typer.echo(found, nl=False)


def compile_(
    backend: BackendName, model: ModelName = "llama-3-8b", chip: ChipName = "v6e", tokens: Tokens = 2048,
    seqs: Seqs = 64, context: Context = 4096, page_size: PageSize = 16, dtype: Dtype = "bfloat16",
    page_dtype: PageDtype = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that the compiler may take.")] = 120.0,
    keep: Annotated[Path | None, typer.Option(help="An empty folder for what the compiler dumps.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Compile the kernel of a model's serving step with the real TPU compiler, with no TPU.

    Prints VMEM, spills, and the bundles of each loop. Needs libtpu (pip install "jax[tpu]").
    """
    from tilewise.backends.tpu import compile_offline, tiles
    from tilewise.errors import Unsupported

    with _named(backend, chip):
        spec, problem = _call(model, tokens, seqs, context, page_size, dtype, page_dtype)
        if (reason := compile_offline.missing()) is not None:
            raise Unsupported("Nothing can be compiled here:", ((backend, reason),))
        chosen = tiles.first_choice(spec, problem)
        report = compile_offline.compile_paged(spec, problem, chosen, chip, time_limit=time_limit, keep=keep)
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(report), indent=1))
        return
    typer.echo(f"{problem.describe()}\n{spec.describe()}\n{chosen}\n")
    _show(report)


def _show(report: Any) -> None:
    from rich.table import Table

    from tilewise.backends.tpu.target import CHIPS
    from tilewise.cli import screen

    console = screen.console()
    mib, chip = 2**20, CHIPS[report.chip]
    lower, compiled = report.seconds
    console.print(f"{report.chip}: VMEM {report.vmem / mib:.1f} of {chip.vmem / mib:.0f} MiB; {report.all_bundles} "
                  f"bundles, {report.spills} of them store a spilled register; lowered in {lower:.1f} s, compiled in "
                  f"{compiled:.1f} s. Nothing was run.", highlight=False)  # fmt: skip
    for copy in report.copies:
        console.print(f"copied before the kernel runs: {copy}", markup=False, highlight=False)
    table = Table()
    for column in ("loop", "bundles", "with products", "with spills", "mostly of"):
        table.add_column(column, justify="left" if column in ("loop", "mostly of") else "right")
    for loop in report.loops:
        table.add_row(f"{'> ' * loop.depth}", *map(str, (loop.bundles, loop.products, loop.spills)), loop.source)
    console.print(table)


@contextmanager
def _named(backend: str, chip: str) -> Iterator[None]:
    """Calls are meant for this chip inside it; InvalidInput where a name is of nothing."""
    from importlib.util import find_spec

    from tilewise.backends.tpu.target import chip_named, target
    from tilewise.emit import EMITTERS
    from tilewise.errors import InvalidInput, Unsupported

    if backend not in EMITTERS:
        raise InvalidInput(f"BACKEND must be one of {', '.join(map(repr, EMITTERS))}, but is {backend!r}.")
    chip_named(chip)
    if find_spec("jax") is None:
        raise Unsupported("There is no kernel to make:", ((backend, "jax is not installed"),))
    with target(chip):
        yield


def _call(model: str, tokens: int, seqs: int, context: int, page_size: int, dtype: str,
          page_dtype: str | None) -> tuple[Any, Any]:  # fmt: skip
    """(spec, problem) of a step; InvalidInput for sizes and dtypes without meaning."""
    from tilewise.backends.tpu import presets
    from tilewise.cli.choices import one_of
    from tilewise.errors import InvalidInput
    from tilewise.spec.problem import PAGE_DTYPES, QUERY_DTYPES

    for option, size in (("--tokens", tokens), ("--seqs", seqs), ("--context", context), ("--page-size", page_size)):
        if size < 1:
            raise InvalidInput(f"{option} must be at least 1, but is {size}.")
    for option, name, known in (("--dtype", dtype, QUERY_DTYPES), ("--page-dtype", page_dtype or dtype, PAGE_DTYPES)):
        one_of(option, name, known)
    return presets.paged_call_of(model, tokens=tokens, seqs=seqs, context=context, page_size=page_size, dtype=dtype,
                                 page_dtype=page_dtype)  # fmt: skip
