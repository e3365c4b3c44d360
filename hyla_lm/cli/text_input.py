"""Texts that commands are given: arguments, files, standard input."""

import sys
from pathlib import Path

from hyla_lm.errors import UserError


def argument(flag: str, text: str) -> str:
    """The text of an argument; raises UserError if it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{flag} is not UTF-8: give text in that encoding.") from error
    return text


def content(flag: str, path: str) -> str:
    """The text of a file, or of standard input for -; raises UserError if it cannot be read."""
    try:
        read = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{flag}={path} cannot be read ({error.strerror}): correct it.") from error
    try:
        return read.decode()
    except UnicodeDecodeError as error:
        where = "standard input" if path == "-" else f"{flag}={path}"
        raise UserError(f"{where} is not UTF-8 at byte {error.start}: convert it.") from error
