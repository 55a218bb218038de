"""Two processes that agree until a file is there; then the first waits for another one, and ends the others.

python tests/utils/together.py FOLDER
"""

import os
import sys
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

from clickexp.utils import exits, hosts


def together(folder):
    """Writes 0.joined and 1.joined, and after trained is there, 0.left."""
    hosts.join(str(folder))
    (folder / f"{hosts.index()}.joined").touch()
    with hosts.together():
        while not hosts.broadcast((folder / "trained").exists()):
            time.sleep(0.01)
        hosts.leave()
    (folder / f"{hosts.index()}.left").touch()
    while not (folder / "finished").exists():
        time.sleep(0.01)
    hosts.release()


if __name__ == "__main__":
    with exits.ending("together"):
        together(Path(sys.argv[1]))
