"""The table of documents."""

from functools import partial

import numpy as np
import polars as pl
from flax import nnx

from clickexp.data import Column, Dataset, Sessions
from clickexp.export.tables import write_documents
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.posteriors.exported import open_documents
from clickexp.runs.run import SharedParameter

IDS = np.array([[1, 2], [2, 3], [1, 3]], np.int32)
CLICKS = np.array([[1, 0], [1, 1], [0, 1]], bool)


class ByHeight(PositionBasedModel):
    """Relevance falls with the height that a session shows the document in."""

    def relevance(self, batch):
        return super().relevance(batch) - batch["height"]


def documents(model_class, file):
    heights = {Column("height", "float32"): np.ones((3, 2), np.float32)}
    sessions = Sessions.from_arrays(
        query_doc_ids=IDS, clicks=CLICKS, query_doc_pairs=3, extra=heights
    )
    model = model_class(positions=2, query_doc_pairs=3, rngs=nnx.Rngs(0))
    write_documents(model, Dataset("d", sessions, sessions, sessions, 3, 2), None, None, file)
    return pl.read_parquet(file)


def test_probabilities_that_change_from_session_to_session_are_left_out(tmp_path, caplog):
    table = documents(ByHeight, tmp_path / "documents.parquet")
    assert table.to_dict(as_series=False) == {
        "query_doc_id": [1, 2, 3], "impressions": [2, 2, 2], "clicks": [1, 1, 2]
    }  # fmt: skip
    assert caplog.messages == [
        "documents.parquet has impressions and clicks only: the model reads height, which belongs to a session"
    ]


def test_other_models_are_not_concerned(tmp_path, caplog):
    pbm = partial(PositionBasedModel, attraction=EmbeddingParameterConfig(posterior="none"))
    table = documents(pbm, tmp_path / "documents.parquet")
    assert table.columns == ["query_doc_id", "attraction", "relevance", "impressions", "clicks"]
    assert not caplog.messages


def interval(position, low, relative=1.0, last_click=None):
    return SharedParameter(
        parameter="examination",
        position=position,
        last_click=last_click,
        value=0.5,
        sd=1.0,
        relative=relative,
        relative_low=low,
    )


def test_documents_shown_at_open_positions_alone_are_open():
    """A position is open where all its ratios are; of numbers of no position, or without a ratio, nobody says so."""
    lists = [[1, 2, 3], [2, 1, 4], [5, 6, 3], [1, 6, 7]]
    positions = [[1, 2, 4], [1, 2, 4], [1, 3, 4], [1, 3, 5]]
    train = Sessions.from_arrays(
        query_doc_ids=np.array(lists),
        clicks=np.zeros((4, 3), bool),
        positions=np.array(positions),
        query_doc_pairs=9,
    )
    intervals = [
        *(interval(position, low) for position, low in ((1, 1.0), (2, None), (3, None), (5, None))),
        interval(4, None, last_click=0),
        interval(4, 0.5, last_click=1),
        interval(None, None),
        interval(2, None, relative=None),
    ]
    open_positions = {2, 3, 5}
    shown = {
        document: {
            p for row, places in zip(lists, positions) for d, p in zip(row, places) if d == document
        }
        for document in range(10)
    }
    expected = [bool(places) and places <= open_positions for places in shown.values()]
    assert open_documents(train, intervals, 10).tolist() == expected and sum(expected) == 2
    assert not open_documents(train, [interval(1, 1.0), interval(2, 0.1)], 10).any()
    by_rank = Sessions.from_arrays(
        query_doc_ids=np.array([[1, 2], [1, 0]]),
        clicks=np.zeros((2, 2), bool),
        lengths=np.array([2, 1]),
    )
    assert open_documents(by_rank, intervals, 3).tolist() == [False, False, True]
