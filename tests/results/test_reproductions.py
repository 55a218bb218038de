"""Verdicts on published figures."""

import pytest

from clickexp.results.reproductions import SECONDS, Row, _verdict


@pytest.mark.parametrize(
    "metric, published, verdict",
    [
        ("ppl", 1.5, "inside 0.2"),
        ("ppl", 1.9, "outside 0.2"),
        ("ppl", None, ""),
        (SECONDS, 1.5, ""),
    ],
)
def test_a_verdict_needs_a_published_figure_and_is_none_of_times(metric, published, verdict):
    row = Row("pbm", metric, (published,), (1.5, 1.7), "", ())
    assert _verdict(row, 0.2, 0.0) == verdict
