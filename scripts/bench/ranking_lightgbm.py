"""LightGBM's lambdarank, with and without its position debiasing, on the first sessions of ranking.py. Needs lightgbm.

python scripts/bench/ranking.py --path my/lambdarank --write FOLDER
lightgbm/bin/python scripts/bench/ranking_lightgbm.py FOLDER [CUTOFF]

CUTOFF is that of nDCG, by default 10.
"""

import sys
from pathlib import Path

import lightgbm as lgb
import numpy as np

SESSIONS = 8_000
SETTINGS = {
    "objective": "lambdarank",
    "learning_rate": 0.1,
    "num_leaves": 15,
    "seed": 0,
    "verbose": -1,
}
ROUNDS = 60


def ndcg(scores: np.ndarray, labels: np.ndarray, cutoff: int = 10) -> float:
    """NDCG with gain 2^label - 1; 0 for a list without a relevant document."""
    gains, discounts = 2.0**labels - 1, 1 / np.log2(np.arange(2, len(labels) + 2))[:cutoff]
    ideal = np.sort(gains)[::-1][:cutoff] @ discounts
    return (
        float(gains[np.argsort(-scores, kind="stable")[:cutoff]] @ discounts / ideal)
        if ideal
        else 0.0
    )


def fold(file: Path, by_position: bool, cutoff: int) -> list[float]:
    """Trains on the sessions with clicks; values of the test lists."""
    log = np.load(file)
    features = log["features"].astype(np.float32)
    ids, clicks, lengths = (log[name][:SESSIONS] for name in ("ids", "clicks", "lengths"))
    kept = clicks.any(axis=1)
    ids, clicks, lengths = ids[kept], clicks[kept], lengths[kept]
    shown = np.arange(ids.shape[1]) < lengths[:, None]
    positions = (
        np.broadcast_to(np.arange(ids.shape[1]), shown.shape)[shown] if by_position else None
    )
    data = lgb.Dataset(
        features[ids[shown]], label=clicks[shown].astype(int), group=lengths, position=positions
    )
    model = lgb.train(SETTINGS, data, num_boost_round=ROUNDS)
    lists = zip(log["test_ids"], log["test_lengths"], log["test_labels"], strict=True)
    return [
        ndcg(np.asarray(model.predict(features[ids[:n]])), labels[:n], cutoff)
        for ids, n, labels in lists
    ]


def main() -> None:
    files = sorted(Path(sys.argv[1]).glob("fold*.npz"))
    cutoff = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    naive, debiased = (
        np.concatenate([fold(file, by_position, cutoff) for file in files])
        for by_position in (False, True)
    )
    gain = debiased - naive
    print(f"lambdarank {naive.mean():.3f}, with positions {debiased.mean():.3f}, "
          f"{gain.mean():+.3f} +- {gain.std() / len(gain) ** 0.5:.3f} over {len(gain)} queries")  # fmt: skip


if __name__ == "__main__":
    main()
