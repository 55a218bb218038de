"""Fits a two-tower model to clicks, deep & cross network beside position bias, and ranks annotated lists.

python examples/clax/two_towers.py --sessions 20000
"""

import argparse

import numpy as np
from feature_log import EXAMINATION, FEATURES, POSITIONS, ClickBatches, annotations
from flax import nnx

from clickexp import PositionBasedModel, Trainer
from clickexp.metrics import NDCG
from clickexp.parameters import DeepCrossParameterConfig, PositionParameterConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    train = ClickBatches(options.sessions, seed=0)
    val = ClickBatches(options.sessions // 5, seed=1)
    test = ClickBatches(options.sessions // 5, seed=2)
    annotated = [annotations(500, seed=3)]

    model = PositionBasedModel(
        positions=POSITIONS,
        attraction=DeepCrossParameterConfig(use_feature="query_doc_features", features=FEATURES),
        examination=PositionParameterConfig(
            initial=1.0
        ),  # networks read the order of lists from features before it
        rngs=nnx.Rngs(42),
    )
    trainer = Trainer(epochs=options.epochs)
    ranking = {"ndcg": NDCG([5, 10])}
    before = trainer.test_ranking(model, annotated, ranking)
    trainer.train(model, train, val)
    for name, value in trainer.test_clicks(model, test).items():
        print(f"{name:14}{value:8.4f}")
    for name, value in trainer.test_ranking(model, annotated, ranking).items():
        print(f"{name:14}{value:8.4f}, {before[name]:.4f} before training")

    # PBM identifies examination up to a factor: both curves are relative to the first rank
    fitted = np.asarray(nnx.sigmoid(model.examination.weight[1:]))
    true = 1 / (1 + np.exp(-EXAMINATION))
    print("examination" + "".join(f"{value:6.2f}" for value in fitted / fitted[0]))
    print("the truth  " + "".join(f"{value:6.2f}" for value in true / true[0]))


if __name__ == "__main__":
    main()
