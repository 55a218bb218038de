"""Posteriors whose prior is not learned, as those of vectors."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clickexp.data import Sessions
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.parameters.table import new_table
from clickexp.training import Trainer, natural_gradient

ROWS = 40


@pytest.mark.parametrize("learns_prior", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_only_a_prior_that_is_learned_moves(learns_prior):
    """The documents' logits are about -3; posteriors follow the clicks in either case."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, ROWS, (2000, 4)).astype(np.int32)
    clicks = rng.random(ids.shape) < 0.05
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=ROWS - 1)
    attraction = EmbeddingParameterConfig(
        add_baseline=False, posterior="normal", prior_precision=2.0
    )
    model = PositionBasedModel(4, ROWS - 1, attraction=attraction, rngs=nnx.Rngs(0))
    model.attraction.table = new_table(ROWS, 1, 2.0, "normal", learns_prior=learns_prior)
    trainer = Trainer(natural_gradient(), epochs=15, batch_size=100, early_stopping=None)
    trainer.train(model, log, log.slice(0, 100))
    rows = model.attraction.table.get_value()
    logits = model.attraction.logit({"query_doc_ids": jnp.arange(1, ROWS)[None]})
    assert np.all(np.asarray(logits) < -1)
    before = float(np.float32(np.log(2.0))), 0.0
    after = float(rows.prior.log_precision), float(rows.prior.mean[0])
    moved = [a != b for a, b in zip(before, after, strict=True)]
    assert all(moved) if learns_prior else not any(moved)
