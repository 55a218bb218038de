"""Every command in the README, in docs/ and at the head of a configuration file composes, and every option builds."""

import dataclasses
import functools
import re
import shlex
from collections import defaultdict

import pytest
from compositions import CONF, options, parsed, values, with_hydra
from places import ROOT

from clickexp.experiment.instantiate import build_metrics, build_trainer, constructor, instantiate
from clickexp.experiment.overrides import canonical
from clickexp.experiment.values import plain, walk
from clickexp.loggers import Logger
from clickexp.runs.settings import CHOSEN


def commands(text):
    """The arguments of each line that starts with clickexp, joined over backslashes, without comments."""
    joined = re.sub(r"\\\n[# ]*", " ", text)
    lines = re.findall(r"^(?:#|   )? *(clickexp(?: .*)?)$", joined, re.MULTILINE)
    return [shlex.split(re.sub(r"  +[^ =]+ [^=]*$", "", line), comments=True)[1:] for line in lines]


def documented():
    """By the arguments of each command, the files that have it."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {page: page.read_text() for page in pages}
    for file in sorted(CONF.rglob("*.yaml")):
        texts[file] = "\n".join(
            line for line in file.read_text().splitlines() if line.startswith("#")
        )
    found = defaultdict(list)
    for file, text in texts.items():
        for arguments in commands(text):
            found[shlex.join(arguments)].append(str(file.relative_to(ROOT)))
    return found


DOCUMENTED = documented()


def first_of_sweep(override):
    swept = parsed(override)
    if not swept.is_sweep_override():
        return override
    value = (
        next(swept.sweep_string_iterator()) if swept.is_discrete_sweep() else swept.value().start
    )
    return f"{swept.get_key_element()}={value}"


@functools.cache
def overrides_of(arguments):
    given = [
        word for word in shlex.split(arguments) if word not in ("-m", "--help", "--cfg", "job")
    ]
    return canonical([first_of_sweep(word) for word in given if "glob(" not in word])


def faults_of(found):
    """A line for each of these commands that does not compose, or lacks a value."""
    faults = []
    for arguments, sources in found.items():
        try:
            unresolved = plain(with_hydra(*overrides_of(arguments)), resolve=False)
            missing = [
                key
                for key, value in walk(unresolved)
                if value == "???" and not key.startswith("hydra.")
            ]
            faults += (
                [f"no value of {missing}: clickexp {arguments} ({', '.join(sources)})"]
                if missing
                else []
            )
        except Exception as error:
            faults.append(f"{error}: clickexp {arguments} ({', '.join(sources)})")
    return "\n".join(faults)


def test_commands_are_found():
    sources = [source for sources in DOCUMENTED.values() for source in sources]
    assert (
        sources.count("README.md") >= 6
        and sum(source.startswith("docs/") for source in sources) >= 60
    )
    folders = {source.rsplit("/", 1)[0] for source in sources}
    assert {f"conf/{group}" for group in ("model", "dataset", "optimizer")} <= folders


@pytest.mark.timeout(900)
def test_every_documented_command_composes():
    assert not faults_of(DOCUMENTED)


def test_a_command_that_does_not_compose_is_named_with_its_file():
    found = {"dataset=lists": ["a.md"], "model=pbm epochs=3": ["b.md"], "model=pbm": ["c.md"]}
    faults = faults_of(found).splitlines()
    assert faults[0] == "no value of ['dataset.path']: clickexp dataset=lists (a.md)"
    assert (
        "epochs" in faults[1]
        and "model=pbm epochs=3 (b.md)" in faults[-1]
        and "c.md" not in "".join(faults)
    )


NO_TOWER = "my_package.MyTower"
"""What the documentation calls a tower that a user writes."""
OWN_TOWER = "attraction=module attraction._target_=flax.nnx.Linear +attraction.in_features=2 +attraction.out_features=1"


def check_model(model):
    assert model["_target_"].startswith("clickexp.models.")
    is_ranker = model["_target_"].endswith(".Ranker")
    assert {*CHOSEN} & model.keys() == ({"loss", "debias"} if is_ranker else set())
    assert callable(constructor(model, "model"))


def check_dataset(dataset):
    assert callable(constructor(dataset, "dataset"))


def check_metric(metric):
    groups = {
        name for name, part in instantiate(metric, "metric").items() if isinstance(part, dict)
    }
    assert groups <= {"click", "test", "ranking", "counterfactual", "truth"}


def check_logger(logger):
    instantiate(logger, "logger")
    assert {*(logger or ())} <= {*options("logger")}


def check_trainer(trainer, optimizer, metric, optimized_metric):
    values = dict(trainer=trainer, optimizer=optimizer, optimized_metric=optimized_metric)
    trainer = build_trainer(values, build_metrics(metric))
    logger = Logger()
    assert dataclasses.replace(trainer, logger=logger).logger is logger


CHECKS = {
    ("model",): check_model,
    ("dataset",): check_dataset,
    ("metric",): check_metric,
    ("logger",): check_logger,
    ("trainer", "optimizer", "metric", "optimized_metric"): check_trainer,
}


def test_every_option_is_in_a_command_and_builds():
    """What several commands have alike is built once."""
    chosen, built, faults = set(), set(), []
    for arguments in [OWN_TOWER, *(each for each in DOCUMENTED if NO_TOWER not in each)]:
        overrides = overrides_of(arguments)
        choices = with_hydra(*overrides).hydra.runtime.choices
        chosen |= {(group.partition("@")[0], name) for group, name in choices.items()}
        lists = {
            parsed(each).key_or_group: parsed(each).value() for each in overrides if "=[" in each
        }
        chosen |= {(group, name) for group, names in lists.items() for name in names}
        for parts, check in CHECKS.items():
            nodes = [values(*overrides).get(part) for part in parts]
            if (key := f"{parts} {nodes}") in built:
                continue
            built.add(key)
            try:
                check(*nodes)
            except Exception as error:
                faults.append(
                    f"{parts[0]} of clickexp {arguments}: {type(error).__name__}: {error}"
                )
    assert not faults, "\n".join(faults)
    assert not {(file.parent.name, file.stem) for file in CONF.glob("*/*.yaml")} - chosen
