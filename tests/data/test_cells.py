"""Numbers of positions within layouts, and sessions counted by them."""

import numpy as np
import pytest
from refusals import refuses

from clickexp.data import Column, Sessions
from clickexp.data.cells import Cells
from clickexp.errors import ConfigError

CELLS = Cells((("device", 3), ("ad", 2)), 4)


def log(with_positions):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 4, 30)
    there = np.arange(3) < lengths[:, None]
    positions = {"positions": np.where(there, [[1, 2, 4]], 0)} if with_positions else {}
    extra = {
        Column("device", "int8", per="session"): rng.integers(0, 3, 30).astype(np.int8),
        Column("ad", "bool"): there & (rng.random((30, 3)) < 0.4),
    }
    clicks = there & (rng.random((30, 3)) < 0.5)
    return Sessions.from_arrays(
        query_doc_ids=there.astype(int), clicks=clicks, lengths=lengths, **positions, extra=extra
    )


def test_cells_name_layout_and_position():
    cells = range(CELLS.count - 5)
    found = [(CELLS.layout(cell), CELLS.position(cell)) for cell in cells]
    assert found == [
        ({"device": f"{device}", "ad": f"{ad}"}, position)
        for device in range(3)
        for ad in range(2)
        for position in range(5)
    ]
    assert [CELLS.cell(*each) for each in found] == [*cells]
    assert CELLS.of(CELLS.batch([*cells])).tolist() == [[*cells]]
    assert CELLS.words(13) == "device 1, ad 0"
    others = {"device": np.array([[3, 0, -1]]), "ad": np.array([[0, 2, 1]]), "positions": 4}
    assert CELLS.of(others).tolist() == [[34, 34, 34]] and CELLS.count == 35
    assert not CELLS.knows(34) and CELLS.knows(29)
    for cells in (CELLS, Cells((("device", 3),), 4)):
        assert cells.others().tolist() == [*range(cells.count - 5, cells.count)]
        assert cells.of(cells.batch(cells.others())).tolist() == [cells.others().tolist()]
    assert Cells((), 4).of({"positions": np.array([[1, 4]])}).tolist() == [[1, 4]]


@pytest.mark.parametrize("with_positions", [False, True])
def test_sessions_are_counted_by_cells(with_positions):
    """Of parts and chosen rows, too, in a loop over all documents."""
    sessions = log(with_positions)
    for part in (sessions, sessions.slice(5, 20), sessions.select(np.array([3, 9, 9, 1]))):
        counts = np.zeros((2, CELLS.count), int)
        for i, length in enumerate(part.column("lengths")):
            for rank in range(length):
                at = [1, 2, 4][rank] if with_positions else rank + 1
                values = part.column("device")[i], int(part.column("ad")[i, rank])
                layout = dict(zip(("device", "ad"), map(str, values), strict=True))
                cell = CELLS.cell(layout, at)
                counts[:, cell] += 1, part.column("clicks")[i, rank]
        shown, clicks = CELLS.view(part).by_position
        assert shown.tolist() == counts[0].tolist() and clicks.tolist() == counts[1].tolist()


def test_columns_that_tell_no_layouts_are_refused():
    with refuses(ConfigError, "no column devise", "device", "dataset.columns.devise"):
        Cells.of_sizes(["devise"], {"device": 2}, 4)
    with refuses(ConfigError, "4,000,008 combinations", "few values"):
        Cells.of_sizes(["user"], {"user": 1_000_000}, 3)
