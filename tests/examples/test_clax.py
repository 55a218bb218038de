"""The programs in examples/clax run, and print what they should."""

import re
import runpy
import sys

import numpy as np
import pytest
from places import ROOT

EXAMPLES = ROOT / "examples/clax"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-\d+)?")


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example with arguments; its output by the first word of each line."""

    def output(name, *arguments):
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        lines = capsys.readouterr().out.splitlines()
        return {line.split()[0]: line for line in lines}

    yield output
    sys.modules.pop("feature_log", None)


def numbers(line):
    """The numbers of a line behind its first word."""
    return [float(number) for number in NUMBER.findall(line.split(maxsplit=1)[1].replace(",", ""))]


def test_the_names_that_examples_import_exist(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    for file in EXAMPLES.glob("*.py"):
        assert "main" in runpy.run_path(str(file)) or file.stem == "feature_log"
    sys.modules.pop("feature_log")


def test_every_example_is_run_here():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {file.stem for file in EXAMPLES.glob("*.py")} - {"feature_log"} <= tested


@pytest.mark.nightly
def test_ubm(run):
    lines = run("ubm", "--sessions", "3000", "--queries", "20", "--epochs", "4")
    assert -np.log(2) < numbers(lines["test_ll"])[0] < 0
    assert 1 < numbers(lines["test_cond_ppl"])[0] < 2
    rows = [numbers(lines[str(rank)]) for rank in range(1, 11)]
    click, sampled, marginal, conditional, relevance = np.array(rows).T
    assert set(click) | set(sampled) <= {0, 1}
    assert marginal[0] == conditional[0] and (marginal[1:] != conditional[1:]).any()
    assert (0 < marginal).all() and (marginal < relevance).all() and (relevance < 1).all()


@pytest.mark.nightly
def test_compressed_embeddings(run):
    lines = run("compressed_embeddings", "--sessions", "1000", "--queries", "50", "--epochs", "1")
    full, compressed = numbers(lines["FullEmbedding"]), numbers(lines["QREmbedding"])
    assert full[0] == 1 + 50 * 20 and compressed[0] == 100
    assert all(-np.log(2) < row[1] < 0 and 1 < row[2] < 2 for row in (full, compressed))


@pytest.mark.nightly
def test_two_towers(run):
    lines = run("two_towers", "--sessions", "6000", "--epochs", "25")
    after, before = numbers(lines["test_ndcg@10"])
    assert after > before + 0.1
    fitted, truth = np.array(numbers(lines["examination"])), np.array(numbers(lines["the"]))
    assert len(truth) == 10 and (np.diff(truth) < 0).all()
    # noise of 6,000 sessions may lift a rank
    assert (np.diff(fitted) <= 0.03).all() and fitted[-1] < fitted[0] / 2
    # without training it is flat, 0.78 off at the last rank
    np.testing.assert_allclose(fitted, truth, atol=0.15)


@pytest.mark.nightly
def test_custom_tower(run):
    lines = run("custom_tower", "--sessions", "2000", "--epochs", "4")
    after, before = numbers(lines["test_ndcg@10"])
    assert after > before + 0.1


@pytest.mark.nightly
def test_mixture(run):
    lines = run("mixture", "--sessions", "1000", "--queries", "20", "--epochs", "1")
    fits = {}
    for name in "PBM", "DBN", "Mixture(PBM,":
        fits[name], perplexity, conditional = numbers(lines[name].replace("DBN)", ""))
        assert -np.log(2) < fits[name] < 0 and 1 < conditional < 2 and 1 < perplexity < 2
    # a mixture fits no worse than the better of its parts, up to the noise of 150 test sessions
    assert fits["Mixture(PBM,"] > max(fits["PBM"], fits["DBN"]) - 0.005
    shares = dict(zip(("PBM", "DBN"), numbers(lines["shares"]), strict=True))
    # the one that fits better has more users
    assert max(shares, key=shares.get) == max(("PBM", "DBN"), key=fits.get)
