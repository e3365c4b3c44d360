"""hyla-lm compare: a table in the terminal, and a picture, a page and the figures as files."""

import argparse
import json

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hyla_lm.storage import as_path, write_retrying
from hyla_lm.tools.compare.comparison import Comparison, compare
from hyla_lm.tools.compare.page import basis, page, shown, verdict

NARROWEST = 120


def run(options: argparse.Namespace) -> None:
    """Compares runs, writes what is asked for and tells what was found."""
    if options.output:
        from hyla_lm.tools.compare.figure import draw
    found = compare(
        options.runs,
        at=options.at,
        set_name=options.set,
        baseline=options.baseline,
        evaluate=options.evaluate,
        trust_imports=options.trust_imports,
        with_texts=bool(options.output),
    )
    if options.output:
        folder = as_path(options.output)
        folder.mkdir(parents=True, exist_ok=True)
        write_retrying(folder / "comparison.json", _json(found).encode())
        write_retrying(folder / "comparison.png", draw(found))
        write_retrying(folder / "comparison.html", page(found).encode())
    if options.json:
        print(_json(found), end="")
        return
    _tell(found)
    if options.output:
        print(f"page: {folder / 'comparison.html'}")


def _json(found: Comparison) -> str:
    return json.dumps(found.as_dict(), indent=1) + "\n"


def _tell(found: Comparison) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=max(console.width, NARROWEST))
    console.print(basis(found), highlight=False, markup=False)
    groups = _table("group", "bits per byte", "runs")
    for group in found.groups:
        groups.add_row(escape(group.name), f"{group.bits_per_byte:.4f}", str(len(group.runs)))
    console.print()
    console.print(groups)
    if found.pairs:
        head = ("pair", "difference", "95 % over documents", "over seeds too", "p")
        differences = _table(*head)
        for pair in found.pairs:
            differences.add_row(
                escape(f"{pair.a} - {pair.b}"),
                f"{pair.difference:+.4f}",
                shown(pair.over_documents),
                shown(pair.over_seeds),
                f"{pair.p_adjusted:.3g}",
            )
        console.print()
        console.print(differences)
        console.print()
    for line in (*map(verdict, found.pairs), *found.notes):
        console.print(line, highlight=False, markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    return table
