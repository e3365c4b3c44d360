"""Errors that a user can mend: one sentence each, and the exit status of a command."""

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator

LIKENESS = 0.7
# What a person mends about a disk or a store. Every other error of theirs may pass by itself.
FOR_A_PERSON = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM"),
        *("ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ENOTEMPTY", "ENAMETOOLONG", "ELOOP", "EINVAL"),
    )
)
PASSING = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EBUSY", "ETIMEDOUT")
)
# How libraries name such errors that raise classes of their own: statuses of gRPC and of HTTP.
PASSING_WORDS = re.compile(
    "|".join(
        (
            *(re.escape(os.strerror(number)) for number in sorted(PASSING)),
            r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED",
            r"[Cc]onnection (reset|refused|aborted|closed)|[Tt]imed out|[Tt]imeout",
            r"\b(429|50[0234])\b",
        )
    )
)
FORBIDDEN_WORDS = re.compile(r"Permission denied|PERMISSION_DENIED|\b40[13]\b")


class UserError(Exception):
    """A mistake the user can mend: one sentence that names the setting or file to change."""


class Unavailable(UserError):
    """A service failed in all tries; the same command may succeed later."""


def exit_status(error: UserError) -> int:
    """The exit status: 2, or EX_UNAVAILABLE (69) if the same command may succeed later."""
    return 69 if isinstance(error, Unavailable) else 2


def may_pass(error: BaseException) -> bool:
    """Whether an error of a disk or a store may be gone when the same is tried again.

    An error number counts before words, and the error before those that it came from.
    """
    causes = list(_causes(error))
    for cause in causes:
        if is_for_a_person(cause):
            return False
        if isinstance(cause, OSError) and cause.errno is not None:
            return True
    return any(
        isinstance(cause, ConnectionError | TimeoutError) or PASSING_WORDS.search(str(cause))
        for cause in causes
    )


def is_for_a_person(error: BaseException) -> bool:
    """Whether a person must mend what a disk or a store raised; clients give no error numbers."""
    classes = FileNotFoundError | NotADirectoryError | PermissionError
    return isinstance(error, classes) or (
        isinstance(error, OSError) and error.errno in FOR_A_PERSON
    )


def is_forbidden(error: BaseException) -> bool:
    """Whether an error comes from what this account may not use."""
    return any(
        isinstance(cause, PermissionError) or FORBIDDEN_WORDS.search(str(cause))
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it came from."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


def printable(text: str) -> str:
    """Text for a line of a sentence: characters that do not print are written as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name most like a word, without regard to case; empty if none is near."""
    names: dict[str, str] = {}
    for name in known:
        names.setdefault(name.lower(), name)
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=LIKENESS)
    return names[found[0]] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that asks for the nearest name; empty if none is near."""
    name = nearest(word, known)
    return f"; did you mean {name}?" if name else ""
