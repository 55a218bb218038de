"""How near neural click models come to the family that made the clicks, on its logs and under a shift of the policy.

    python scripts/bench/neural_fit.py                           # about an hour on 2 cores
    python scripts/bench/neural_fit.py --sessions 60000 --users UserBrowsingModel

For each user, models are fitted to the log of `dataset=simulated`. The test sets: sessions of the same log, and
sessions of the same users on lists in random order. Log-likelihoods are per document, given the clicks above, as
differences from that of the fitted model of the family of the user.
"""

import argparse

import jax
from hydra import compose, initialize_config_dir

from clickexp.data import Sessions
from clickexp.evaluation.evaluator import Evaluator
from clickexp.experiment.build import build_model
from clickexp.experiment.conf import CONF
from clickexp.experiment.instantiate import build_trainer, constructor, model_constructor
from clickexp.experiment.overrides import canonical
from clickexp.experiment.resolve import resolve
from clickexp.metrics import LogLikelihood
from clickexp.models import ClickModel

FAMILIES = {"UserBrowsingModel": "ubm", "DynamicBayesianNetwork": "dbn"}
MODELS = ("ubm", "dbn", "cacm_minus", "ncm")
RANDOM = 1e6
"""Noise of the policy in logits beside which attraction does not count."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="further ones, of the log and of all models")
    parser.add_argument("--sessions", type=int, default=300_000)
    parser.add_argument("--users", nargs="+", default=[*FAMILIES], choices=[*FAMILIES])
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    given = parser.parse_args()
    print(f"{given.sessions:,} sessions, seven tenths of them for training\n")
    print("| user | model | log-likelihood | same policy | random order | epochs | seconds |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for user in given.users:
        log = [
            f"dataset.sessions={given.sessions}",
            f"dataset.user._target_=clickexp.models.{user}",
            *given.overrides,
        ]
        shifted = values([*log, f"dataset.policy_noise={RANDOM}"])["dataset"]
        elsewhere = constructor(shifted, "dataset")().test
        base: list[float] = []
        for name in [FAMILIES[user], *(each for each in given.models if each != FAMILIES[user])]:
            settings = values([*log, f"model={name}"])
            dataset = constructor(settings["dataset"], "dataset")()
            model = build_model(model_constructor(settings), dataset, 0)
            assert isinstance(model, ClickModel)
            trained = build_trainer(settings, {}).train(model, dataset.train, dataset.val)
            found = [log_likelihood(model, part) for part in (dataset.test, elsewhere)]
            base = base or found
            seconds = sum(epoch["seconds"] for epoch in trained.history)
            gains = [f"{value - best:+.4f}" for value, best in zip(found, base, strict=True)]
            cells = [
                user,
                model.name,
                f"{found[0]:.4f}",
                *gains,
                str(len(trained.history)),
                f"{seconds:.0f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


def values(overrides: list[str]) -> dict:
    """The configuration."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = canonical(overrides)
        return resolve(compose("config", chosen), chosen).values


def log_likelihood(model: ClickModel, part: Sessions) -> float:
    """Mean log P(click | clicks above) of the documents."""
    return Evaluator().clicks(model, part, {"ll": LogLikelihood()}).compute()["ll"]


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
