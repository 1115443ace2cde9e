"""tilewise doctor: what works here, and why not the rest."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

# Extra of the package -> (modules it brings, what for).
EXTRAS = {
    "torch": (("torch",), "PyTorch tensors, with gradients"),
    "jax": (("jax",), "JAX arrays, under jit and grad"),
    "mlx": (("mlx",), "MLX arrays, with gradients"),
    "demo": (("gguf", "tokenizers"), "tilewise demo"),
    "bench": (("matplotlib",), "charts of bench and explain"),
}
FLAGS = ("sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512vbmi",
         "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "bf16", "sve")  # fmt: skip


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    support_table: Annotated[
        bool, typer.Option("--support-table", help="Print what each backend takes, as Markdown.")
    ] = False,
) -> None:
    """Show what works here, and why not the rest.

    Exits with 1 if no fused backend can be used.
    """
    if support_table:
        from tilewise.cli import support

        typer.echo(support.markdown(), nl=False)
        return
    found = examine()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        _show(found)
    if all(reason for name, reason in found["backends"].items() if name != "composed"):
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """What doctor says, as a value. Imports no framework."""
    import platform
    import sys

    import tilewise as tw
    from tilewise.backends.cpu import library
    from tilewise.bench import machine

    usable = library.missing() is None
    return {
        "tilewise": tw.__version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "system": platform.platform(),
        "cpu": {
            "name": machine.cpu_name(),
            "cpus": machine.cpus(),
            "flags": [flag for flag in FLAGS if flag in _flags()],
            "levels_built": library.built_levels(),
            "levels_usable": library.usable_levels(),
            "level": library.level() if usable else None,
            "bf16_dot": bool(library.native().bf16_dot) if usable else None,
            "xla_ffi": library.has_ffi() if usable else None,
            "threads": tw.num_threads() if usable else None,
        },
        "backends": tw.backends(),
        "frameworks": {name: _framework(name) for name in ("numpy", "torch", "jax", "mlx")},
        "extras": {name: all(map(_present, modules)) for name, (modules, _) in EXTRAS.items()},
    }


def _show(found: dict[str, Any]) -> None:
    from rich.table import Table

    from tilewise.cli import screen

    console = screen.console()
    cpu = found["cpu"]
    head = f"[bold]tilewise {found['tilewise']}[/], Python {found['python']}, {found['system']}"
    console.print(head, highlight=False)
    about = Table(title="CPU", title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    about.add_row("processor", f"{cpu['name']}, {cpu['cpus']} CPUs for this process")
    about.add_row("flags", " ".join(cpu["flags"]) or "unknown")
    about.add_row("levels built", ", ".join(cpu["levels_built"]) or "none")
    about.add_row("levels this CPU runs", ", ".join(cpu["levels_usable"]) or "none")
    if cpu["level"]:
        product = ", with the bf16 product" if cpu["bf16_dot"] else ""
        about.add_row("level in use", f"[green]{cpu['level']}[/]{product}")
        about.add_row("threads", f"{cpu['threads']} (TILEWISE_NUM_THREADS or tw.set_num_threads)")
        about.add_row("callable by JAX", "yes" if cpu["xla_ffi"] else "no: built without the headers of jaxlib")
    console.print(about)

    backends = Table(title="\nBackends", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    for column in ("backend", "here", "why not"):
        backends.add_column(column)
    for name, reason in found["backends"].items():
        backends.add_row(name, "[red]no[/]" if reason else "[green]yes[/]", reason or "")
    console.print(backends)

    frameworks = Table(title="\nFrameworks", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    for column in ("framework", "version", "note"):
        frameworks.add_column(column)
    for name, state in found["frameworks"].items():
        frameworks.add_row(name, state["version"] or "-", state["note"])
    console.print(frameworks)

    extras = Table(title="\nExtras", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    for column in ("for", "here", "how to get it"):
        extras.add_column(column)
    for name, present in found["extras"].items():
        line = "" if present else f'in the source tree: pip install ".\\[{name}]"'
        extras.add_row(EXTRAS[name][1], "[green]yes[/]" if present else "no", line)
    console.print(extras)


def _framework(name: str) -> dict[str, str | None]:
    from tilewise.bench.machine import version
    from tilewise.frameworks.detect import ADAPTERS

    found = version(name)
    if found is None:
        return {"version": None, "note": "not installed"}
    if not _present(name):
        return {"version": found, "note": "its metadata is here, its module is not: reinstall it"}
    if not _present(ADAPTERS[name]):
        return {"version": found, "note": "this tilewise has no adapter for it"}
    return {"version": found, "note": "ready"}


def _present(module: str) -> bool:
    """Can it be imported? Looks for the file only."""
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _flags() -> set[str]:
    """Flags that Linux knows of this CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            line = next(line for line in lines if line.startswith(("flags", "Features")))
            return set(line.partition(":")[2].split())
    except (OSError, StopIteration):
        return set()
