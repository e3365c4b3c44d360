"""Example: hyla-lm data verify rows/train rows/validation"""

import argparse
from concurrent.futures import ThreadPoolExecutor

from hyla_lm.config import gin_files
from hyla_lm.data.preparation import default_workers
from hyla_lm.input.manifest import Manifest, read_manifest, shard_hashes, verify_shard
from hyla_lm.input.rows import RowReader

HELP = "check folders of rows against their manifests"


def verify(folder: str) -> Manifest:
    """Reads every byte of a folder; raises UserError for the first fault found."""
    manifest = read_manifest(folder)
    hashes = shard_hashes(folder, manifest)
    with ThreadPoolExecutor(default_workers()) as pool:
        for _ in pool.map(verify_shard, hashes, hashes.values()):
            pass
    RowReader(folder, manifest)  # compares sizes, counts and first rows
    return manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folder of rows")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    gin_files.read([], bindings)  # refuses bindings: rows have no settings
    for folder in options.folders:
        print(f"{folder} is whole. {verify(folder).summary()}")
