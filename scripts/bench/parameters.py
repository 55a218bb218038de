r"""Errors of estimated parameters on logs of users whose parameters are known, by method, log and size.

python scripts/bench/parameters.py                                      # a small grid, some minutes
python scripts/bench/parameters.py --peer CLAX/bin/python               # with CLAX
python scripts/bench/parameters.py --users PBM --policies random --impressions 10 40 160 --seeds 0 1 2 3 4
python scripts/bench/parameters.py --dense                              # 50,000 impressions per pair
python scripts/bench/parameters.py --truths 3 --users DBN --policies fixed  # means over three true continuations
python scripts/bench/parameters.py --full --peer CLAX/bin/python        # everything, in half a day

Each line of the results is one fit. A fit whose line is there is not repeated, so an interrupted run continues;
delete the file, or choose another, after a change of the code.
"""

import argparse
import functools
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import methods
import numpy as np
import users
from methods import METHODS, Fitted, Method
from report import machine, print_table
from scipy.special import expit
from users import POLICIES, Design, Parameters, SimulatedLog

USERS = ("PBM", "UBM", "TrustBias", "DBN", "DCM", "CCM")
DENSE_USERS = ("DCTR", "DRCTR", "PBM", "UBM", "DCM", "CCM", "DBN")
DENSE: dict[str, Any] = dict(queries=1, documents=40, impressions=50_000)
"""200,000 training sessions."""
SMALL = dict(
    users=USERS, policies=("random", "medium"), skews=(1.0,), impressions=(10, 40), seeds=(0,)
)
FULL = dict(
    users=USERS,
    policies=("random", "weak", "medium", "strong"),
    skews=(0.0, 1.0),
    impressions=(5, 10, 40, 160),
    seeds=(0, 1, 2, 3, 4),
)
SMALL_ATTRACTION = 0.02, 0.05
"""Below which intervals of attraction are counted apart."""

FORMATS: dict[str, Callable[[float], str]] = {
    "examination": "{:.1%}".format,
    "continuation": "{:.4f}".format,
    "satisfaction": "{:.3f}".format,
    "prior satisfaction": "{:.3f}".format,
    "attraction": "{:.4f}".format,
    "attraction, exported": "{:.4f}".format,
    "log-likelihood": "{:+.5f}".format,
    "prediction": "{:.5f}".format,
    "coverage of attraction": "{:.3f}".format,
    "coverage of attraction, shown": "{:.3f}".format,
    "width of attraction, shown": "{:.4f}".format,
    **{
        f"{name}, {what} below {bound}": form
        for bound in SMALL_ATTRACTION
        for what in ("true", "estimated")
        for name, form in (("coverage", "{:.3f}".format), ("width", "{:.4f}".format))
    },
    "coverage of satisfaction": "{:.3f}".format,
    "width of satisfaction, shown": "{:.4f}".format,
    "coverage of shared": "{:.3f}".format,
    "width of shared": "{:.4f}".format,
    "seconds": "{:.1f}".format,
}


def figures(log: SimulatedLog, fitted: Fitted) -> dict[str, float]:
    """Errors of a fit, as far as the user has what is estimated and the method estimates it.

    examination: Mean of |estimate / truth - 1| of examination relative to rank 1, over ranks 2 to 10; for UBM over all
        cells, for TrustBias of the slopes.
    continuation: Mean of |estimate - truth|.
    satisfaction: |mean logit of all pairs - true mean|.
    prior satisfaction: The same of the learned mean of the prior, in place of that of all pairs.
    attraction: Mean of |estimate - truth| over all pairs, of P(click at rank 1). Exported: as clickexp-export has it.
    log-likelihood: Of the test sessions, per document, less that of the true parameters.
    prediction: Mean of |estimate - truth| over documents of the test sessions, of P(click | clicks above).
    coverage: Fraction of all pairs whose 95 % interval, as clickexp-export has it, holds the truth: of attraction as
        P(click at rank 1), given the estimated examination there, of satisfaction as it is. Shown: of pairs that the
        training log shows. Shared: of ratios of examination as above, or of continuation.
    width: Mean difference of the bounds of intervals, of shared parameters where they are not open; 4 standard
        deviations of errors is honest.
    true, estimated below: Coverage and width of shown pairs whose true attraction, or that of the exported mean logit,
        is so small. Exact posteriors hold 95 % of those that they estimate to be small, and less of those that are.
    """
    user, truth, found = log.design.user, log.truth, {"seconds": fitted.seconds}
    if fitted.predictions is not None:
        best = users.conditional(user, truth, log.test)
        found["prediction"] = _distance(fitted.predictions, best)
        reached, possible = (
            users.log_likelihood(each, log.test) for each in (fitted.predictions, best)
        )
        found["log-likelihood"] = reached - possible
    if fitted.parameters is None:
        return found
    ratios, continuations = (
        [pick(user, each) for each in (fitted.parameters, truth)]
        for pick in (users.relative_examination, users.continuation)
    )
    if ratios[0] is not None and ratios[1] is not None:
        found["examination"] = _distance(ratios[0] / ratios[1], 1.0)
    if continuations[0] is not None and continuations[1] is not None:
        found["continuation"] = _distance(continuations[0], continuations[1])
    if fitted.shared is not None:
        low, high = fitted.shared[~np.isnan(fitted.shared[:, 0])].T
        of_user = users.shared(user, truth)
        assert of_user is not None  # as its intervals are there
        true = of_user[~np.isnan(fitted.shared[:, 0])]
        found["coverage of shared"] = float(np.mean((low <= true) & (true <= high)))
        if np.isfinite(high).any():
            found["width of shared"] = float(np.mean((high - low)[np.isfinite(high)]))
    return found | _rows(log, fitted, fitted.parameters)


