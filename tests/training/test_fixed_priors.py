"""When priors of posteriors are learned: those of vectors never, others not in the first passes."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clickexp.data import Sessions
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.parameters.table import new_table
from clickexp.training import Trainer, natural_gradient

ROWS, PRECISION = 40, 2.0


def prior_of(tables):
    (prior,) = [table.get_value().prior for _, table in nnx.to_flat_state(tables)]
    return float(prior.log_precision), float(prior.mean[0])


@pytest.mark.parametrize("learns_prior", [True, False])
def test_only_a_prior_that_is_learned_moves(learns_prior):
    """The documents' logits are about -3; posteriors follow the clicks in either case."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, ROWS, (2000, 4)).astype(np.int32)
    clicks = rng.random(ids.shape) < 0.05
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=ROWS - 1)
    attraction = EmbeddingParameterConfig(
        add_baseline=False, posterior="normal", prior_precision=PRECISION
    )
    model = PositionBasedModel(4, ROWS - 1, attraction=attraction, rngs=nnx.Rngs(0))
    model.attraction.table = new_table(ROWS, 1, PRECISION, "normal", learns_prior=learns_prior)
    learner = Trainer(natural_gradient(), batch_size=100).learner(model)
    learner.start(log)
    assert learner.warmup_passes == 3
    seen = []
    for epoch in range(1, 16):
        learner.run_pass(log, epoch)
        seen.append(prior_of(learner.state.tables))
    learner.restore(model, learner.snapshot(learner.state, None))
    logits = model.attraction.logit({"query_doc_ids": jnp.arange(1, ROWS)[None]})
    assert np.all(np.asarray(logits) < -1)
    start = float(np.float32(np.log(PRECISION)))
    precisions, means = np.transpose(seen)
    # rows that have not yet left their start would make it too high
    np.testing.assert_array_equal(precisions[:3], start)
    if learns_prior:
        assert (precisions[3:] != start).all() and (means < 0).all()
    else:
        assert (precisions[3:] == start).all() and (means == 0).all()


def test_documents_of_a_row_spread_over_the_steps_of_a_pass_if_data_are_shuffled():
    """Unless they are, one batch may have all of them."""
    ids = np.ones((30, 2), np.int32)
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 1, query_doc_pairs=1)
    batch = {"query_doc_ids": ids, "clicks": ids > 1, "mask": ids > 0}
    found = []
    for shuffle, data in ((True, log), (False, log), (True, [batch])):
        model = PositionBasedModel(2, 1, rngs=nnx.Rngs(0))
        learner = Trainer(batch_size=10, shuffle=shuffle, steps_per_execution=2).learner(model)
        learner.start(data)
        found.append(float(learner.state.steps_per_pass))
    assert found == [3.0, 1.0, 1.0]
