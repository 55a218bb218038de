"""The names that a user may have meant by one that is not known."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

SYNONYMS = {
    "lr": "learning_rate",
    "epoch": "epochs",
    "max_epochs": "epochs",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "bs": "batch_size",
    "batch": "batch_size",
    "wd": "weight_decay",
    "l2": "prior_precision",
    "dim": "embedding_features",
    "embedding_dim": "embedding_features",
    "embedding_size": "embedding_features",
    "hidden_size": "hidden_units",
    "units": "hidden_units",
    "n_layers": "layers",
    "num_layers": "layers",
    "random_seed": "seed",
    "random_state": "seed",
    "n_sessions": "sessions",
    "num_sessions": "sessions",
    "data": "dataset",
    "data_dir": "path",
    "data_path": "path",
    "metrics": "metric",
    "opt": "optimizer",
    "k": "cutoffs",
    "top_n": "cutoffs",
    "topk": "cutoffs",
}
"""What users of other tools call a key, and our name for it."""
MOST = 2
ALIKE = 0.7


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Those of the known names, dotted or not, that are likely meant, at most two, the likeliest first.

    The last part decides: `lr` and `optimizer.lr` mean `optimizer.learning_rate`, `traner.epochs` `trainer.epochs`.
    """
    known = list(dict.fromkeys(known))
    group, dot, last = name.rpartition(".")
    last = SYNONYMS.get(last, last)
    by_last: dict[str, list[str]] = {}
    for each in known:
        by_last.setdefault(each.rpartition(".")[2], []).append(each)
    roots = [] if group else get_close_matches(last, [each for each in known if "." not in each], 1, ALIKE)
    close = [last] if last in by_last else roots or get_close_matches(last, by_last, 1, ALIKE)
    found = by_last[close[0]] if close else []
    likeness = {each: SequenceMatcher(None, f"{group}{dot}{last}", each).ratio() for each in found}
    found = sorted(found, key=lambda each: -likeness[each])
    return [each for each in found if each.count(".") == found[0].count(".") and not group][:MOST] or found[:1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question to end a message with, or nothing."""
    found = nearest(name, known)
    return f" Did you mean {' or '.join(found)}?" if found else ""
