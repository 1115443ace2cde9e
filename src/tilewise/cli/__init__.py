"""The command line: tilewise demo | doctor | verify | bench | explain | emit | compile.

Exit codes: 0 all is well; 1 a check failed; 2 the command or the call it describes has no meaning; 3 what was asked
for is not available here; 130 interrupted. An error is one line on stderr.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tilewise.cli import bench, demo, doctor, explain, kernel, verify

FAILED, MEANINGLESS, ABSENT, INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(name="tilewise", no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                  pretty_exceptions_enable=False, help="Exact attention, tile by tile.")  # fmt: skip
for command in (demo.demo, doctor.doctor, verify.verify, bench.bench, explain.explain):
    app.command()(command)
app.command("emit")(kernel.emit)
app.command("compile")(kernel.compile_)


def _version(wanted: bool) -> None:
    if wanted:
        import tilewise

        typer.echo(tilewise.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Exact attention, tile by tile."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    from tilewise.errors import InvalidInput, TilewiseError, Unsupported

    try:
        arguments = arguments or ["--help"]
        return app(arguments, prog_name="tilewise", standalone_mode=False) or 0
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # a reader like `head` had enough
        sys.stderr.close()
        return 0
    except InvalidInput as error:
        return _say(str(error), MEANINGLESS)
    except Unsupported as error:
        return _say(str(error), ABSENT)
    except TilewiseError as error:
        return _say(str(error), FAILED)
    except OSError as error:
        return _say(f"{error.strerror}: {error.filename}", MEANINGLESS)
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own errors
            return _say(error.format_message().replace("\n", " "), getattr(error, "exit_code", MEANINGLESS))
        if type(error).__name__ == "Abort":
            return _say("interrupted", INTERRUPTED)
        raise


def _say(message: str, code: int) -> int:
    print(f"tilewise: {message}", file=sys.stderr)
    return code
