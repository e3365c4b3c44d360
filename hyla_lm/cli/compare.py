"""hyla-lm compare: prints how runs differ; writes a page, a picture and the figures."""

import argparse
import json

HELP = "how runs differ on the same validation documents, with intervals"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", help="folders of runs; seeds of one config are a group")
    parser.add_argument("--at", default="steps", help="steps, tokens, flops or seconds")
    parser.add_argument("--set", help="validation set to take (default: the first one)")
    parser.add_argument("--baseline", help="run or group that each of the others is compared with")
    parser.add_argument("--output", help="folder for comparison.html, comparison.png and .json")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--evaluate",
        action="store_true",
        help="evaluate the newest checkpoint of runs that kept no losses",
    )
    parser.add_argument(
        "--trust_imports",
        action="store_true",
        help="let config.gin of the runs import modules that are not of this project",
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.storage import as_path, write_whole
    from hyla_lm.tools.compare import report
    from hyla_lm.tools.compare.comparison import compare
    from hyla_lm.tools.output import new_figure, plain

    if options.output:
        new_figure(1, 1)  # without matplotlib, the error comes before the work
    comparison = compare(
        options.runs,
        at=options.at,
        set_name=options.set,
        baseline=options.baseline,
        evaluate=options.evaluate,
        trust_imports=options.trust_imports,
    )
    if options.output:
        comparison = report.with_texts(comparison, options.trust_imports)
    figures = json.dumps(comparison.as_dict(), indent=1) + "\n"
    if options.output:
        folder, picture = as_path(options.output), report.draw(comparison)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "comparison.json", figures.encode())
        write_whole(folder / "comparison.png", picture)
        write_whole(folder / "comparison.html", report.page(comparison, picture).encode())
    if options.json:
        print(figures, end="")
        return
    lines = [report.basis(comparison), "", *plain(report.group_table(comparison)), ""]
    if comparison.pairs:
        lines += [*plain(report.pair_table(comparison)), ""]
    print("\n".join([*lines, *map(report.verdict, comparison.pairs), *comparison.notes]))
    if options.output:
        print(f"page: {folder / 'comparison.html'}")
