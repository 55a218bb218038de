"""What the commands besides `clickexp` share: how they end."""

import contextlib
import sys
from collections.abc import Iterator

from clickexp.errors import UserError

STOPPED = 130


@contextlib.contextmanager
def ending(command: str, stopped: str = "stopped") -> Iterator[None]:
    """One clear line for what the user can mend; everything else with its trace."""
    try:
        yield
    except (UserError, OSError) as error:
        print(f"{command}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{command}: {stopped}", file=sys.stderr)
        sys.exit(STOPPED)
