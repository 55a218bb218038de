"""What the default optimizer, learning rates, prior and starting baseline were chosen by.

    python scripts/bench/choices.py
    python scripts/bench/choices.py --models UBM --sessions 60000 --queries 1000

Fits models to simulated logs with many and with few impressions a query-document pair, one setting changed at a time,
and prints test log-likelihood, nDCG@10 of the fitted attraction, and epochs. Two minutes on two cores.
"""

import argparse
import dataclasses
import functools
import sys

from flax import nnx

from clickexp.data import Dataset
from clickexp.metrics import ranking_metrics
from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.simulation import simulate
from clickexp.training import EarlyStopping, Optimizer, Trainer, lazy_adagrad, lazy_adam

MODELS = {
    "PBM": lambda tower, **known: PositionBasedModel(attraction=tower, **known),
    "UBM": lambda tower, **known: UserBrowsingModel(attraction=tower, **known),
    "DBN": lambda tower, positions, **known: DynamicBayesianNetwork(
        attraction=tower, satisfaction=dataclasses.replace(tower, baseline=0.0), **known
    ),
    "DCTR": lambda tower, positions, **known: DocumentCTRModel(ctr=tower, **known),
}


rows = functools.partial(EmbeddingParameterConfig, posterior="none")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Settings of one fit; the defaults are those of clickexp for rows of single numbers."""

    name: str
    optimizer: Optimizer = dataclasses.field(default_factory=lazy_adagrad)
    tower: EmbeddingParameterConfig = dataclasses.field(default_factory=rows)


CHOICES = [
    Choice("default"),
    Choice("no prior", tower=rows(prior_precision=0.0)),
    *(Choice(f"prior precision {p}", tower=rows(prior_precision=p)) for p in (0.5, 2.0, 4.0)),
    *(
        Choice(f"Adagrad, rate {rate}", lazy_adagrad(learning_rate=rate))
        for rate in (0.25, 1.0, 2.0)
    ),
    *(
        Choice(f"Adam, rate {rate}", lazy_adam(learning_rate=rate, dense_learning_rate=0.01))
        for rate in (0.01, 0.03, 0.1)
    ),
    Choice("dense rate 0.03", lazy_adagrad(dense_learning_rate=0.03)),
    Choice("baseline starts at 1", tower=rows(baseline=1.0)),
]


def fit(data: Dataset, model: str, choice: Choice) -> tuple[float, float, int]:
    """Test log-likelihood, nDCG@10 and epochs."""
    sizes = dict(
        positions=data.positions, query_doc_pairs=data.query_doc_pairs, click_rate=data.click_rate
    )
    built = MODELS[model](choice.tower, **sizes, rngs=nnx.Rngs(0))
    trainer = Trainer(choice.optimizer, early_stopping=EarlyStopping(), decays=0)
    epochs = trainer.train(built, data.train, data.val).epochs
    assert data.ranking is not None  # as simulated logs have it
    ranking = trainer.test_ranking(built, data.ranking, ranking_metrics(["ndcg"], [10]))
    return trainer.test(built, data.test)["test_ll"], ranking["test_ndcg@10"], epochs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["UBM", "DBN", "DCTR"])
    parser.add_argument("--sessions", type=int, default=300_000)
    parser.add_argument(
        "--queries", type=int, nargs="+", default=[3_000, 20_000], help="of 20 documents"
    )
    options = parser.parse_args()
    for queries in options.queries:
        data = simulate(UserBrowsingModel, sessions=options.sessions, queries=queries)
        impressions = data.train.documents / data.query_doc_pairs
        print(
            f"\n{queries:,} queries, {impressions:.1f} impressions a pair: log-likelihood, nDCG@10, epochs"
        )
        print(f"{'':22}" + "".join(f"{model:>25}" for model in options.models))
        for choice in CHOICES:
            fits = (fit(data, model, choice) for model in options.models)
            print(
                f"{choice.name:22}"
                + "".join(f"{ll:12.5f} {ndcg:7.4f} {n:4d}" for ll, ndcg, n in fits)
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
