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


@pytest.mark.parametrize("learns_prior", [True, False])
def test_only_a_prior_that_is_learned_moves(learns_prior):
    """The documents' logits are about -3; posteriors follow the clicks in either case."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, ROWS, (2000, 4)).astype(np.int32)
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=rng.random(ids.shape) < 0.05, query_doc_pairs=ROWS - 1)
    attraction = EmbeddingParameterConfig(add_baseline=False, posterior="normal", prior_precision=2.0)
    model = PositionBasedModel(4, ROWS - 1, attraction=attraction, rngs=nnx.Rngs(0))
    model.attraction.table = new_table(ROWS, 1, 2.0, "normal", learns_prior=learns_prior)
    trainer = Trainer(natural_gradient(), epochs=15, batch_size=100, early_stopping=None)
    trainer.train(model, log, log)
    rows = model.attraction.table.get_value()
    assert np.all(np.asarray(model.attraction.logit({"query_doc_ids": jnp.arange(1, ROWS)[None]})) < -1)
    kept = float(rows.prior.log_precision) == np.float32(np.log(2.0)) and float(rows.prior.mean[0]) == 0.0
    assert kept is not learns_prior