def _rows(log: SimulatedLog, fitted: Fitted, given: Parameters) -> dict[str, float]:
    """Figures of pairs."""
    truth = log.truth
    found = {}
    if np.isfinite(given.attraction).all():
        found |= _attraction(log, fitted, given)
    if truth.satisfaction is not None and given.satisfaction is not None:
        found |= _satisfaction(log, fitted, truth.satisfaction, given.satisfaction)
    return found


def _attraction(log: SimulatedLog, fitted: Fitted, given: Parameters) -> dict[str, float]:
    user, truth = log.design.user, log.truth
    at_top = functools.partial(users.top_click_rate, user, given)
    true = users.top_click_rate(user, truth, truth.attraction)[1:]
    estimated = at_top(given.attraction)[1:]
    found = {"attraction": _distance(estimated, true)}
    if fitted.attraction is not None:
        estimated = at_top(fitted.attraction)[1:]
        found["attraction, exported"] = _distance(estimated, true)
    if (ends := fitted.interval("attraction")) is None:
        return found
    low, high = (at_top(logits)[1:] for logits in ends)
    found |= _intervals("attraction", log, low, high, true)
    shown = _shown(log)
    held, widths = (low <= true) & (true <= high), high - low
    for what, attraction in {"true": true, "estimated": estimated}.items():
        found |= _of_small(what, attraction[shown], held[shown], widths[shown])
    return found


def _satisfaction(
    log: SimulatedLog, fitted: Fitted, true: np.ndarray, given: np.ndarray
) -> dict[str, float]:
    logits = true[1:]
    mean = float(logits.mean())
    found = {"satisfaction": abs(float(given[1:].mean()) - mean)}
    if "satisfaction" in fitted.prior_means:
        found["prior satisfaction"] = abs(fitted.prior_means["satisfaction"] - mean)
    if (ends := fitted.interval("satisfaction")) is not None:
        low, high = expit(ends[:, 1:])
        found |= _intervals("satisfaction", log, low, high, expit(logits))
    return found


def _intervals(
    role: str, log: SimulatedLog, low: np.ndarray, high: np.ndarray, true: np.ndarray
) -> dict[str, float]:
    """Coverage and width of intervals of pairs."""
    held, shown = (low <= true) & (true <= high), _shown(log)
    return {
        f"coverage of {role}": float(held.mean()),
        f"coverage of {role}, shown": float(held[shown].mean()),
        f"width of {role}, shown": float((high - low)[shown].mean()),
    }


def _shown(log: SimulatedLog) -> np.ndarray:
    """Pairs, from 0, that the training log shows."""
    return np.unique(log.train.ids) - 1


def _of_small(
    what: str, attraction: np.ndarray, held: np.ndarray, widths: np.ndarray
) -> dict[str, float]:
    """Coverage and width of intervals of pairs whose attraction is small, as far as there are any."""
    found = {}
    for bound in SMALL_ATTRACTION:
        below = attraction < bound
        if below.any():
            found[f"coverage, {what} below {bound}"] = float(held[below].mean())
            found[f"width, {what} below {bound}"] = float(widths[below].mean())
    return found


def _distance(estimate: np.ndarray, truth: np.ndarray | float) -> float:
    return float(np.mean(np.abs(estimate - truth)))


def designs(args: argparse.Namespace) -> Iterator[Design]:
    """The logs of the grid, or the dense ones."""
    truths = users.POWERS[: args.truths]
    for user, policy, skew, power in itertools.product(
        args.users, args.policies, args.skews, truths
    ):
        if args.dense:
            yield Design(user, policy, skew, power=power, **DENSE)
            continue
        for impressions in args.impressions:
            yield Design(
                user,
                policy,
                skew,
                impressions,
                args.queries,
                family=args.family,
                correlation=args.correlation,
                power=power,
                curve=args.curve,
            )


