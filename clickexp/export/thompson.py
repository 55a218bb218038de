"""Thompson sampling: documents in the order of a draw from the posteriors of a fitted model."""

import jax
import numpy as np
import polars as pl

from clickexp.data import Dataset
from clickexp.errors import UserError
from clickexp.export.predict import (
    of_documents,
    relevance_outputs,
    session_columns,
    single_documents,
)
from clickexp.models import Model


def thompson_order(
    model: Model, dataset: Dataset, id_names: pl.DataFrame | None, seed: int
) -> pl.DataFrame:
    """Orders the documents of each query by their relevance in a model drawn from the posteriors.

    An order by a draw puts each document first as often as it is probably the best, and so explores what few users
    have seen (Thompson 1933, "On the likelihood that one unknown probability exceeds another"; Chapelle and Li 2011,
    "An empirical evaluation of Thompson sampling").

    Args:
        model: A fitted model.
        dataset: The log, all parts of which give documents to queries.
        id_names: Names of the ids from 1; None where the log came with these ids.
        seed: Of the draw.

    Returns:
        The columns query (as named) or query_id, where the log has one of them; rank, from 1 in each query;
        query_doc_id; document, where ids have names; score, the drawn relevance. Without queries there is one order.

    Raises:
        UserError: No table has posteriors, or relevance changes from session to session.
    """
    if not model.has_posteriors:
        raise UserError(
            "--thompson: no table of the model has posteriors. Train it with posterior=normal."
        )
    candidates = _candidates(dataset)
    if id_names is not None:
        # 0 is what the run does not know
        candidates = candidates.filter(pl.col("query_doc_id") > 0)
    scores = _drawn_scores(model, dataset, candidates["query_doc_id"].unique().sort(), seed)
    if id_names is not None:
        scores = scores.hstack(id_names[scores["query_doc_id"] - 1])
    if "query" in scores.columns:
        candidates = candidates.select("query_doc_id").unique()
    documents = candidates.join(scores, on="query_doc_id")
    query = [name for name in ("query", "query_id") if name in documents.columns][:1]
    ordered = documents.sort(
        *query, "score", "query_doc_id", descending=[False] * len(query) + [True, False]
    )
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int32)
    ordered = ordered.with_columns(rank=rank.over(query) if query else rank)
    names = [name for name in ("document",) if name in ordered.columns]
    return ordered.select(*query, "rank", "query_doc_id", *names, "score")


def _drawn_scores(model: Model, dataset: Dataset, ids: pl.Series, seed: int) -> pl.DataFrame:
    """Returns the relevance of documents in a model that is drawn from the posteriors."""
    one = single_documents(dataset, ids[:1].to_numpy())
    if others := session_columns(model, relevance_outputs, dataset, one):
        raise UserError(
            f"--thompson: the model reads {', '.join(others)}, which belongs to a session"
        )
    drawn = model.sample_parameters(jax.random.key(seed))
    parts = [
        values["relevance"]
        for _, values in of_documents(drawn, dataset, ids.to_numpy(), relevance_outputs, "scores")
    ]
    return pl.DataFrame({"query_doc_id": ids, "score": np.concatenate(parts)})


def _candidates(dataset: Dataset) -> pl.DataFrame:
    """Returns each document that the dataset shows, once for each query id where all parts have these."""
    parts = dataset.parts.values()
    has_queries = all("query_ids" in part.columns for part in parts)
    pieces = []
    for part in parts:
        for chunk in part.chunks():
            columns = {"query_doc_id": chunk.of_documents("query_doc_ids")}
            if has_queries:
                columns["query_id"] = chunk.of_documents("query_ids")
            pieces.append(pl.DataFrame(columns).unique())
    return pl.concat(pieces).unique()
