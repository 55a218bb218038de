"""Judgment lists of an export, against the layout that Elasticsearch Learning to Rank parses."""

import re

import polars as pl
from refusals import refuses

from clickexp.errors import UserError
from clickexp.export.judgments import check_names, judgments

HEADER = re.compile(r"#\sqid:(\d+?):\s+?(.*)")
JUDGMENT = re.compile(r"^(\d)\s+qid:(\d+)\s+#\s+(\S+).*")
"""What the plug-in's scripts look for."""


def written(tmp_path, **columns):
    folder = tmp_path / "run[1]*"  # signs of patterns are names here
    folder.mkdir()
    pl.DataFrame(columns).write_parquet(folder / "documents.parquet")
    return judgments(folder / "documents.parquet")


def test_grades_are_shares_of_the_largest_relevance_that_training_has_shown(tmp_path):
    text = written(
        tmp_path,
        query=["red\nshoes", "b", "red\nshoes", "b", "b"],
        document=["d1", "d1", "d2", "d2", "d3"],
        relevance=[0.1, 0.8, 0.39, 0.29, 0.99],
        impressions=[4, 4, 4, 4, 0],
    )
    lines = text.splitlines()
    headers = dict(match.groups() for line in lines if (match := HEADER.match(line)))
    assert headers == {"1": "red shoes", "2": "b"}
    found = [match.groups() for line in lines if (match := JUDGMENT.match(line))]
    expected = [("2", "1", "d2"), ("0", "1", "d1"), ("4", "2", "d1"), ("1", "2", "d2")]
    assert found == expected  # .1 / .8 is half a grade, which is even


def test_what_has_no_names_or_relevance_is_refused(tmp_path):
    with refuses(UserError, "--judgments", "no relevance"):
        written(tmp_path, query=["q"], document=["d"], impressions=[1])
    check_names(["query", "document"])
    with refuses(UserError, "--judgments", "no names of query", "pair_key=query_document"):
        check_names(["document"])
