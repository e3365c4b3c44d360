"""Errors that a user can mend: one sentence each, and the exit status of a command."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake the user can mend: one sentence that names the binding or file to change.

    A function that does not know settings says which `argument` of its own could be changed;
    `naming_settings` around its call adds the setting.
    """

    def __init__(self, sentence: str = "", argument: str = ""):
        super().__init__(sentence)
        self.argument = argument


class Unavailable(UserError):
    """A service failed in all tries; the same command may succeed later."""


def exit_status(error: UserError) -> int:
    """The exit status: 2, or EX_UNAVAILABLE (69) if the same command may succeed later."""
    return 69 if isinstance(error, Unavailable) else 2


@contextmanager
def naming_settings(**settings: str) -> Iterator[None]:
    """Adds the setting to UserErrors about an argument: naming_settings(size="Config.size = 3")."""
    try:
        yield
    except UserError as error:
        if error.argument not in settings:
            raise
        sentence = str(error).removesuffix(".")
        raise type(error)(f"{sentence} ({settings[error.argument]}).") from error


def printable(text: str) -> str:
    """Text for a line of a sentence: characters that do not print are written as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
