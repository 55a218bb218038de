"""Examination of PBM by the exact marginal likelihood: what posteriors could reach, and with which prior.

python scripts/bench/marginal.py                                   # strong policies, some minutes
python scripts/bench/marginal.py --policies medium --impressions 160 --seeds 0 1 2

Attraction is integrated out by Gauss-Hermite quadrature in float64, document by document, which PBM alone permits. Its
logits have the prior N(mean, variance), where the mean is a line or a parabola in the mean log rank of the document,
drawn to the average where few lists show it, and the variance one number or the exponential of a line. The library's
posteriors have the parabola, and one variance.
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from methods import expectation_maximisation, posterior
from report import print_table
from scipy.optimize import minimize
from scipy.special import expit
from users import FAMILIES, POLICIES, POSITIONS, Design, SimulatedLog, relative_examination
from users import simulate as simulated_log

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
PRIORS = {"line": (2, 1), "parabola": (3, 1), "parabola and variance": (3, 2)}
"""Coefficients of the mean and of the logarithm of the variance, as polynomials in the mean log rank."""


def counts(log: SimulatedLog) -> tuple[np.ndarray, np.ndarray]:
    """Impressions and clicks of each document that is shown, by rank, [documents, positions]."""
    rows = log.design.pairs + 1
    by_rank = [(log.train.ids[:, rank], log.train.clicks[:, rank]) for rank in range(POSITIONS)]
    shown = np.stack([np.bincount(ids, minlength=rows) for ids, _ in by_rank], axis=1)
    clicked = np.stack([np.bincount(*pair, minlength=rows) for pair in by_rank], axis=1)
    seen = shown.sum(axis=1) > 0
    return shown[seen], clicked[seen]


def mean_log_ranks(shown: np.ndarray) -> np.ndarray:
    """Standardised mean log ranks of documents, a mean of n drawn by n / (n + within / over documents)."""
    log_ranks, number = np.log(np.arange(1, POSITIONS + 1)), shown.sum(axis=1)
    means, documents, impressions = shown @ log_ranks / number, len(number), number.sum()
    average = number @ means / impressions
    others = documents - 1
    within = np.sum(shown * (log_ranks - means[:, None]) ** 2) / (impressions - documents)
    lists = (impressions - np.sum(number**2) / impressions) / others
    over_documents = (number @ (means - average) ** 2 / others - within) / lists
    few = min(within / max(over_documents, 1e-6), 100.0)
    drawn = (means - means.mean()) * number / (number + few)
    return (drawn - drawn.mean()) / drawn.std()


def examination(log: SimulatedLog, of_mean: int, of_variance: int) -> np.ndarray:
    """Examination relative to rank 1 at the largest marginal likelihood."""
    shown, clicked = counts(log)
    x = mean_log_ranks(shown)
    powers = jnp.asarray(np.vander(x, max(of_mean, of_variance), increasing=True))
    log_weights = jnp.asarray(np.log(WEIGHTS / WEIGHTS.sum()))
    ends = np.cumsum([POSITIONS, of_mean])

    def loss(numbers: jax.Array) -> jax.Array:
        log_examined, mean, log_variance = jnp.split(numbers, ends)
        log_examined = jax.nn.log_sigmoid(log_examined)
        middle = powers[:, :of_mean] @ mean
        deviation = jnp.exp(powers[:, :of_variance] @ log_variance / 2)

        def log_likelihood(node: jax.Array) -> jax.Array:
            log_attractive = jax.nn.log_sigmoid(middle + deviation * node)
            log_click = log_attractive[:, None] + log_examined
            skipped = (shown - clicked) * jnp.log1p(-jnp.exp(log_click))
            return jnp.sum(clicked * log_click + skipped, axis=1)

        at_nodes = jax.lax.map(log_likelihood, jnp.asarray(NODES))
        return -jnp.sum(jax.nn.logsumexp(at_nodes + log_weights[:, None], axis=0))

    start = np.zeros(ends[-1] + of_variance)
    start[:POSITIONS] = np.linspace(2, -1, POSITIONS)
    best = minimize(jax.jit(jax.value_and_grad(loss)), start, jac=True, method="L-BFGS-B")
    examined = expit(best.x[:POSITIONS])
    return examined[1:] / examined[0]


def error(examined: np.ndarray | None, log: SimulatedLog) -> float:
    """Mean error of relative examination over ranks 2 to 10."""
    truth = relative_examination("PBM", log.truth)
    if examined is None or truth is None:
        raise ValueError("these users have no examination")
    return float(np.mean(np.abs(examined / truth - 1)))


def errors(log: SimulatedLog, seed: int) -> list[float]:
    """Errors of the library's two methods, then of the exact likelihood with each prior."""
    found = []
    for method in (posterior, expectation_maximisation):
        fit = method(log, seed)
        if fit is not None and fit.parameters is not None:
            found.append(relative_examination("PBM", fit.parameters))
    with jax.enable_x64(True):
        found += [examination(log, *sizes) for sizes in PRIORS.values()]
    return [error(each, log) for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=["strong"])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=["normal", "beta"])
    parser.add_argument("--impressions", nargs="+", type=int, default=[40])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    rows = []
    cases = itertools.product(options.policies, options.families, options.impressions)
    for policy, family, impressions in cases:
        design = Design("PBM", policy, impressions=impressions, family=family)
        of_logs = [errors(simulated_log(design, seed), seed) for seed in options.seeds]
        rows.append([policy, family, impressions, *map("{:.2%}".format, np.mean(of_logs, axis=0))])
        print(rows[-1], flush=True)
    headers = ["order", "attraction", "impressions", "posteriors", "EM", *PRIORS]
    print_table("Mean error of examination relative to rank 1", headers, rows)


if __name__ == "__main__":
    main()
