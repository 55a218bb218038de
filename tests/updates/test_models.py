"""Every model and tower with posteriors goes on from an earlier run; what has none is refused, or starts warm."""

import numpy as np
import polars as pl
import pytest
from refusals import refuses

import clickexp
from clickexp.errors import ConfigError

pytestmark = pytest.mark.nightly

RANKS, SESSIONS = 4, 300
QUICK = dict(logger="jsonl", progress="off", report=False, **{"trainer.epochs": 3})
READ = (
    "dataset=lists",
    "dataset.pair_key=query_document",
    "dataset.columns.query_doc_ids=documents",
    "dataset.columns.query_id=query",
    "+dataset.columns.device={dtype: category, per: session}",
    "dataset.features=[price,age]",
)
WITH_POSTERIORS = {
    **{name: (f"model={name}",) for name in ("pbm", "ubm", "dcm", "ccm", "dbn", "sdbn", "cm")},
    **{name: (f"model={name}",) for name in ("gctr", "rctr", "dctr", "drctr")},
    **{name: (f"model={name}",) for name in ("trust_bias", "two_towers")},
    "mixture": ("model=mixture", "model.components=[pbm,dbn]"),
    "sum of tables": ("model=pbm", "attraction=hierarchical"),
    "hash": ("model=pbm", "attraction=hash", "attraction.parameters=100"),
    "linear": ("model=pbm", "attraction=linear"),
    "layouts": ("model=pbm", "examination_by=[device]"),
}
WITHOUT = {
    "deep": ("model=pbm", "attraction=deep"),
    "points": ("model=pbm", "attraction.posterior=none"),
    "ncm": ("model=ncm",),
    "ranker": ("model=ranker", "attraction=linear", "debias=none"),
}


def log_of(day):
    rng = np.random.default_rng(day)
    query = rng.integers(0, 3, SESSIONS)
    order = rng.random((SESSIONS, 6 + 2 * day)).argsort(axis=1)[:, :RANKS]
    clicks = rng.random((SESSIONS, RANKS)) < 0.7 / (1 + order % 3) / np.arange(1, RANKS + 1) ** 0.5
    return pl.DataFrame(
        {
            "query": [f"query {q}" for q in query],
            "documents": [[f"document {d}" for d in row] for row in order],
            "clicks": clicks.astype(int).tolist(),
            "price": (order % 5).astype(float).tolist(),
            "age": (order % 7).astype(float).tolist(),
            "device": [("phone", "desktop")[each] for each in rng.integers(0, 2, SESSIONS)],
        }
    )


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for day in (1, 2):
        log_of(day).write_parquet(folder / f"day{day}.parquet")
    return folder


def fitted(logs, folder, day, *words):
    path = f"dataset.path={logs / f'day{day}.parquet'}"
    return clickexp.run(*words, path, *READ, folder=folder / f"day{day}", **QUICK)


@pytest.mark.parametrize("name", WITH_POSTERIORS)
def test_it_goes_on(name, logs, tmp_path):
    first = fitted(logs, tmp_path, 1, *WITH_POSTERIORS[name])
    words = *WITH_POSTERIORS[name], f"prior={first.folder}"
    second = fitted(logs, tmp_path, 2, *words)
    assert second.result.update.updates == 1
    assert second.result.test["ll"] > second.result.update.before["ll"] - 0.02
    assert second.result.shared or name in (
        "dctr",
        "gctr",
        "drctr",
        "mixture",
        "linear",
        "cm",
        "sdbn",
    )


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_posterior_is_refused_or_starts_warm(name, logs, tmp_path):
    first = fitted(logs, tmp_path, 1, *WITHOUT[name])
    prior = f"prior={first.folder}"
    with refuses(ConfigError, "prior.warm=true"):
        fitted(logs, tmp_path / "refused", 2, *WITHOUT[name], prior)
    warm = fitted(logs, tmp_path, 2, *WITHOUT[name], prior, "prior.warm=true")
    assert warm.result.update.warm
