"""`tilewise demo`: a dozen requests arrive over time, share a system prompt, and are served; then all is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import tilewise as tw
from tilewise.demo.check import Check, check_answer
from tilewise.demo.checkpoint import Checkpoint, load_checkpoint
from tilewise.demo.kv_formats import KV_DTYPES
from tilewise.demo.llama import Llama
from tilewise.demo.serve import Request, Server
from tilewise.demo.serving_view import Totals, answers_table, check_table, live_view, plain, totals_table
from tilewise.demo.tokenizer import ChatTokenizer

SYSTEM_PROMPT = (
    "You are a patient teacher. Answer in plain words, keep to the facts, and stop when the question is answered. "
    "If a text is given, use only what it says. If you do not know the answer, say so."
)


def default_prompts() -> list[str]:
    """A dozen questions from 15 to some 700 tokens; the long ones quote Python's own manual."""
    from pydoc_data.topics import topics

    short = [
        "What is the capital of France?",
        "Why is the sky blue?",
        "Name three primary colours.",
        "Write one sentence about the sea.",
        "How many days are there in a leap year, and why is it so?",
        "Translate into French: Good morning, how are you today?",
        "A train leaves at 9:40 and arrives at 11:15. How long does the journey take? Explain each step.",
    ]
    long = [f"Explain this page in two sentences.\n\n{topics[t]}" for t in ("pass", "while", "assert", "in", "with")]
    return [*short, *long]


@dataclass(frozen=True)
class ServingResult:
    """What a run of the demo found."""

    kv_dtype: str
    answers: tuple[str, ...]
    totals: Totals
    checks: tuple[Check, ...]  # empty when the check was skipped

    @property
    def tokens(self) -> int:
        return sum(check.tokens for check in self.checks)

    @property
    def agreed(self) -> int:
        return sum(check.agreed for check in self.checks)

    @property
    def largest_logit_difference(self) -> float:
        return max((check.largest_logit_difference for check in self.checks), default=0.0)

    @property
    def ok(self) -> bool:
        """float32 pages must give the dense run's tokens, ties aside; narrower pages are only reported."""
        return self.kv_dtype != "f32" or all(check.exact for check in self.checks)

    @property
    def exit_status(self) -> int:
        return 0 if self.ok else 1


def run_serving_demo(
    prompts: Sequence[str] | None = None,
    max_new_tokens: int = 32,
    kv_dtype: str = "f32",
    seed: int = 0,
    *,
    page_size: int = 16,
    num_pages: int = 128,
    max_seqs: int = 8,
    token_budget: int = 128,
    check: bool = True,
    console: Console | None = None,
    checkpoint: Checkpoint | None = None,
) -> ServingResult:
    """Serve prompts with continuous batching over paged KV, show it, and check every token.

    Args:
        prompts: None: a built-in dozen. seed: decides the order of the prompts and when they arrive.
        max_new_tokens: an answer ends there at the latest. kv_dtype: "f32", "bf16", "fp8" or "int8".
        page_size: tokens a page. num_pages: size of the pool; it grows to what the largest request needs.
        max_seqs: requests that run at once. token_budget: tokens of a step, decodes and prompt chunks together.
        check: compare with a dense run. checkpoint: None: the installed SmolLM2-135M-Instruct.

    Raises:
        DemoUnavailable: a package or the model is missing; the message says what to install.
        InvalidInput: an argument makes no sense.
    """
    if kv_dtype not in KV_DTYPES:
        raise tw.InvalidInput(f"{kv_dtype=} is not one of {', '.join(KV_DTYPES)}")
    prompts = default_prompts() if prompts is None else list(prompts)
    if not prompts:
        raise tw.InvalidInput("there is no prompt to serve")
    console = console or Console()
    checkpoint = checkpoint or _load(console)
    llama, tokenizer = Llama(checkpoint), ChatTokenizer(checkpoint.tokenizer)

    prefix = tokenizer.system(SYSTEM_PROMPT)
    random = np.random.default_rng(seed)
    prompts = [prompts[i] for i in random.permutation(len(prompts))]
    arrivals = np.cumsum(random.integers(0, 5, len(prompts))).tolist()
    requests = [
        Request(tokenizer.user(prompt), max_new_tokens, arrival)
        for prompt, arrival in zip(prompts, arrivals, strict=True)
    ]
    largest = max(len(request.prompt) for request in requests) + max_new_tokens
    needed = -(-len(prefix) // page_size) + -(-largest // page_size) + 1
    server = Server(
        llama, prefix, end_token=tokenizer.end_token, kv_dtype=kv_dtype, page_size=page_size, max_seqs=max_seqs,
        num_pages=max(num_pages, needed), token_budget=token_budget,
    )  # fmt: skip
    for request in requests:
        server.submit(request)

    title = f"[bold]tilewise[/bold] serves SmolLM2-135M, {kv_dtype} pages, attention by {_backend()}"
    totals = Totals()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while server.busy:
            step = server.step()
            totals.add(step, server, sum(len(request.answer) for request in requests))
            live.update(live_view(title, prompts, requests, server, totals, tokenizer.decode), refresh=True)

    answers = tuple(tokenizer.decode(request.answer) for request in requests)
    console.print(answers_table(prompts, answers))
    console.print(totals_table(totals, server))
    checks = tuple(_check(console, llama, prefix, requests, kv_dtype == "f32")) if check else ()
    result = ServingResult(kv_dtype, answers, totals, checks)
    if check:
        console.print(check_table(requests, checks))
        _print_verdict(console, result, tokenizer)
    return result


def _load(console: Console) -> Checkpoint:
    with _progress(console) as progress:
        task = progress.add_task("reading the model", total=None)
        return load_checkpoint(progress=lambda done, total: progress.update(task, completed=done, total=total))


def _check(
    console: Console, llama: Llama, prefix: list[int], requests: Sequence[Request], find_ties: bool
) -> list[Check]:
    with _progress(console) as progress:
        each = progress.track(requests, description="dense recompute")
        return [check_answer(llama, prefix, request, find_ties=find_ties) for request in each]


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _backend() -> str:
    return next((name for name, reason in tw.backends().items() if reason is None), "composed")


def _print_verdict(console: Console, result: ServingResult, tokenizer: ChatTokenizer) -> None:
    for i, check in enumerate(result.checks):
        for d in check.disagreements:
            served, dense = (plain(repr(tokenizer.decode([token]))) for token in (d.served, d.dense))
            line = f"request {i + 1}, token {d.position + 1}: {served}, dense {dense}, logits {d.gap:.1e} apart"
            if d.noise is not None:
                line += f" in float64; {'a tie, as' if d.tie else 'not a tie:'} float32 is off by {d.noise:.1e} there"
            console.print(Text(line, style="dim"))
    rate = f"{result.agreed} of {result.tokens} tokens equal ({result.agreed / result.tokens:.2%})"
    verdict = f"{rate}, largest logit difference {result.largest_logit_difference:.2e}"
    if result.kv_dtype != "f32":
        console.print(Text(f"{result.kv_dtype} pages against dense float32: {verdict}", style="bold"))
    elif result.ok:
        console.print(Text(f"✓ {verdict}", style="bold green"))
    else:
        console.print(Text(f"✗ {verdict}: float32 pages must agree", style="bold red"))
