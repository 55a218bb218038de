"""What tests of refusals check: the class of the error, the key that is wrong, and the remedy; not the sentence."""

from contextlib import contextmanager

import pytest


@contextmanager
def refuses(error: type[Exception], *parts: str):
    """Expects an error whose message names each part, such as `trainer.epochs=0` and `at least 1`; yields it."""
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in the message: {message}"
