"""Everything on the page for users of CLAX: its code prints what the page shows, its names exist, its commands run."""

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pytest
from hydra import compose, initialize_config_dir
from places import ROOT

from clickexp.experiment.resolve import resolve
from clickexp.experiment.run import run_experiment

PAGE = (ROOT / "docs/coming-from-clax.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TEXT = re.sub("^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for line in re.findall(r"^    (\w.*)$", TEXT, re.MULTILINE)]


def programs():
    """Each block of code, and the output that follows it."""
    for (language, code), (following, output) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if language == "python":
            yield code, output if following == "text" else ""


@pytest.mark.nightly
def test_every_block_prints_what_the_page_shows(tmp_path, monkeypatch):
    """In the order of the page: later blocks use the names of earlier ones."""
    monkeypatch.chdir(tmp_path)
    names = {}
    assert {language for language, _ in BLOCKS} == {"python", "text"} and len(list(programs())) >= 7
    for code, expected in programs():
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            jax.numpy_dtype_promotion("standard"),
        ):  # as users have it
            exec(compile(code, "docs/coming-from-clax.md", "exec"), names)
        assert printed.getvalue() == expected


def test_the_loss_of_clax_follows_from_ours():
    """A GCTR of logit -1: a skip costs log(1 + 1/e), a click 1 more."""
    skip = np.log1p(np.exp(-1))
    over_documents, over_lists = (4 * skip + 1) / 4, (skip + skip + 1) / 2
    assert f"{over_documents:.4f} per document, {over_lists:.4f} per list" in PAGE


def exists(name):
    """Whether a dotted name is a module or something inside one."""
    module, inside = name, []
    while module:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            inside.insert(0, last)
            continue
        for part in inside:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_name_of_ours_exists():
    names = set(re.findall(r"`(clickexp(?:\.\w+)*)", PAGE))
    assert len(names) > 15
    assert not [name for name in sorted(names) if not exists(name)]


def test_every_command_is_tested():
    programs = sorted(path for command, path, *_ in COMMANDS if command == "python")
    examples = {f"examples/clax/{file.name}" for file in (ROOT / "examples/clax").glob("*.py")}
    # run by test_examples_clax.py
    assert programs == sorted(examples - {"examples/clax/feature_log.py"})
    assert [command for command, *_ in COMMANDS if command != "python"] == ["clickexp"]


def test_the_command_is_complete():
    (given,) = (rest for command, *rest in COMMANDS if command == "clickexp")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        resolve(compose("config", [*given, "logger=console"]), given)


@pytest.mark.nightly
def test_the_command_runs_on_a_folder_as_clax_publishes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (given,) = (rest for command, *rest in COMMANDS if command == "clickexp")
    folder = Path(
        next(word for word in given if word.startswith("dataset.path=")).partition("=")[2]
    )
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    ids, clicks = rng.integers(1, 30, (200, 10)), rng.integers(0, 2, (200, 10), np.int8)
    pl.DataFrame({"query_id": ids[:, 0] % 5, "query_doc_ids": ids, "clicks": clicks}).with_columns(
        pl.col("query_doc_ids", "clicks").arr.to_list()
    ).write_parquet(folder / "part-0.parquet")
    small = (
        "trainer.epochs=1",
        "metric=click",
        "logger=console",
        "progress=off",
        f"cache_dir={tmp_path}/cache",
    )
    overrides = [*given, *small]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        result = run_experiment(compose("config", overrides), tmp_path, overrides=overrides)
    assert result.data.sessions == {"train": 160, "val": 20, "test": 20}
    assert np.isfinite(result.test["ll"])
