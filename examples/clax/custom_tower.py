"""Fits the position-based model with a Flax NNX module for attraction: attention over the list of documents.

python examples/clax/custom_tower.py --sessions 20000
"""

import argparse

import jax.numpy as jnp
from feature_log import FEATURES, POSITIONS, ClickBatches, annotations
from flax import nnx

from clickexp import PositionBasedModel, Trainer
from clickexp.metrics import NDCG


class AttentionTower(nnx.Module):
    """Each document sees the others of its list, padding aside."""

    def __init__(self, features: int, units: int, *, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(
            num_heads=1, in_features=features, qkv_features=units, decode=False, rngs=rngs
        )
        self.hidden = nnx.Linear(2 * features, units, rngs=rngs)
        self.output = nnx.Linear(units, 1, rngs=rngs)

    def __call__(self, batch):
        documents = batch["query_doc_features"]
        context = self.attention(documents, mask=batch["mask"][:, None, None, :])
        hidden = nnx.elu(self.hidden(jnp.concatenate([documents, context], axis=-1)))
        return self.output(hidden)[..., 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    train = ClickBatches(options.sessions, seed=0)
    val = ClickBatches(options.sessions // 5, seed=1)
    test = ClickBatches(options.sessions // 5, seed=2)
    annotated = [annotations(500, seed=3)]

    rngs = nnx.Rngs(42)
    tower = AttentionTower(FEATURES, units=32, rngs=rngs)
    model = PositionBasedModel(positions=POSITIONS, attraction=tower, rngs=rngs)
    trainer = Trainer(epochs=options.epochs)
    ranking = {"ndcg": NDCG([5, 10])}
    before = trainer.test_ranking(model, annotated, ranking)
    report = trainer.train(model, train, val)
    print(f"trained {report.epochs} epochs, the best was epoch {report.best_epoch}")
    for name, value in trainer.test_clicks(model, test).items():
        print(f"{name:14}{value:8.4f}")
    for name, value in trainer.test_ranking(model, annotated, ranking).items():
        print(f"{name:14}{value:8.4f}, {before[name]:.4f} before training")


if __name__ == "__main__":
    main()
