"""Posteriors in the rows of tables beside point estimates, on a real log: five folds by session, paired.

    python scripts/bench/real_log.py dataset=tiangong_st dataset.path=my/sessions

For each model, the mean log-probability of the clicks on held-out documents, given the clicks above and marginally, of
point estimates; and what posteriors add, in pairs, with standard errors between search sessions.
"""

import argparse

import jax
from context import folds, held_out, ratio, whole

MODELS = ("dctr", "pbm", "ubm", "cm", "dcm", "ccm", "dbn", "sdbn")
ROWS = {
    "numbers": ("posterior=none", "optimizer=lazy_adagrad", "trainer.decays=0"),
    "normal": ("posterior=normal",),
    "normal_by_rank": ("posterior=normal_by_rank",),
}
TABLES = {"dbn": ("attraction", "satisfaction"), "sdbn": ("attraction", "satisfaction")}
BY_RANK = "attraction"
"""The only role whose default prior follows ranks."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="+", help="the dataset, as the command takes it")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument(
        "--models", nargs="+", default=MODELS, choices=MODELS, metavar="NAME", help="some"
    )
    given = parser.parse_args()
    log = whole(given.overrides)
    session, fold = folds(log, given.folds)
    print(f"{log.count:,} lists of {session.max() + 1:,} search sessions, {given.folds} folds")
    print(
        "\n| model | probability | point estimates | normal | normal_by_rank |\n|---|---|---:|---:|---:|"
    )
    for name in given.models:
        values = {
            kind: held_out(log, (*given.overrides, *chosen(name, kind)), fold) for kind in ROWS
        }
        numbers = values.pop("numbers")
        documents = numbers.pop("documents")
        for probability, sums in numbers.items():
            gains = [
                ratio(each[probability] - sums, documents, session) for each in values.values()
            ]
            cells = [name, probability, f"{sums.sum() / documents.sum():.4f}"]
            cells += [f"{gain:+.4f} ± {error:.4f}" for gain, error in gains]
            print(f"| {' | '.join(cells)} |", flush=True)


def chosen(model: str, kind: str) -> list[str]:
    """Overrides of a model with one kind of rows."""
    posterior, *others = ROWS[kind]
    of_tables = [
        f"{role}.{posterior if role == BY_RANK or kind == 'numbers' else 'posterior=normal'}"
        for role in TABLES.get(model, ("attraction",))
    ]
    return [f"model={model}", *of_tables, *others]


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
