"""Models that are special cases of others, with the others' numbers set by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from flax import nnx
from jax.scipy.special import expit, logit
from small_logs import fill_tables

from clickexp.models import (
    ClickChainModel,
    DependentClickModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.parameters import Rows

SURE = 1e4
PREDICTIONS = ("conditional_clicks", "clicks", "loss")


def agree(first, first_model, second, second_model, names=PREDICTIONS, where=True):
    batch = zoo.every_click_vector()
    actual = zoo.runner(first.name).predict(first_model, batch)
    expected = zoo.runner(second.name).predict(second_model, batch)
    for name in names:
        np.testing.assert_allclose(
            np.where(where, actual[name], 0),
            np.where(where, expected[name], 0),
            rtol=1e-5,
            atol=2e-6,
        )


def copy_tower(source, target):
    zoo.nnx.update(target, zoo.nnx.state(source))


def set_logit(tower, logit):
    tower.weight[...] = jnp.full_like(tower.weight[...], logit)


@pytest.fixture
def dbn():
    return zoo.random_model(zoo.DBN)


def test_sdbn_is_dbn_with_users_who_always_go_on(dbn):
    sdbn = zoo.random_model(zoo.SDBN, seed=1)
    copy_tower(dbn.attraction, sdbn.attraction)
    copy_tower(dbn.satisfaction, sdbn.satisfaction)
    set_logit(dbn.continuation, SURE)
    agree(zoo.SDBN, sdbn, zoo.DBN, dbn)


def test_ubm_whose_examination_ignores_the_last_click_is_pbm():
    ubm, pbm = zoo.random_model(zoo.UBM), zoo.random_model(zoo.PBM, seed=1)
    copy_tower(pbm.attraction, ubm.attraction)
    ubm.examination.weight[...] = jnp.repeat(pbm.examination.weight[...], zoo.POSITIONS + 1)
    agree(zoo.UBM, ubm, zoo.PBM, pbm)


def test_dcm_whose_users_leave_after_a_click_is_cm():
    dcm, cm = zoo.random_model(zoo.DCM), zoo.random_model(zoo.CM, seed=1)
    copy_tower(cm.attraction, dcm.attraction)
    set_logit(dcm.continuation, -SURE)
    possible = np.cumsum(zoo.VECTORS, axis=1) - zoo.VECTORS == 0
    agree(zoo.DCM, dcm, zoo.CM, cm, names=["clicks"])
    agree(zoo.DCM, dcm, zoo.CM, cm, where=np.tile(possible, (zoo.LISTS, 1)))


def test_dcm_whose_users_always_go_on_is_the_click_rate_of_documents():
    dcm, dctr = zoo.random_model(zoo.DCM), zoo.random_model(zoo.DCTR, seed=1)
    copy_tower(dctr.ctr, dcm.attraction)
    set_logit(dcm.continuation, SURE)
    agree(zoo.DCM, dcm, zoo.DCTR, dctr)


def test_ccm_with_sure_continuations_is_sdbn_whose_documents_satisfy_as_they_attract():
    ccm, sdbn = zoo.random_model(zoo.CCM), zoo.random_model(zoo.SDBN, seed=1)
    set_logit(ccm.continuation_exam_no_click, SURE)
    set_logit(ccm.continuation_click_not_satisfied, SURE)
    set_logit(ccm.continuation_click_satisfied, -SURE)
    copy_tower(ccm.attraction, sdbn.attraction)
    copy_tower(ccm.attraction, sdbn.satisfaction)
    agree(zoo.CCM, ccm, zoo.SDBN, sdbn)


def test_pbm_with_sure_examination_is_the_click_rate_of_documents():
    pbm, dctr = zoo.random_model(zoo.PBM), zoo.random_model(zoo.DCTR, seed=1)
    copy_tower(dctr.ctr, pbm.attraction)
    set_logit(pbm.examination, SURE)
    agree(zoo.PBM, pbm, zoo.DCTR, dctr)


def test_trust_bias_without_false_positives_is_pbm():
    trust, pbm = zoo.random_model(zoo.TRUST_BIAS), zoo.random_model(zoo.PBM, seed=1)
    copy_tower(pbm.attraction, trust.attraction)
    copy_tower(pbm.examination, trust.true_positive)
    set_logit(trust.false_positive, -SURE)
    agree(zoo.TRUST_BIAS, trust, zoo.PBM, pbm)


def test_trust_bias_whose_rates_are_equal_is_the_click_rate_of_ranks():
    trust, rctr = zoo.random_model(zoo.TRUST_BIAS), zoo.random_model(zoo.RCTR, seed=1)
    copy_tower(rctr.ctr, trust.true_positive)
    copy_tower(rctr.ctr, trust.false_positive)
    agree(zoo.TRUST_BIAS, trust, zoo.RCTR, rctr)


@pytest.mark.parametrize(
    "kind, is_separate",
    [
        (PositionBasedModel, True),
        (UserBrowsingModel, True),
        (DependentClickModel, False),
        (ClickChainModel, False),
        (DynamicBayesianNetwork, False),
    ],
)
def test_models_that_separate_examination_leave_its_scale_open(kind, is_separate):
    """The same clicks come of c e and a / c, where a model says so; the others have no tower for e."""
    model = fill_tables(kind(positions=4, query_doc_pairs=9, rngs=nnx.Rngs(0)))
    assert model.separates_examination is is_separate
    assert hasattr(model, "examination") is is_separate
    if not is_separate:
        return
    rng = np.random.default_rng(1)
    positions = np.tile(np.arange(1, 5, dtype=np.int32), (6, 1))
    batch = {
        "query_doc_ids": rng.integers(1, 10, (6, 4)).astype(np.int32),
        "positions": positions,
        "clicks": rng.random((6, 4)) < 0.4,
        "mask": positions > 0,
    }
    weight, table = model.examination.weight, model.attraction.table
    weight[...] = jnp.asarray(rng.normal(-1, 0.5, weight[...].shape), jnp.float32)
    before = model.predict_conditional_clicks(batch)
    weight[...] = logit(1.2 * expit(weight[...]))
    rows = table.get_value()
    table.set_value(Rows(logit(expit(rows.values) / 1.2), rows.dim))
    np.testing.assert_allclose(model.predict_conditional_clicks(batch), before, rtol=1e-5)
