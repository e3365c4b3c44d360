"""Example: hyla-lm compare runs/mine runs/other"""

import argparse
import json

HELP = "how runs differ on the same validation documents, with intervals"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", help="folders of runs; seeds of one config are a group")
    parser.add_argument("--at", default="steps", help="steps, tokens, flops or seconds")
    parser.add_argument("--set", help="validation set to take (default: the first one)")
    parser.add_argument("--baseline", help="run or group that each of the others is compared with")
    parser.add_argument("--output", help="folder for comparison.png and comparison.json")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.storage import as_path, write_whole
    from hyla_lm.tools.compare import report
    from hyla_lm.tools.compare.comparison import compare

    comparison = compare(options.runs, options.at, options.set, options.baseline)
    print(report.text(comparison))
    if options.output:
        folder, picture = as_path(options.output), report.draw(comparison)
        figures = json.dumps(comparison.as_dict(), indent=1) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "comparison.json", figures.encode())
        write_whole(folder / "comparison.png", picture)
        print(f"wrote {folder / 'comparison.json'} and {folder / 'comparison.png'}")
