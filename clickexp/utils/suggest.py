"""The names that a user may have meant by one that is not known."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches

_OTHER_NAMES = {
    "learning_rate": "lr",
    "epochs": "epoch max_epochs n_epochs num_epochs",
    "batch_size": "bs batch",
    "weight_decay": "wd",
    "prior_precision": "l2",
    "embedding_features": "dim embedding_dim embedding_size",
    "hidden_units": "hidden_size units",
    "layers": "n_layers num_layers",
    "seed": "random_seed random_state",
    "sessions": "n_sessions num_sessions",
    "dataset": "data",
    "path": "data_dir data_path",
    "metric": "metrics",
    "optimizer": "opt",
    "cutoffs": "k top_n topk",
}
"""Our name of a key, and what users of other tools call it."""
_SYNONYMS = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}
_MOST = 2
_ALIKE = 0.7


def nearest(name: str, keys: Iterable[str]) -> list[str]:
    """Returns the keys that a user probably meant, at most two, the likeliest first.

    The last part decides: `lr` and `optimizer.lr` mean `optimizer.learning_rate`, `traner.epochs` `trainer.epochs`.

    Args:
        name: Of a key, dotted or not.
        keys: All that there are.
    """
    keys = list(dict.fromkeys(keys))
    group, dot, last = name.rpartition(".")
    last = _SYNONYMS.get(last, last)
    meant = _with_last_part(last, keys, is_root=not group)
    wanted = f"{group}{dot}{last}"
    meant.sort(key=lambda key: -SequenceMatcher(None, wanted, key).ratio())
    if group or not meant:
        return meant[:1]
    depth = meant[0].count(".")
    return [key for key in meant if key.count(".") == depth][:_MOST]


def _with_last_part(last: str, keys: Sequence[str], is_root: bool) -> list[str]:
    """Returns the keys whose last part is this one or, where there are none, the nearest."""
    by_last: dict[str, list[str]] = {}
    for key in keys:
        by_last.setdefault(key.rpartition(".")[2], []).append(key)
    if last not in by_last:
        roots = _closest(last, [key for key in keys if "." not in key]) if is_root else []
        nearest_part = roots or _closest(last, by_last)
        last = nearest_part[0] if nearest_part else last
    return by_last.get(last, [])


def _closest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the name that is most alike, or has the same letters, as pbm and pmb; empty where none is near."""
    names = [*names]
    anagrams = [other for other in names if sorted(other) == sorted(name)]
    return anagrams[:1] or get_close_matches(name, names, 1, _ALIKE)


def did_you_mean(name: str, keys: Iterable[str]) -> str:
    """Returns a question to end a message with; empty where no key is near."""
    meant = nearest(name, keys)
    return f" Did you mean {' or '.join(meant)}?" if meant else ""
