"""Example: hyla-lm score --workdir=runs/mine --text='Once upon a time'"""

import argparse
import json

from hyla_lm.cli import text_input
from hyla_lm.cli.parser import add_run, load_model
from hyla_lm.errors import UserError

HELP = "the probability of a text under a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--text", help="text to score")
    parser.add_argument("--input", help="file to score, or - for standard input (default)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead, with each token"
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    text = _text(options)
    score = load_model(options, bindings).score(text)
    if options.json:
        each = zip(score.tokens, score.pieces, score.token_nats, strict=True)
        whole = {
            "nats": score.nats,
            "bits_per_byte": score.bits_per_byte,
            "token_count": len(score.tokens),
            "text_bytes": score.text_bytes,
            "tokens": [{"id": i, "piece": p, "nats": nats} for i, p, nats in each],
        }
        print(json.dumps(whole))
        return
    print(
        f"{score.nats:.4f} nats, {score.bits_per_byte:.4f} bits per byte: "
        f"{len(score.tokens):,} tokens, {score.text_bytes:,} bytes"
    )


def _text(options: argparse.Namespace) -> str:
    if options.text is not None and options.input is not None:
        raise UserError("--text and --input are two texts: give one of them.")
    if options.text is None:
        flag, text = "--input", text_input.content("--input", options.input or "-")
    else:
        flag, text = "--text", text_input.argument("--text", options.text)
    if not text.strip():
        raise UserError(f"{flag} has no text to score: give some.")
    return text
