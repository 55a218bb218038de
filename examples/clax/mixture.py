"""Fits a mixture of two click models to the clicks of two kinds of users, and each model alone.

python examples/clax/mixture.py --sessions 50000
"""

import argparse
from functools import partial

import jax.numpy as jnp
from flax import nnx

from clickexp import DynamicBayesianNetwork, MixtureModel, PositionBasedModel, Trainer
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.simulation import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    users = partial(MixtureModel, [PositionBasedModel, DynamicBayesianNetwork])
    data = simulate(users, sessions=options.sessions, queries=options.queries)

    pbm = PositionBasedModel(data.positions, data.query_doc_pairs, rngs=nnx.Rngs(42))
    dbn = DynamicBayesianNetwork(data.query_doc_pairs, rngs=nnx.Rngs(42))
    mixture = MixtureModel(
        [PositionBasedModel, DynamicBayesianNetwork],
        shared={"attraction": EmbeddingParameterConfig()},
        positions=data.positions,
        query_doc_pairs=data.query_doc_pairs,
        rngs=nnx.Rngs(42),
    )
    trainer = Trainer(epochs=options.epochs)
    print(f"{'model':20}{'test ll':>10}{'test ppl':>10}{'cond ppl':>10}")
    for model in pbm, dbn, mixture:
        trainer.train(model, data.train, data.val)
        test = trainer.test_clicks(model, data.test)
        values = (test[name] for name in ("test_ll", "test_ppl", "test_cond_ppl"))
        print(f"{model.name:20}" + "".join(f"{value:10.4f}" for value in values))
    weights = jnp.exp(mixture.log_prior())
    shares = (
        f"{model.name} {weight:.2f}" for model, weight in zip(mixture.models, weights, strict=True)
    )
    print(f"shares of users in the mixture: {', '.join(shares)}")


if __name__ == "__main__":
    main()
