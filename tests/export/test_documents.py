"""The table of documents."""

from functools import partial

import numpy as np
import polars as pl
from flax import nnx

from clickexp.data import Column, Dataset, Sessions
from clickexp.export.tables import _write_documents
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig

IDS = np.array([[1, 2], [2, 3], [1, 3]], np.int32)
CLICKS = np.array([[1, 0], [1, 1], [0, 1]], bool)


class ByHeight(PositionBasedModel):
    """Relevance falls with the height that a session shows the document in."""

    def relevance(self, batch):
        return super().relevance(batch) - batch["height"]


def documents(model_class, file):
    heights = {Column("height", "float32"): np.ones((3, 2), np.float32)}
    sessions = Sessions.from_arrays(query_doc_ids=IDS, clicks=CLICKS, query_doc_pairs=3, extra=heights)
    model = model_class(positions=2, query_doc_pairs=3, rngs=nnx.Rngs(0))
    _write_documents(model, Dataset("d", sessions, sessions, sessions, 3, 2), None, None, file)
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
