"""What a command prints: errors as one line on stderr, results as tables or JSON on stdout."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from corgiarrow.errors import CorgiArrowError, OptionError

_VALUE_LETTERS = 40

STOPPED = 130
"""Exit status after Ctrl-C, as shells give it."""


class Commands(TyperGroup):
    """Commands whose errors become one message and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command.

        Raises
        ------
        typer.Exit
            With 1 for faults of the data, 2 for those of the options, 130 after Ctrl-C.
        """
        # The context is click's or typer's own copy of it, depending on typer's version.
        try:
            return super().invoke(ctx)
        except CorgiArrowError as error:
            say(f"error: {error}")
            raise typer.Exit(2 if isinstance(error, OptionError) else 1) from None
        except KeyboardInterrupt:
            say("stopped")
            raise typer.Exit(STOPPED) from None


def say(text: str) -> None:
    """Tell on stderr what is going on."""
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print JSON on stdout."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_text(text: str) -> None:
    """Print a paragraph on stdout, wrapped."""
    _console().print(text)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    _console().print(table)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print a table below its title; its first `left` columns are text, the others numbers."""
    _console().print(title)
    table = Table()
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def show_count(number: float) -> str:
    """Return a count for a person: ``950``, ``12.3 k``, ``4.56 M``."""
    for unit in ("", " k", " M", " G"):
        if abs(number) < 999.5 or unit == " G":
            break
        number /= 1000
    return f"{number:.0f}" if not unit else f"{number:.3g}{unit}"


def _console() -> Console:
    # Data may hold [brackets] and :colons: that are no markup.
    return Console(markup=False, emoji=False, highlight=False)


def show_value(value: Any) -> str:
    """Return a value from the data for a person, cut where it is long."""
    text = "null" if value is None else str(value)
    return text if len(text) <= _VALUE_LETTERS else f"{text[: _VALUE_LETTERS - 1]}…"


def json_value(value: Any) -> Any:
    """Return a value from the data as JSON has it: bytes as hex digits; NaN, infinities, dates as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    return str(value)
