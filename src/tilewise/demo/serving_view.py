"""What the serving demo draws: requests while they run, the page pool as a map, and the tables at the end."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tilewise.demo.check import Check
from tilewise.demo.serve import Request, Server, Step

BAR = 18
SHARED = "bold bright_white"


def plain(text: str) -> str:
    """One line with no control characters: neither a prompt nor a model may steer the terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def colour(i: int, count: int) -> str:
    red, green, blue = colorsys.hsv_to_rgb(i / max(count, 1), 0.55, 0.95)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


@dataclass
class Totals:
    """Sums and peaks over the steps of a run."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    answer_tokens: int = 0
    mixed_steps: int = 0
    page_copies: int = 0
    seconds: float = 0.0
    attention_seconds: float = 0.0
    most_used: int = 0
    most_shared: int = 0
    most_saved: int = 0

    def add(self, step: Step, server: Server, answer_tokens: int) -> None:
        self.steps += 1
        self.prefill_tokens += step.prefill_tokens
        self.decode_tokens += step.decode_tokens
        self.answer_tokens = answer_tokens
        self.mixed_steps += bool(step.prefill_tokens and step.decode_tokens)
        self.page_copies += step.page_copies
        self.seconds += step.seconds
        self.attention_seconds += step.attention_seconds
        self.most_used = max(self.most_used, server.cache.pages_used)
        self.most_shared = max(self.most_shared, server.cache.pages_shared)
        self.most_saved = max(self.most_saved, server.cache.pages_saved)

    @property
    def attention_share(self) -> float:
        return self.attention_seconds / self.seconds if self.seconds else 0.0

    def rate(self, tokens: int) -> float:
        return tokens / self.seconds if self.seconds else 0.0


def live_view(
    title: str, names: Sequence[str], requests: Sequence[Request], server: Server, totals: Totals,
    decode: Callable[[Sequence[int]], str],
) -> RenderableType:  # fmt: skip
    """The frame shown while the server runs."""
    table = Table(box=None, expand=True, pad_edge=False, show_header=False)
    table.add_column(width=2, justify="right", style="dim")
    table.add_column(ratio=2, no_wrap=True, overflow="ellipsis")
    table.add_column(width=BAR)
    table.add_column(width=9, justify="right", style="dim")
    table.add_column(ratio=3, no_wrap=True)
    for i, (name, request) in enumerate(zip(names, requests, strict=True)):
        hue = colour(i, len(requests))
        tail = Text(plain(decode(request.answer)), style="" if request.finished else hue, no_wrap=True)
        tail.truncate(60, overflow="ellipsis") if request.finished else _keep_end(tail, 44)
        table.add_row(str(i + 1), Text(plain(name)), _bar(request, hue), _count(request), tail)
    now = Text.assemble(
        (f"step {server.clock}", "bold"), f"   {len(server.running)} running, {len(server.waiting)} waiting   ",
        (f"{totals.rate(totals.prefill_tokens + totals.decode_tokens):.0f} tokens/s", "bold"),
        f"   attention {totals.attention_share:.0%} of the time",
    )  # fmt: skip
    pages = Panel(page_map(requests, server), title=_legend(server), title_align="left", box=box.ROUNDED, style="dim")
    return Panel(
        Group(table, Text(), pages, now), title=title, title_align="left", box=box.ROUNDED, border_style="cyan"
    )


def page_map(requests: Sequence[Request], server: Server) -> Text:
    """One mark a page: a colour for each request, white where pages are shared, hollow where reserved."""
    marks = [("·", "bright_black")] * server.cache.num_pages
    for page in server.cache.pages(server.prefix_sequence):
        marks[page] = ("■", SHARED)
    for i, request in enumerate(requests):
        if request.sequence is None:
            continue
        hue = colour(i, len(requests))
        for page in server.cache.reserved_pages(request.sequence):
            marks[page] = ("□", hue)
        for page in server.cache.pages(request.sequence):
            if server.cache.references(page) == 1:
                marks[page] = ("■", hue)
    return Text(" ").join(Text(mark, style=style) for mark, style in marks)


def _legend(server: Server) -> Text:
    cache = server.cache
    return Text.assemble(
        f"{cache.pages_used} of {cache.num_pages} pages, ", ("■ shared ", SHARED), f"{cache.pages_shared}",
        f" (saves {cache.pages_saved})  □ reserved",
    )  # fmt: skip


def _bar(request: Request, hue: str) -> Text:
    """The prompt being read (left to right, pale), then the answer being written (over it, in colour)."""
    read = round(BAR * min(1.0, request.fed / len(request.prompt)))
    written = BAR if request.finished else round(BAR * len(request.answer) / request.max_new_tokens)
    unread = BAR - max(read, written)
    return Text.assemble(("━" * written, hue), ("━" * max(0, read - written), "white"), ("─" * unread, "bright_black"))


def _count(request: Request) -> str:
    if request.finished or request.answer:
        return f"{len(request.answer)} {'done' if request.finished else 'out'}"
    return "waits" if request.sequence is None else f"{request.fed}/{len(request.prompt)} in"


def _keep_end(text: Text, width: int) -> None:
    if len(text) > width:
        text.plain = "…" + text.plain[1 - width :]


def answers_table(names: Sequence[str], answers: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE, expand=True, title="what it said", title_justify="left")
    table.add_column("prompt", ratio=2, style="cyan")
    table.add_column("answer", ratio=5)
    for name, answer in zip(names, answers, strict=True):
        short = plain(name)
        table.add_row(Text(short if len(short) <= 90 else short[:89] + "…"), Text(plain(answer)))
    return table


def check_table(requests: Sequence[Request], checks: Sequence[Check]) -> Table:
    """Each request against the dense run."""
    table = Table(box=box.SIMPLE, title="checked against dense, unbatched, full recompute", title_justify="left")
    for column in ("request", "prompt tokens", "answer tokens", "tokens equal", "largest logit difference"):
        table.add_column(column, justify="right")
    for i, (request, check) in enumerate(zip(requests, checks, strict=True)):
        equal = Text(f"{check.agreed}/{check.tokens}", style="green" if check.agreed == check.tokens else "yellow")
        table.add_row(
            str(i + 1), str(len(request.prompt)), str(check.tokens), equal, f"{check.largest_logit_difference:.2e}"
        )
    return table


def totals_table(totals: Totals, server: Server) -> Table:
    cache, tokens = server.cache, totals.prefill_tokens + totals.decode_tokens
    table = Table(box=box.SIMPLE, show_header=False, title="the run", title_justify="left")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_column(style="dim")
    rows = [
        ("tokens/s", f"{totals.rate(tokens):.1f}", f"{tokens} computed in {totals.seconds:.1f} s"),
        ("answer tokens/s", f"{totals.rate(totals.answer_tokens):.1f}", f"{totals.answer_tokens} written"),
        ("time in attention", f"{totals.attention_share:.1%}", "append_to_pages + ragged_paged_attention"),
        ("steps", str(totals.steps), f"{totals.mixed_steps} with prompt chunks and decodes in one call"),
        ("pages used", f"{totals.most_used}/{cache.num_pages}", f"at most, {cache.page_size} tokens each"),
        ("pages shared", str(totals.most_shared), f"at most; sharing saved up to {totals.most_saved} pages"),
        ("pages copied", str(totals.page_copies), "on write, where a shared page was only partly filled"),
    ]
    for row in rows:
        table.add_row(*row)
    return table