def run(
    grid: Sequence[Design], seeds: Sequence[int], chosen: dict[str, Method], file: Path
) -> list[dict]:
    """The lines of the results that belong to the grid; those that the file lacks are appended as they come."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {_key(line): line for line in lines}
    found = []
    for seed, design in itertools.product(seeds, grid):
        missing = [
            name for name in chosen if _key(dict(vars(design), seed=seed, method=name)) not in done
        ]
        log = users.simulate(design, seed) if missing else None
        for name, method in chosen.items():
            line = dict(vars(design), seed=seed, method=name)
            if log is not None and name in missing:
                fitted = method(log, seed)
                line["figures"] = None if fitted is None else figures(log, fitted)
                with file.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                done[_key(line)] = line
            found.append(done[_key(line)])
    return found


def _key(line: dict) -> tuple:
    return tuple((name, line[name]) for name in sorted(line) if name != "figures")


def print_results(lines: Sequence[dict]) -> None:
    """A table per kind of users, policy and skew: means over seeds and truths, a row for each size and method."""
    tables: dict[tuple, dict[tuple, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["figures"] is not None:
            title = tuple(
                line[name] for name in ("user", "policy", "skew", "family", "correlation", "curve")
            )
            tables[title][line["impressions"], line["method"]].append(line["figures"])
    for (user, policy, skew, family, correlation, curve), rows in tables.items():
        names = [
            name
            for name in FORMATS
            if any(name in each for group in rows.values() for each in group)
        ]
        cells = []
        for (impressions, method), group in sorted(rows.items(), key=lambda row: row[0][0]):
            label = f"{impressions:,} {method}"
            cells.append((label, str(len(group)), *(_mean(name, group) for name in names)))
        print_table(
            f"{user}, policy {policy}, query popularity 1 / rank^{skew:g}, attraction {family}, "
            f"correlation {correlation:g}, curve {curve}",
            ("impressions, method", "logs", *names),
            cells,
        )


def _mean(name: str, group: Sequence[dict]) -> str:
    values = [each[name] for each in group if name in each]
    return FORMATS[name](statistics.mean(values)) if values else ""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--full", action="store_true", help="the whole grid, where no axis is given"
    )
    parser.add_argument(
        "--dense", action="store_true", help="40 documents of one query, 200,000 sessions"
    )
    parser.add_argument("--users", nargs="+", choices=users.SHARED)
    parser.add_argument(
        "--policies", nargs="+", choices=POLICIES, help="how far the order follows attraction"
    )
    parser.add_argument(
        "--skews", type=float, nargs="+", help="exponents of the popularity of queries"
    )
    parser.add_argument(
        "--impressions", type=int, nargs="+", help="of training, per pair, in the mean"
    )
    parser.add_argument("--queries", type=int, default=400, help="of 20 documents each")
    parser.add_argument(
        "--family", choices=users.FAMILIES, default="normal", help="of attraction among pairs"
    )
    parser.add_argument(
        "--correlation", type=float, default=0.0, help="of satisfaction with attraction, of DBN"
    )
    parser.add_argument(
        "--curve", choices=users.CURVES, default="power", help="of examination by rank, of PBM"
    )
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument(
        "--truths",
        type=int,
        choices=range(1, len(users.POWERS) + 1),
        default=1,
        help="shared parameters to take the mean over, which POWERS of users.py draws apart",
    )
    parser.add_argument(
        "--methods", nargs="+", help=f"of {', '.join(METHODS)}, clax; by default all"
    )
    parser.add_argument("--peer", type=Path, help="python of CLAX's environment")
    parser.add_argument(
        "--peer-batch-size", type=int, default=512, help="on which CLAX's figures depend much"
    )
    parser.add_argument("--results", type=Path, default=Path("outputs/bench/parameters.jsonl"))
    args = parser.parse_args()
    for axis, values in (FULL if args.full else SMALL).items():
        if getattr(args, axis) is None:
            setattr(args, axis, DENSE_USERS if args.dense and axis == "users" else values)
    return args


def main() -> None:
    args = arguments()
    print(machine(), flush=True)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    print_results(run(list(designs(args)), args.seeds, chosen_methods(args), args.results))


def chosen_methods(args: argparse.Namespace) -> dict[str, Method]:
    """The methods to run by name; CLAX's holds its batch size."""
    known = dict(METHODS)
    if args.peer:
        size = args.peer_batch_size
        known["clax"] = functools.partial(methods.clax, python=args.peer, batch_size=size)
    if unknown := set(args.methods or ()) - set(known):
        raise SystemExit(
            f"no method {', '.join(sorted(unknown))}; there are {', '.join(known)} (clax with --peer)"
        )
    chosen = {name: known[name] for name in args.methods or known}
    return {f"clax, batches of {args.peer_batch_size}" if name == "clax" else name: each
            for name, each in chosen.items()}  # fmt: skip


if __name__ == "__main__":
    main()
