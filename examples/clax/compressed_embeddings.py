"""Fits the click chain model with a full and with a compressed table of attraction.

python examples/clax/compressed_embeddings.py --ratio 10
"""

import argparse
from functools import partial

import jax
from flax import nnx

from clickexp import ClickChainModel, Trainer
from clickexp.parameters import EmbeddingParameterConfig, FullEmbedding, QREmbedding, Table
from clickexp.simulation import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--ratio", type=float, default=10.0, help="numbers of the full table per number kept"
    )
    options = parser.parse_args()

    data = simulate(ClickChainModel, sessions=options.sessions, queries=options.queries)
    stores = {
        "FullEmbedding": FullEmbedding,
        "QREmbedding": partial(
            QREmbedding, compression_ratio=options.ratio
        ),  # or HashEmbedding, RobeDEmbedding
    }
    trainer = Trainer(epochs=options.epochs)
    print(f"{'store':15}{'numbers':>9}{'test ll':>10}{'test ppl':>10}")
    for name, store in stores.items():
        model = ClickChainModel(
            attraction=EmbeddingParameterConfig(
                use_feature="query_doc_ids",
                parameters=data.query_doc_pairs,
                posterior="none",  # one number per parameter, as in CLAX
                embedding_fn=store,
            ),
            rngs=nnx.Rngs(42),
        )
        numbers = sum(table.size for table in jax.tree.leaves(nnx.state(model, Table)))
        trainer.train(model, data.train, data.val)
        test = trainer.test_clicks(model, data.test)
        print(f"{name:15}{numbers:9,}{test['test_ll']:10.4f}{test['test_ppl']:10.4f}")


if __name__ == "__main__":
    main()
