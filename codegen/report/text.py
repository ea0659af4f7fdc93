"""A report as plain text with aligned columns."""

import textwrap

from .facts import Facts
from .tables import Table

WIDTH = 120


def text(facts: Facts) -> str:
    """All of a plan's facts, for a terminal or a file."""
    lines = [facts.title, ""]
    width = max(len(name) for name, _ in facts.summary) + 2
    for name, words in facts.summary:
        lines += _wrapped(words, f"  {name:<{width}}")
    for table in facts.tables:
        lines += ["", table.title.upper(), *_wrapped(table.text, "  "), *_table(table)]
    lines += ["", "OPTIMUM"]
    for sentence in facts.optimum:
        lines += _wrapped(sentence, "  ")
    return "\n".join(lines)


def _wrapped(words: str, start: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def _table(table: Table) -> list[str]:
    rows = [table.head, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.head))]

    def line(row: tuple[str, ...]) -> str:
        cells = (
            f"{c:<{w}}" if i < table.words else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        return "    " + "  ".join(cells).rstrip()

    return ["", line(table.head), *map(line, table.rows)]
