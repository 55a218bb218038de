"""Orders of documents by draws from the posteriors."""

import jax
import numpy as np
import polars as pl
import pytest
from flax import nnx
from posteriors import NORMAL, filled
from refusals import refuses
from scipy.stats import norm

from clickexp.data import Dataset, Sessions
from clickexp.errors import ConfigError, UserError
from clickexp.export.export import export
from clickexp.export.thompson import thompson_order
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig

IDS = np.array([[1, 2, 3], [4, 1, 0], [5, 2, 4], [3, 1, 2]], np.int32)
QUERIES = np.array([7, 8, 8, 7])


def dataset(**columns):
    lengths = (IDS > 0).sum(axis=1).astype(np.int32)
    clicks = np.zeros(IDS.shape, bool)
    sessions = Sessions.from_arrays(
        query_doc_ids=IDS, clicks=clicks, lengths=lengths, query_doc_pairs=5, **columns
    )
    return Dataset("d", sessions, sessions, sessions, 5, 3)


def pbm(config=NORMAL):
    return PositionBasedModel(positions=3, query_doc_pairs=5, attraction=config, rngs=nnx.Rngs(0))


def drawn_scores(model, *seeds):
    """Of all documents, by each seed."""
    batch = {"query_doc_ids": np.arange(1, 6, dtype=np.int32)[None]}

    @jax.jit
    def scores(seed):
        return model.sample_parameters(jax.random.key(seed)).attraction.prob(batch)[0]

    return np.stack([scores(seed) for seed in seeds])


def test_documents_of_each_query_id_in_the_order_of_the_draw():
    model = filled(pbm())
    table = thompson_order(model, dataset(query_ids=QUERIES), None, 4)
    (scores,) = drawn_scores(model, 4)
    assert table.columns == ["query_id", "rank", "query_doc_id", "score"]
    expected = [
        (query, rank, id)
        for query, shown in ((7, [1, 2, 3]), (8, [1, 2, 4, 5]))
        for rank, id in enumerate(sorted(shown, key=lambda id: -scores[id - 1]), start=1)
    ]
    assert table.select("query_id", "rank", "query_doc_id").rows() == expected
    np.testing.assert_allclose(
        table["score"], scores[table["query_doc_id"].to_numpy() - 1], rtol=1e-5
    )


def test_queries_by_name_come_first_and_documents_keep_theirs():
    names = pl.DataFrame({"query": list("babab"), "document": list("vwxyz")})
    model = filled(pbm())
    table = thompson_order(model, dataset(query_ids=QUERIES), names, 1)
    assert table.columns == ["query", "rank", "query_doc_id", "document", "score"]
    assert table["query"].to_list() == list("aabbb") and table["rank"].to_list() == [1, 2, 1, 2, 3]
    assert [list("vwxyz")[id - 1] for id in table["query_doc_id"]] == table["document"].to_list()
    for _, group in table.group_by("query"):
        assert group["score"].is_sorted(descending=True)


def test_one_order_where_there_are_no_queries():
    table = thompson_order(filled(pbm()), dataset(), None, 0)
    assert table.columns == ["rank", "query_doc_id", "score"]
    assert table["rank"].to_list() == [1, 2, 3, 4, 5] and table["score"].is_sorted(descending=True)


def test_a_document_is_first_as_often_as_it_is_probably_the_best():
    model, log, batch = (
        filled(pbm()),
        dataset(),
        {"query_doc_ids": np.arange(1, 6, dtype=np.int32)[None]},
    )
    mean, variance = (np.asarray(each, np.float64)[0] for each in model.attraction.posterior(batch))
    grid, sd = np.linspace(-12, 10, 20_001), variance**0.5
    below = norm.cdf(grid[:, None], mean, sd)
    best = [
        np.trapezoid(
            norm.pdf(grid, mean[d], sd[d]) * np.delete(below, d, axis=1).prod(axis=1), grid
        )
        for d in range(5)
    ]
    scores = drawn_scores(model, *range(300))
    first = np.bincount(scores.argmax(axis=1), minlength=5) / 300
    assert (
        sum(best) == pytest.approx(1)
        and (np.abs(first - best) < 5 * np.sqrt(best) / 300**0.5).all()
    )
    assert thompson_order(model, log, None, 3)["query_doc_id"][0] == scores[3].argmax() + 1


def test_models_without_posteriors_are_refused():
    with refuses(UserError, "no table of the model has posteriors", "posterior=normal"):
        thompson_order(pbm(EmbeddingParameterConfig(posterior="none")), dataset(), None, 0)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_no_generator_takes_is_refused_before_the_log_is_read(seed, tmp_path):
    with refuses(ConfigError, f"thompson={seed}", "at least 0"):
        export(tmp_path, thompson=seed)
