"""That annotations are executed in the tests, shapes included, and nowhere else."""

import subprocess
import sys

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from clickexp.metrics import RaxMetric
from clickexp.models import ClickModel
from clickexp.numerics import log_add
from clickexp.parameters import Parameter, new_table
from clickexp.training import LazySGD

BATCH = {"mask": jnp.ones((4, 3), bool)}


class OneLogitASession(Parameter):
    def logit(self, batch):
        return jnp.zeros(4)


class OneScoreARank(ClickModel):
    def relevance(self, batch):
        return jnp.zeros(3)  # would broadcast


class ListsFirst(ClickModel):
    def relevance(self, batch):
        return jnp.zeros((4, 3))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: log_add(jnp.zeros((4, 3)), jnp.zeros((3, 4))),
        lambda: OneLogitASession().prob(BATCH),
        lambda: new_table(5, 2).take(jnp.zeros(3)),
        lambda: OneScoreARank().predict_relevance(BATCH),
        lambda: ListsFirst().predict_relevance(BATCH),
        lambda: RaxMetric("ndcg"),
        lambda: LazySGD(1.0).update(jnp.zeros((4, 2)), [], jnp.zeros((4, 1)), jnp.int32(1)),
    ],
    ids=[
        "numerics",
        "tower",
        "table",
        "model without batch",
        "model with lists first",
        "metric",
        "optimizer",
    ],
)
def test_a_call_that_does_not_fit_its_annotations_is_an_error(mistake):
    with pytest.raises(TypeCheckError):
        mistake()


def test_outside_the_tests_nothing_is_checked():
    code = "import sys, clickexp.models, clickexp.training; print('beartype' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
