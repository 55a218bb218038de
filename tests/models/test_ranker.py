"""A model that ranks and trains, without a distribution over clicks."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses

from clickexp.errors import ConfigError, DataError
from clickexp.models import ClickModel, Model, Ranker, Role
from clickexp.parameters import (
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    PositionParameterConfig,
    SumParameterConfig,
)


class Pointwise(Model):
    """Squared error of a tower's logit to the clicks."""

    name = "Pointwise"

    score: Role = Role(EmbeddingParameterConfig())

    def compute_loss(self, batch, aggregate=True):
        loss = jnp.where(batch["mask"], (self.score.logit(batch) - batch["clicks"]) ** 2, 0.0)
        return jnp.mean(loss) if aggregate else loss

    def relevance(self, batch):
        return self.score.logit(batch)


def test_a_ranker_needs_a_loss_and_a_relevance():
    model = Pointwise(query_doc_pairs=4, rngs=nnx.Rngs(0))
    values = model.score.table.get_value()
    model.score.table.set_value(type(values)(jnp.arange(5.0)[:, None], 1))
    mask = np.array([[True, True, False]])
    scores = model.predict_relevance({"query_doc_ids": np.array([[4, 2, 9]]), "mask": mask})
    np.testing.assert_allclose(scores, [[4, 2, -np.inf]])
    assert not isinstance(model, ClickModel) and not hasattr(model, "predict_clicks")


@pytest.mark.parametrize(
    "tower",
    [
        PositionParameterConfig(),
        GlobalParameterConfig(),
        SumParameterConfig(
            {"position": PositionParameterConfig(), "one": GlobalParameterConfig(), "none": None}
        ),
    ],
)
def test_scores_that_do_not_depend_on_documents_are_refused(tower):
    """They keep the order of the log, whose nDCG would pass for the ranker's."""
    with refuses(ConfigError, f"model.attraction={type(tower).__name__}", "attraction=embedding"):
        Ranker(positions=3, query_doc_pairs=4, attraction=tower, rngs=nnx.Rngs(0))
    documents = SumParameterConfig({"position": tower, "document": EmbeddingParameterConfig()})
    for other in (
        documents,
        PositionParameterConfig(use_feature="document_ids", parameters=4),
        None,
    ):
        Ranker.check_settings(attraction=other)


def test_ids_beyond_its_towers_are_an_error():
    model = Pointwise(query_doc_pairs=4, rngs=nnx.Rngs(0))
    with refuses(DataError, "query_doc_ids holds 5", "score", "up to 4"):
        model.predict_relevance({"query_doc_ids": np.array([[5]]), "mask": np.ones((1, 1), bool)})


@pytest.mark.parametrize("documents", [0, 1, 3])
def test_the_loss_of_a_batch_is_the_mean_over_its_documents(documents):
    """Also where few are shown; of none it is 0."""
    ranker = Ranker(query_doc_pairs=4, positions=3, rngs=nnx.Rngs(0))
    positions = np.tile(np.arange(1, 4, dtype=np.int32), (2, 1))
    mask = np.array([[True, True, True], [False] * 3]) & (positions <= documents)
    batch = {
        "query_doc_ids": positions,
        "positions": positions,
        "clicks": positions == 1,
        "mask": mask,
    }
    losses = np.asarray(ranker.compute_loss(batch, aggregate=False), np.float64)
    expected = losses.sum() / documents if documents else 0.0
    assert float(ranker.compute_loss(batch)) == pytest.approx(expected, rel=1e-6)
