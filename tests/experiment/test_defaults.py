"""Defaults that configurations and signatures state are the same, but for those that differ for a reason."""

import inspect

import pytest
import yaml
from compositions import CONF, options, values
from hydra.utils import instantiate

from clickexp.utils.signatures import function_of, located

FORMAT = "the layout of this log, which is one of many that the reader takes"
CUTOFFS = "from Python a metric has one value, of the whole list; a run states its cutoffs"
TERM = "one of the terms of a sum, of which each reads another column and one has the baseline"
VARIANT = "one of several things that the class computes, each under another name"
DIFFERENT = {
    "context/document columns": VARIANT,
    "context/list columns": VARIANT,
    "dataset/baidu_ultr files": FORMAT,
    "dataset/baidu_ultr name": FORMAT,
    "dataset/baidu_ultr pair_key": FORMAT,
    "dataset/baidu_ultr positions": FORMAT,
    "dataset/baidu_ultr_uva name": FORMAT,
    "dataset/open_bandit name": FORMAT,
    "dataset/open_bandit pair_key": FORMAT,
    "dataset/yandex_clax files": FORMAT,
    "dataset/yandex_clax name": FORMAT,
    "dataset/yandex_clax positions": FORMAT,
    "metric/calibration test.click_ppl.of": VARIANT,
    "metric/calibration test.skip_ppl.of": VARIANT,
    "metric/counterfactual counterfactual.snips_dcg.cutoffs": CUTOFFS,
    "metric/pairs ranking.fcp.ties": VARIANT,
    "metric/ranking_all ranking.map_min.denominator": VARIANT,
    "metric/ranking_all ranking.mar_all.denominator": VARIANT,
    "metric/ranking_all ranking.dcg_linear.form": VARIANT,
    "metric/ranking_all ranking.dcg_original.form": VARIANT,
    "metric/ranking_all ranking.ndcg_linear.form": VARIANT,
    "metric/ranking_all ranking.ndcg_original.form": VARIANT,
    "metric/ranking cutoffs": CUTOFFS,
    "model/mixture shared": "from Python towers are shared that are given; a run names their roles",
    "model/sdbn fix_continuation": "the option is the special case of DBN",
    "parameter/global initial": "as other towers of P(continue), where the tower is used; from Python at even odds",
    "parameter/hierarchical terms.document.add_baseline": TERM,
    "parameter/hierarchical terms.document.use_feature": TERM,
    "parameter/hierarchical terms.pair.prior_precision": TERM,
    "parameter/hierarchical terms.query.add_baseline": TERM,
    "parameter/hierarchical terms.query.posterior": TERM,
    "parameter/hierarchical terms.query.prior_precision": TERM,
    "parameter/hierarchical terms.query.use_feature": TERM,
    "search/grid search.pruner.n_warmup_steps": "Optuna's would stop trials after their first epoch",
    "search/tpe search.sampler.multivariate": "Optuna's treats parameters as independent",
    "vectors/queries use_feature": VARIANT,
}
"""Keys whose value in conf/ is not the default of the signature, and why."""


def load(file):
    return yaml.safe_load(file.read_text()) or {}


def nodes(node, key=""):
    """Dotted keys of nodes with a target that exists, and the nodes."""
    if isinstance(node, dict) and "???" not in (target := node.get("_target_", "???")):
        yield key, located(target), node
    for name, value in node.items() if isinstance(node, dict) else ():
        yield from nodes(value, f"{key}.{name}".lstrip("."))


def stated(value, heads):
    """The value that a file gives an argument, and the key at the file's head that it is from, if it is."""
    if isinstance(value, str) and value.startswith("${metric."):
        name = value[len("${metric.") : -1]
        return heads[name], name
    if isinstance(value, str) and value.startswith("${oc.select:"):
        return yaml.safe_load(value.rpartition(",")[2][:-1]), None
    return value, None


def same(value, default):
    if isinstance(default, float) and isinstance(value, str):
        value = float(value)  # YAML reads 1e-5 as text, OmegaConf as a number
    default = list(default) if isinstance(default, tuple) else default
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def compared():
    """For every default that is stated twice: file and key, the value in conf/, and the signature's."""
    heads = {
        name: (file, value)
        for file in (CONF / "metric").glob("*.yaml")
        for name, value in load(file).items()
    }
    of_heads = {name: value for name, (_, value) in heads.items()}
    for file in sorted(CONF.rglob("*.yaml")):
        for key, target, node in nodes(load(file)):
            parameters = inspect.signature(function_of(target)).parameters
            for name in node.keys() & parameters.keys():
                default = parameters[name].default
                value, head = stated(node[name], of_heads)
                if (
                    default is inspect.Parameter.empty
                    or isinstance(value, dict)
                    or "${" in str(value)
                ):
                    continue
                place = f"{(heads[head][0] if head else file).relative_to(CONF).with_suffix('')} "
                yield place + (head or f"{key}.{name}".lstrip(".")), value, default


def test_a_default_of_a_configuration_is_that_of_the_signature():
    pairs = list(compared())
    assert len(pairs) > 200
    assert {
        place for place, value, default in pairs if not same(value, default)
    } == DIFFERENT.keys()


def test_towers_of_a_configured_model_are_the_defaults_of_its_roles():
    compared = set()
    for name in options("model"):
        model = values(f"model={name}")["model"]
        roles = located(model["_target_"]).roles
        for role in roles.keys() & model.keys():
            assert instantiate(model[role]) == roles[role], f"{name}: {role}"
            compared.add(f"{name}.{role}")
    assert {
        "ubm.examination",
        "dbn.continuation",
        "dbn.satisfaction",
        "trust_bias.false_positive",
    } < compared


@pytest.mark.parametrize(
    "value, default, alike", [("1e-5", 1e-5, True), (1, 1.0, True), (1, True, False)]
)
def test_values_are_compared_as_they_are_read(value, default, alike):
    assert same(value, default) == alike
