"""Integers rounded up."""


def ceil_div(number: int, size: int) -> int:
    """Returns how many parts of at most `size` a number has."""
    return -(-number // size)


def round_up(number: int, factor: int) -> int:
    """Returns the smallest multiple of a factor that is not below a number."""
    return ceil_div(number, factor) * factor
