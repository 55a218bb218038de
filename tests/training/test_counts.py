"""How many documents each row serves, and at which ranks: counted without the model where it reads rows by document."""

from functools import partial

import numpy as np
import pytest
from flax import nnx
from small_logs import packed, ragged_log, shown

from clickexp.models import DocumentCTRModel, DynamicBayesianNetwork, UserBrowsingModel
from clickexp.parameters import EmbeddingParameterConfig, HashEmbedding
from clickexp.training import Trainer, trainer

PAIRS, RANKS, SESSIONS = 30, 4, 50
COLUMNS = ragged_log(SESSIONS, RANKS, PAIRS - 5)
IDS = COLUMNS["query_doc_ids"][shown(COLUMNS)]
LOG_RANKS = np.log(np.broadcast_to(np.arange(1, RANKS + 1), COLUMNS["clicks"].shape))[
    shown(COLUMNS)
]


def documents(model):
    """Sums by table after the pass that counts, and the steps of a pass as the state has them."""
    learner = Trainer(batch_size=16).learner(model)
    data = packed(COLUMNS, PAIRS)
    learner.start(data)
    return learner.documents(data), float(learner.state.steps_per_pass)


@pytest.mark.parametrize(
    "build",
    [
        partial(UserBrowsingModel, RANKS, PAIRS),
        partial(DynamicBayesianNetwork, PAIRS),
        partial(DocumentCTRModel, PAIRS),
    ],
    ids=["by rank of clicks", "two tables", "one tower"],
)
def test_rows_of_documents_are_counted_without_a_pass_of_the_model(build, monkeypatch):
    monkeypatch.setattr(trainer, "feed", None)
    found, steps = documents(build(rngs=nnx.Rngs(0)))
    assert found and steps == -(-SESSIONS // 16)
    for sums in found.values():
        expected = np.stack(
            [np.bincount(IDS, weights, PAIRS + 1) for weights in (None, LOG_RANKS)], axis=1
        )
        np.testing.assert_allclose(sums.sums, expected[:, : sums.sums.shape[1]], rtol=1e-6)
        np.testing.assert_allclose(sums.squares, np.sum(LOG_RANKS**2), rtol=1e-6)


def test_other_rows_are_counted_by_what_the_model_reads():
    """Of a compressed table, whose rows documents share: each row has those of all that read it."""
    tower = EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=4.0)
    model = UserBrowsingModel(RANKS, PAIRS, attraction=tower, rngs=nnx.Rngs(0))
    found, steps = documents(model)
    assert found and steps == -(-SESSIONS // 16)
    for sums in found.values():
        counts = np.asarray(sums.sums)[:, 0]
        assert counts.sum() % len(IDS) == 0 and len(counts) < PAIRS
