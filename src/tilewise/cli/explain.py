"""tilewise explain: who would run a call of these sizes, with which tiles, and why not the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Q_HELP = "Queries: BxTxHxD; with --packed or --paged TOKENSxHxD."
KV_HELP = "Keys: BxSxHkvxD; with --packed TOKENSxHkvxD; with --paged PAGESxPAGE_SIZExHkvxD."


def explain(
    q: Annotated[str, typer.Option(help=Q_HELP)],
    kv: Annotated[str, typer.Option(help=KV_HELP)],
    v_dim: Annotated[int | None, typer.Option(help="Width E of the values. Default: D.")] = None,
    dtype: Annotated[str, typer.Option(help="Of q (and of k and v).")] = "float32",
    framework: Annotated[str, typer.Option(help="numpy, torch, jax or mlx.")] = "numpy",
    device: Annotated[str, typer.Option(help="As the framework names it.")] = "cpu",
    causal: Annotated[bool | None, typer.Option("--causal/--no-causal", help="Paged calls are causal.")] = None,
    window: Annotated[str | None, typer.Option(help="LEFT,RIGHT, inclusive; an empty side is open.")] = None,
    scale: Annotated[float | None, typer.Option()] = None,
    softcap: Annotated[float | None, typer.Option()] = None,
    bias: Annotated[bool, typer.Option(help="A bias [B, H, T, S].")] = False,
    mask: Annotated[bool, typer.Option(help="A mask [B, H, T, S].")] = False,
    sinks: Annotated[bool, typer.Option(help="Sinks [H].")] = False,
    segments: Annotated[bool, typer.Option(help="Segment ids.")] = False,
    lens: Annotated[bool, typer.Option(help="q_lens and kv_lens.")] = False,
    layout: Annotated[str, typer.Option(help="bthd or bhtd: how q lies; --q keeps its order.")] = "bthd",
    grad: Annotated[bool, typer.Option(help="Gradients are wanted.")] = False,
    packed: Annotated[bool, typer.Option(help="attention_packed().")] = False,
    paged: Annotated[bool, typer.Option(help="ragged_paged_attention().")] = False,
    sequence: Annotated[
        list[str] | None, typer.Option(help="QUERIES:KEYS of a sequence of a packed or paged call; repeat it.")
    ] = None,
    page_dtype: Annotated[str | None, typer.Option(help="Of the pages. Default: that of q.")] = None,
    kv_scale: Annotated[str, typer.Option(help="none, scalar, head or slot: k_scale and v_scale.")] = "none",
    draft: Annotated[int | None, typer.Option(help="Columns of a draft mask.")] = None,
    batch_invariant: Annotated[bool, typer.Option(help="A row's bits do not depend on its batch.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also draw the tile map to a PNG, SVG or PDF file.")] = None,
) -> None:
    """Say who would run a call, and draw its tiles.

    Also with which tiles, and each other backend's reason. Nothing is allocated and nothing runs.
    """
    from tilewise.cli import files, problem, sizes

    files.judge_picture("--out", out)
    options: dict[str, Any] = {"window": sizes.window(window), "scale": scale, "softcap": softcap}
    _only(
        "paged" if paged else "packed" if packed else "dense",
        bias=bias, mask=mask, segments=segments, lens=lens, layout=layout != "bthd", grad=grad,
        page_dtype=page_dtype is not None, kv_scale=kv_scale != "none", draft=draft is not None,
        batch_invariant=batch_invariant, sequence=bool(sequence),
    )  # fmt: skip
    where = {"framework": framework, "dtype": dtype, "device": device}
    sequences = [sizes.lengths(text) for text in sequence or []]
    if paged:
        found = problem.paged(
            q, kv, v_dim, sequences, causal=causal is not False, sinks=sinks, page_dtype=page_dtype or dtype,
            kv_scale=kv_scale, draft=draft, batch_invariant=batch_invariant, **where, **options,
        )  # fmt: skip
    elif packed:
        found = problem.packed(q, kv, v_dim, sequences, causal=bool(causal), sinks=sinks, grad=grad, **where, **options)
    else:
        sequences = [problem.dense_lengths(q, kv)]
        found = problem.dense(
            q, kv, v_dim, causal=bool(causal), bias=bias, mask=mask, sinks=sinks, segments=segments, lens=lens,
            layout=layout, grad=grad, **where, **options,
        )  # fmt: skip
    typer.echo(str(found))
    _maps(found, sequences, out)


OPTIONS = {
    "dense": ("bias", "mask", "segments", "lens", "layout", "grad"),
    "packed": ("grad", "sequence"),
    "paged": ("page_dtype", "kv_scale", "draft", "batch_invariant", "sequence"),
}


def _only(form: str, **given: bool) -> None:
    """Refuse options that a call of this form does not have."""
    from tilewise.errors import InvalidInput

    for name, is_given in given.items():
        if is_given and name not in OPTIONS[form]:
            raise InvalidInput(f"a {form} call has no --{name.replace('_', '-')}.")


def _maps(found: Any, sequences: list[tuple[int, int]], out: Path | None) -> None:
    """Print the map of each sequence; draw them to `out`."""
    from tilewise.cli import tile_map

    tiles: Any = next((answer.tiles for answer in found.answers if answer.reason is None and answer.tiles), None)
    tile = (tiles.queries, tiles.keys) if hasattr(tiles, "queries") else (128, 128)
    for number, (queries, keys) in enumerate(sequences):
        if queries == 0 or keys == 0:
            continue
        drawn = tile_map.draw(found.spec, queries, keys, tile)
        name = f"sequence {number}: {queries} queries, {keys} keys" if len(sequences) > 1 else f"{queries} x {keys}"
        typer.echo(f"\n{name}, as window and lengths decide\n{tile_map.text(drawn)}")
        if out is not None:
            path = out if len(sequences) == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
            fine = tile_map.draw(found.spec, queries, keys, tile, widest=512)
            tile_map.save(fine, f"{found.problem.describe()}\n{found.spec.describe()}", path)
            typer.echo(f"wrote {path}")
