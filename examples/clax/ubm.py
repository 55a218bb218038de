"""Fits the user browsing model to simulated clicks, evaluates it, and uses it.

python examples/clax/ubm.py --sessions 50000
"""

import argparse

import numpy as np
from flax import nnx
from flax.training.early_stopping import EarlyStopping

from clickexp import Trainer, UserBrowsingModel
from clickexp.simulation import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    data = simulate(UserBrowsingModel, sessions=options.sessions, queries=options.queries)
    rngs = nnx.Rngs(42)
    model = UserBrowsingModel(
        positions=data.positions, query_doc_pairs=data.query_doc_pairs, rngs=rngs
    )

    trainer = Trainer(
        epochs=options.epochs, early_stopping=EarlyStopping(min_delta=1e-5, patience=1)
    )
    report = trainer.train(model, data.train, data.val)
    print(f"trained {report.epochs} epochs, the best was epoch {report.best_epoch}")
    for name, value in trainer.test_clicks(model, data.test).items():
        print(f"{name:14}{value:8.4f}")

    session = data.test.rows(slice(0, 1), ["query_doc_ids", "clicks"])
    batch = {
        **session,
        "positions": np.arange(1, data.positions + 1, dtype=np.int32)[None],
        "mask": np.ones((1, data.positions), bool),
    }
    columns = {
        "click": batch["clicks"],
        "sampled": model.sample(batch, rngs=rngs).clicks,
        "P(click)": np.exp(model.predict_clicks(batch)),
        "given above": np.exp(model.predict_conditional_clicks(batch)),
        "relevance": np.exp(model.predict_relevance(batch)),
    }
    print("rank" + "".join(f"{name:>13}" for name in columns))
    for rank in range(data.positions):
        print(
            f"{rank + 1:4}"
            + "".join(f"{float(values[0, rank]):13.4g}" for values in columns.values())
        )


if __name__ == "__main__":
    main()
