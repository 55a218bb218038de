"""Judgment lists, from the relevance that a model learned, as the Elasticsearch Learning to Rank plug-in reads them."""

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from clickexp.errors import UserError
from clickexp.utils.escape import printable
from clickexp.utils.text import listed

_BEST = 4
"""The grade of the most relevant document."""


_NEEDS = (
    "Judgments need a log whose queries and documents have names (pair_key=query_document), and a model that knows the "
    "relevance of a document alone."
)


def check_names(names: Collection[str]) -> None:
    """UserError where a log has no names of queries and documents, of which judgments are."""
    if missing := [name for name in ("query", "document") if name not in names]:
        raise UserError(f"--judgments: the log has no names of {listed(missing, 2)}. {_NEEDS}")


def judgments(documents: Path) -> str:
    """Returns the text of a judgment list: a header per query, and a line `grade qid:N # document` per document.

    A grade is the relevance relative to the largest one, round(4 r / max r), of documents that training has shown.

    Args:
        documents: The table documents.parquet of an export.

    Raises:
        UserError: It has no relevance.
    """
    table = pl.read_parquet(documents, glob=False)
    if "relevance" not in table.columns:
        raise UserError(f"--judgments: {documents.name} has no relevance. {_NEEDS}")
    shown = table.filter(pl.col("impressions") > 0)
    grades = _grades(shown["relevance"].to_numpy())
    rows = shown.select("query", "document").with_columns(grade=pl.Series(grades))
    return "\n".join(_lines(rows)) + "\n"


def _grades(relevance: np.ndarray) -> np.ndarray:
    return np.rint(_BEST * relevance / max(relevance.max(initial=0.0), 1e-30)).astype(np.int64)


def _lines(rows: pl.DataFrame) -> Iterator[str]:
    """Yields the queries, numbered from 1 as they appear, and then the documents of each, best first."""
    queries = {query: qid for qid, query in enumerate(rows["query"].unique(maintain_order=True), 1)}
    yield from (f"# qid:{qid}: {printable(str(query))}" for query, qid in queries.items())
    yield ""
    numbered = rows.with_columns(qid=pl.col("query").replace_strict(queries, return_dtype=pl.Int64))
    for query, document, grade, qid in numbered.sort(
        "qid", -pl.col("grade"), maintain_order=True
    ).iter_rows():
        yield f"{grade}\tqid:{qid}\t# {printable(str(document))}\t{printable(str(query))}"
