"""Command lines that nobody means: refused in one line before anything is written, or carried out."""

import functools
import random
from pathlib import Path

import yaml

from scripts.campaign.base import SMALL, run_of
from scripts.campaign.damage import TEXTS
from scripts.campaign.trials import Trial, area

_CONF = Path(__file__).resolve().parents[2] / "conf"
_OPERATORS = ("", "", "", "", "+", "++", "~")
_FORMS = (
    "{}", "{}", "{}", "[{}]", "[{},{}]", "{{a:{}}}", "'{}'", "\"{}\"", "{},{}", "range({},{})", "choice({},{})",
    "interval(0,{})",
    "{}e9", "-{}", "${{{}}}", "{}#x", "{} {}",
)  # fmt: skip
_NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "0.5",
    "1.5",
    "-0.0",
    "1e-12",
    "1e12",
    "1e400",
    "nan",
    "inf",
    "007",
)
_SECONDS = 240


@functools.cache
def keys() -> dict[str, tuple[str, ...]]:
    """Returns groups with their options, and other keys without."""
    found: dict[str, tuple[str, ...]] = {}
    for folder in sorted(path for path in _CONF.iterdir() if path.is_dir()):
        options = sorted(file.stem for file in folder.glob("*.yaml"))
        found[folder.name] = tuple(options)
        for option in options:
            content = yaml.safe_load((folder / f"{option}.yaml").read_text()) or {}
            found |= dict.fromkeys(_flat(content, folder.name), ())
    found |= dict.fromkeys(_flat(yaml.safe_load((_CONF / "config.yaml").read_text()), ""), ())
    return {key: options for key, options in found.items() if key and "default" not in key}


def _flat(content: object, prefix: str) -> list[str]:
    if not isinstance(content, dict) or not content:
        return [prefix]
    pairs = [(f"{prefix}.{key}".lstrip("."), value) for key, value in content.items()]
    return [name for key, value in pairs for name in _flat(value, key)]


def override(rng: random.Random) -> str:
    """Draws a word of a command line."""
    key = rng.choice([*keys()])
    options = keys()[key]
    if rng.random() < 0.05:
        key = key[:-1] + rng.choice("xX._@ ")
    if options and rng.random() < 0.8:
        return f"{key}={rng.choice(options)}"
    text = rng.choice(rng.choice((TEXTS, _NUMBERS, _NUMBERS))).replace("\0", "")
    form = rng.choice(_FORMS)
    return f"{rng.choice(_OPERATORS)}{key}={form.format(*[text] * form.count('{}'))}"


@area
def commands(trial: Trial) -> None:
    """One of the four commands with words that are drawn."""
    rng = trial.rng
    rng.choice((_run, _run, _run, _other))(trial)


def _run(trial: Trial) -> None:
    words = [override(trial.rng) for _ in range(trial.rng.choice((1, 1, 2, 3)))]
    words = [word for word in words if not word.lstrip("+~").startswith(("hydra.run", "cache_dir"))]
    outcome = trial.run("clickexp", *SMALL, "hydra.run.dir=run", *words, seconds=_SECONDS)
    run = trial.folder / "run"
    if outcome.code == 0:
        printed = bool(outcome.output) and not run.exists()  # such as --help
        trial.check(printed or (run / "result.json").exists(), "exit code 0 without a result")
        return
    trained = "loss" in outcome.errors or (run / "metrics.jsonl").exists()
    left = sorted(str(path.relative_to(trial.folder)) for path in trial.folder.rglob("*"))
    trial.check(trained or not left, f"refused, and leaves {left[:4]}")


def _other(trial: Trial) -> None:
    rng = trial.rng
    run = run_of(trial.base, "csv_keyed")
    log = run.parent / "log.csv"
    reader = (
        "train_sessions", "val_sessions", "test_sessions", "positions", "separator", "query_doc_pairs", "name", "files",
        "pair_key", "columns", "columns.clicks", "columns.labels", "columns.x", "min_train_sessions_per_query",
    )  # fmt: skip
    online = (
        "--users",
        "--days",
        "--positions",
        "--alpha",
        "--power",
        "--seed",
        "--user",
        "--output",
        "--dataset",
    )
    exported = (
        "--dataset",
        "--part",
        "--predict",
        "--rank",
        "--onnx",
        "--thompson",
        "--output",
        "columns.clicks",
    )
    commands = (
        (("clickexp-export", run, "--output", "out"), exported),
        (("clickexp-compare", run, "--output", "out"), ("--metrics", "--baseline", "--title", "--output")),
        (("clickexp-compare", "online", run, run, "--sessions", "2000", "--output", "out"), online),
        (("clickexp-data", "inspect", log, "format=lists", "--output", "out"), (*reader, "cache", "format")),
        (("clickexp-data", "prepare", "lists", log, "out"), reader),
    )  # fmt: skip
    command, flags = rng.choice(commands)
    words = []
    for _ in range(rng.choice((1, 2))):
        flag = rng.choice(flags)
        text = rng.choice(rng.choice((TEXTS, _NUMBERS))).replace("\0", "")
        words += [flag, text] if flag.startswith("-") else [f"{flag}={text}"]
    trial.run(*command, *words)
