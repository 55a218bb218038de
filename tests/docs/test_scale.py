"""The page on large logs has the tables that its script computes, from constants that other pages have."""

import pytest
from places import ROOT

from clickexp.training.sparse.packing import Layout


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts/bench")
    import scale

    return scale


def test_the_page_has_the_tables_of_the_script(scale):
    tables = scale.page(scale.papers(scale.LOGS, 10))
    assert (ROOT / "docs/data/scale.md").read_text() == tables


def test_a_log_on_paper_by_hand(scale):
    """2e8 sessions of 10 documents: records of 10 + 3 + 1 numbers, and 8 bytes of the query."""
    (log,) = scale.papers("2e8:1e8", 10)
    assert log.pack == pytest.approx(2e8 * (56 + 8) / 1e9)
    assert log.table == pytest.approx(4.0) and log.carried == pytest.approx(11.2) and log.stays
    assert log.preparing(1) == pytest.approx(240) and log.core_epoch == pytest.approx(200)
    assert log.preparing(10) == pytest.approx(2e8 * 1.9e-6 / 10 + 1e8 * 0.25e-6)
    assert log.gpu_epoch(1) == pytest.approx(200 / 106.4) == 8 * log.gpu_epoch(8)
    (large,) = scale.papers("2e9:1e8", 10)
    assert not large.stays and large.gpu_epoch(8) == pytest.approx(2000 / 10.4)
    assert large.sent == pytest.approx(2e9 * 10 * 28 / 1e9)
    assert large.nodes_epoch(4) == pytest.approx(2000 / 10.4 / 4 + 2e9 * 10 * 28 / 50e9)


def test_numbers_are_written_in_the_unit_that_suits_them(scale):
    seconds = {
        0.062: "0.062 s",
        9.4: "9.4 s",
        100: "100 s",
        150: "2.5 min",
        8e3: "2.2 h",
        3e5: "3.5 days",
    }
    assert [scale.duration(each) for each in seconds] == [*seconds.values()]
    assert [scale.power(each) for each in (1e8, 2.5e9)] == ["1e8", "2.5e9"]
    assert [scale.size(each) for each in (0.85, 64, 1200)] == ["0.85 GB", "64 GB", "1.2 TB"]


def test_more_rows_than_ids_are_refused(scale):
    with pytest.raises(SystemExit, match="32-bit"):
        scale.papers("1e10:3e9", 10)


def test_constants_are_those_of_other_pages(scale):
    constants = {name: each.value for name, each in scale.CONSTANTS.items()}
    benchmarks = " ".join((ROOT / "scripts/bench/README.md").read_text().split())
    design = " ".join((ROOT / "docs/design.md").read_text().split())
    for rate in ("fed", "gpu"):
        assert f"{constants[rate]:g}" in benchmarks
    assert f"{constants['document_bytes']:g} bytes per document" in design
    assert f"{constants['two_cores']:g} M sessions per second" in design
    packed = 4 * Layout(2, 3, 0, 1).width
    assert constants["row_bytes"] == packed + 12 + 12
