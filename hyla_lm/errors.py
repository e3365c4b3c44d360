"""Errors that a user can mend, one sentence each, and which errors of storage may pass."""

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
        *("EOPNOTSUPP", "ENOSYS", "ENOLCK", "EXDEV"),
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
            r"[Dd]isconnected|payload is not completed|ChecksumError",
            r"(^|[:,] )(408|429|50[0-4])\b",
        )
    )
)
FORBIDDEN_WORDS = re.compile(
    r"Permission denied|PERMISSION_DENIED|Forbidden|Unauthorized|\b40[13]\b"
)
WORDS_FOR_A_PERSON = re.compile(
    "|".join(
        (
            *(re.escape(os.strerror(number)) for number in sorted(FOR_A_PERSON)),
            FORBIDDEN_WORDS.pattern,
        )
    )
)


class UserError(Exception):
    """A mistake the user can mend: one sentence that names the setting or file to change."""


class Unavailable(UserError):
    """A service failed in all tries; the same command may succeed later."""


def passes(error: BaseException) -> bool | None:
    """Whether an error of storage, a network or a device may be gone when the same is tried again.

    False if a person must mend it, None where nothing says so. An error number counts before words,
    and the error before those that it came from.
    """
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, FileNotFoundError | NotADirectoryError | PermissionError):
            return False  # clients of buckets give no number
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno not in FOR_A_PERSON
    for cause in causes:
        if isinstance(cause, ConnectionError | TimeoutError) or PASSING_WORDS.search(str(cause)):
            return True
        if WORDS_FOR_A_PERSON.search(str(cause)):
            return False
    return None


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
