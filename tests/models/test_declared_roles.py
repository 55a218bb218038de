"""Roles as data: constructors, defaults and limits follow from what a class declares."""

import inspect
import sys

import numpy as np
import oracle
import pytest
import zoo
from flax import nnx
from hydra import compose, initialize_config_dir
from refusals import refuses

import clickexp
from clickexp import models
from clickexp.experiment.conf import CONF
from clickexp.experiment.resolve import resolve
from clickexp.models import CascadeModel, Role
from clickexp.models.base import IndependentModel
from clickexp.numerics import log_and
from clickexp.parameters import (
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    PositionParameterConfig,
)
from clickexp.simulation.towers import FixedParameter

OUTSIDER = '''
from clickexp.models import Role
from clickexp.models.base import IndependentModel
from clickexp.numerics import log_and
from clickexp.parameters import EmbeddingParameterConfig, GlobalParameterConfig


class Patient(IndependentModel):
    """P(click) = a p, with a role `patience` that the package does not know."""

    name = "Patient"

    attraction: Role = Role(EmbeddingParameterConfig())
    patience: Role = Role(GlobalParameterConfig())
    scale: int = 1

    def marginal(self, batch):
        return log_and(self.attraction.log_pair(batch), self.patience.log_pair(batch))
'''
OPTION = """
defaults:
  - /parameter@_global_.patience: global
_target_: patient.Patient
_partial_: true
attraction: ${attraction}
patience: ${patience}
"""


class Patient(IndependentModel):
    """P(click) = a p."""

    attraction: Role = Role(EmbeddingParameterConfig())
    patience: Role = Role(GlobalParameterConfig(2.0))
    scale: int = 1

    def marginal(self, batch):
        return log_and(self.attraction.log_pair(batch), self.patience.log_pair(batch))


def arguments(model):
    return list(inspect.signature(model.__init__).parameters)[1:]


def test_declared_attributes_are_the_arguments_of_the_constructor():
    common = ["positions", "query_doc_pairs", "click_rate", "features", "columns", "standardized"]
    common.append("rngs")
    assert arguments(Patient) == ["attraction", "patience", "scale", *common]
    assert arguments(models.PositionBasedModel)[:4] == [
        "positions",
        "query_doc_pairs",
        "examination",
        "attraction",
    ]
    assert arguments(models.DynamicBayesianNetwork)[:5] == [
        "query_doc_pairs", "attraction", "satisfaction", "fix_continuation", "continuation",
    ]  # fmt: skip
    assert (
        list(Patient.roles) == ["attraction", "patience"]
        and Patient.roles["patience"].initial == 2.0
    )
    assert list(models.DocumentCTRModel.roles) == ["ctr"] and not models.MixtureModel.roles


@nnx.jit
def answers(model, batch):
    return model.predict_clicks(batch), model.compute_loss(batch, aggregate=False)


def test_a_role_takes_none_a_config_a_parameter_and_a_constructor():
    fixed, batch = FixedParameter(1.0), zoo.every_click_vector()
    for patience, expected in (
        (None, 2.0),
        (GlobalParameterConfig(-1.0), -1.0),
        (fixed, 1.0),
        (lambda rngs: FixedParameter(3.0), 3.0),
    ):
        model = Patient(FixedParameter(0.5), patience, rngs=nnx.Rngs(0))
        assert model.scale == 1 and (patience is not fixed or model.patience is fixed)
        log_probs, losses = answers(model, batch)
        clicks = np.exp(log_probs)
        np.testing.assert_allclose(clicks, zoo.sigmoid(0.5) * zoo.sigmoid(expected), rtol=1e-5)
        joint, vectors = oracle.enumerate_clicks(
            oracle.independent_clicks, click_rate=clicks[0].astype(np.float64)
        )
        np.testing.assert_allclose(np.exp(-losses.sum(axis=1))[: len(vectors)], joint, rtol=1e-5)


def test_sizes_reach_every_tower_of_every_model():
    model = CascadeModel(attraction=PositionParameterConfig(), positions=7, rngs=nnx.Rngs(0))
    assert model.attraction.weight.shape == (8,)
    index = EmbeddingParameterConfig(use_feature="examination_idx")
    model = models.UserBrowsingModel(4, 9, examination=index, rngs=nnx.Rngs(0))
    assert model.examination.table.largest_id == (4 + 1) ** 2 - 1


def test_a_model_with_roles_needs_a_stream():
    with refuses(TypeError, "CascadeModel", "rngs=nnx.Rngs"):
        CascadeModel(5)


def test_a_subclass_inherits_the_constructor_of_its_own():
    class Renamed(CascadeModel):
        name = "Renamed"

    class Longer(Patient):
        doubt: Role = Role(GlobalParameterConfig())

    assert arguments(Renamed) == arguments(CascadeModel)
    assert Renamed(3, min_log_prob=-9.0, rngs=nnx.Rngs(0)).min_log_prob == -9.0
    assert arguments(Longer)[:4] == ["attraction", "patience", "scale", "doubt"]
    assert list(Longer.roles) == ["attraction", "patience", "doubt"]


@pytest.fixture
def outsider(tmp_path, monkeypatch):
    """A folder with the option of a model from outside the package, and words to choose it."""
    (tmp_path / "patient.py").write_text(OUTSIDER)
    (tmp_path / "conf/model").mkdir(parents=True)
    (tmp_path / "conf/model/patient.yaml").write_text(OPTION)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "patient", raising=False)
    return tmp_path, ("model=patient", "parameter@patience=position")


def test_the_role_of_an_outsider_is_chosen_by_configuration(outsider):
    folder, words = outsider
    words = f"hydra.searchpath=[file://{folder}/conf]", *words
    with initialize_config_dir(str(CONF), version_base="1.3"):
        found = resolve(compose("config", [*words]), words)
    model = found.new_model(positions=10, query_doc_pairs=3, rngs=nnx.Rngs(0))
    assert model.name == "Patient" and model.patience.weight.shape == (11,)
    assert model.attraction.table.largest_id == 3


@pytest.mark.nightly
def test_a_run_of_an_outsider_stores_its_role(outsider):
    folder, words = outsider
    words += "dataset.sessions=400", "dataset.queries=10", "trainer.epochs=1", "metric=click"
    words += "logger=[]", "progress=off"
    options = {
        "config_dir": folder / "conf",
        "folder": folder / "run",
        "cache_dir": folder / "cache",
    }
    assert clickexp.run(*words, **options).result.model == "Patient"
    with np.load(folder / "run/model.npz") as stored:
        assert any("patience" in name and stored[name].size == 11 for name in stored)
