"""A process that cannot start within the limits of the system, and one that cannot for another reason."""

import resource

import pytest
from refusals import refuses

from clickexp.errors import UserError
from clickexp.utils import limits

NO_ROOM = ["4 GB", "ulimit -v unlimited"]
ENDS = {
    "import os; os.abort()": NO_ROOM,
    "raise MemoryError": NO_ROOM,
    "raise ImportError('lib.so: failed to map segment from shared object')": NO_ROOM,
    "import nothing_of_this_name": [
        "XLA",
        "ModuleNotFoundError: No module named 'nothing_of_this_name'",
    ],
    "import sys; print('x.YError: z', 'note', sep=chr(10), file=sys.stderr); sys.exit(1)": [
        "XLA",
        ": x.YError: z",
    ],
    "import sys; sys.exit(3)": ["XLA", "exit code 3"],
}


@pytest.mark.parametrize("code", ENDS)
def test_only_a_lack_of_room_is_reported_as_one(code, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4_000_000_000, resource.RLIM_INFINITY))
    monkeypatch.setattr(limits, "_TRY", code)
    with refuses(UserError, *ENDS[code]) as raised:
        limits.check_address_space()
    assert ("ulimit" in str(raised.value)) == (ENDS[code] == NO_ROOM)
