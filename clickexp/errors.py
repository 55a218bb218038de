"""Errors that a user can mend. The command shows their message, in one line, in place of a trace."""


class UserError(Exception):
    """Something in the input or the configuration; the message says what is wrong and what to do."""


class ConfigError(UserError, ValueError):
    """A key or value of the configuration that does not fit."""


class DataError(UserError, ValueError):
    """Input that cannot be used. The message says where, what is wrong, and the remedy."""


class DivergedError(UserError, FloatingPointError):
    """Training whose loss is no longer a number."""


def install(extra: str) -> str:
    """The command that installs an extra, in any folder: pip takes the clickexp that is installed."""
    return f"pip install 'clickexp[{extra}]'"
