"""The names that a user may have meant by one that is not known."""

from collections.abc import Iterable
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


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Returns the known names that a user probably meant, at most two, the likeliest first.

    The last part decides: `lr` and `optimizer.lr` mean `optimizer.learning_rate`, `traner.epochs` `trainer.epochs`.

    Args:
        name: Of a key, dotted or not.
        known: All names that there are.
    """
    known = list(dict.fromkeys(known))
    group, dot, last = name.rpartition(".")
    last = _SYNONYMS.get(last, last)
    by_last: dict[str, list[str]] = {}
    for each in known:
        by_last.setdefault(each.rpartition(".")[2], []).append(each)
    roots = [] if group else _closest(last, [each for each in known if "." not in each])
    close = [last] if last in by_last else roots or _closest(last, by_last)
    found = by_last[close[0]] if close else []
    likeness = {each: SequenceMatcher(None, f"{group}{dot}{last}", each).ratio() for each in found}
    found = sorted(found, key=lambda each: -likeness[each])
    return [each for each in found if each.count(".") == found[0].count(".") and not group][
        :_MOST
    ] or found[:1]


def _closest(name: str, known: Iterable[str]) -> list[str]:
    """Returns the known name that is most alike, or has the same letters, as pbm and pmb; empty where none is near."""
    known = [*known]
    turned = [each for each in known if sorted(each) == sorted(name)]
    return turned[:1] or get_close_matches(name, known, 1, _ALIKE)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a question to end a message with; empty where no name is near."""
    found = nearest(name, known)
    return f" Did you mean {' or '.join(found)}?" if found else ""
