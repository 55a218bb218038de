"""The pages of the site: code runs, sample rows open, names exist, what is made from the code is there."""

import os
import re
import shlex
import sys
from pathlib import Path

import jax
import nbformat
import numpy as np
import polars as pl
import pytest
import yaml
from compositions import composed, run_in
from hydra.utils import get_object, instantiate
from places import ROOT
from test_documented_commands import DOCUMENTED, commands, faults_of

sys.path.insert(0, str(ROOT / "scripts"))

from embed_examples import embedded
from pages import configuration, graphs, hook, models, notebooks, reference, result

from clickexp.export.export import export
from clickexp.runs.run import Run

DOCS = ROOT / "docs"
HAND_WRITTEN = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
FENCES = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE = {
    path: text
    for source in (models, configuration, reference, result)
    for path, text in source.pages()
}
NAMING = ("dataset", "debias", "loss", "metric", "model", "optimizer", "parameter", "propensity")
"""Groups whose options are objects of the Python reference."""
SKIPPED = {"extend.md", "coming-from-clax.md"}  # tests/examples run these


def blocks(page, language):
    return [
        (title, code)
        for found, title, code in FENCES.findall(page.read_text())
        if found == language
    ]


PROGRAMS = [
    pytest.param(page, code, id=f"{page.stem}-{i}")
    for page in HAND_WRITTEN
    if page.name not in SKIPPED
    for i, (_, code) in enumerate(blocks(page, "python"))
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder as the pages have it: my/clicks.parquet, an export in outputs/pbm, runs that kept values and models."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    ids, clicks = (
        rng.permuted(np.tile(np.arange(1, 11), (300, 1)), axis=1),
        rng.random((300, 10)) < 0.3,
    )
    (folder / "my").mkdir()
    columns = {
        "query_id": np.arange(300) % 20,
        "query_doc_ids": ids.tolist(),
        "clicks": clicks.tolist(),
    }
    pl.DataFrame(columns).write_parquet(folder / "my/clicks.parquet")
    shop = {"slot": np.tile([1.0, 2.0], 3), "device": ["mobile", "tablet", "desktop"] * 2}
    pl.DataFrame(shop).write_parquet(folder / "my/shop.parquet")
    (folder / "outputs/pbm/export").mkdir(parents=True)
    examination = pl.DataFrame({"rank": np.arange(1, 11), "propensity": np.linspace(1, 0.2, 10)})
    examination.write_csv(folder / "outputs/pbm/export/examination.csv")
    features = {"query_doc_ids": np.arange(1, 11), "bm25": rng.random(10), "price": rng.random(10)}
    pl.DataFrame(features).write_parquet(folder / "my/features.parquet")
    documents = {"document": np.arange(1, 11), "impressions": np.arange(15, 25)}
    pl.DataFrame(documents).write_parquet(folder / "outputs/pbm/export/documents.parquet")
    expected = {"click_probability": np.full((300, 10), 0.3).tolist()}
    pl.DataFrame(expected).write_parquet(folder / "outputs/pbm/export/predictions.parquet")
    small = [
        "dataset.sessions=2000",
        "dataset.queries=100",
        "trainer.epochs=1",
        f"cache_dir={folder}/cache",
    ]
    quiet = [
        "logger=console",
        "progress=off",
        "report=false",
        "keep_values=true",
        "save_model=true",
    ]
    for name, model in (("a", "pbm"), ("b", "ubm"), ("sweeps/a", "pbm")):
        run_in(folder / "outputs" / name, f"model={model}", *small, *quiet)
    export(folder / "outputs/a", numpy=True)
    shown = {
        "session": np.repeat(np.arange(300), 10),
        "query": "lamp",
        "document": ids.ravel(),
        "rank": np.tile(np.arange(1, 11), 300),
        "click": clicks.ravel(),
        "bm25": ids.ravel() * 1.5,
        "price": 20.0 - ids.ravel(),
        "brand": np.where(ids.ravel() % 2, "acme", "bolt"),
    }
    pl.DataFrame(shown).write_parquet(folder / "my/brands.parquet")
    ranker = [
        "model=ranker",
        "loss=softmax",
        "debias=dla",
        "parameter@attraction=linear",
        "dataset=impressions",
        f"dataset.path={folder}/my/brands.parquet",
        "dataset.features=[bm25,price,brand]",
        "trainer.epochs=1",
        f"cache_dir={folder}/cache",
    ]
    run_in(folder / "outputs/shop", *ranker, *quiet)
    export(folder / "outputs/shop", numpy=True)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("page, code", PROGRAMS)
def test_a_program_runs(page, code, runs, monkeypatch, capsys):
    """With simulated logs of a hundredth of the size; what it prints is what the page shows, if it shows that.

    One that prints nothing writes files of a user's own folder.
    """
    monkeypatch.chdir(runs)
    before = set(runs.glob("my/*"))
    code = re.sub(
        r"(sessions|queries)=([\d_]+)",
        lambda found: f"{found[1]}={max(int(found[2]) // 50, 40)}",
        code,
    )
    code = code.replace("epochs=20", "epochs=2")
    with jax.numpy_dtype_promotion("standard"):  # as users have it
        exec(compile(code, str(page), "exec"), {})
    printed = capsys.readouterr().out
    assert printed or set(runs.glob("my/*")) - before
    output = r"```\n\n```text\n(.*?)^```$"
    shown = re.search(re.escape(code) + output, page.read_text(), re.MULTILINE | re.DOTALL)
    assert not shown or shown[1] == printed


SAMPLES = dict(sum((blocks(DOCS / "data-formats.md", kind) for kind in ("text", "json")), []))


def sample(name, folder):
    """Writes the files of a format as the page shows them; returns the path to open."""
    files = {
        "lists": ["clicks.parquet"],
        "lists as text": ["clicks.csv"],
        "counts": ["counts.csv"],
        "impressions": ["impressions.csv"],
        "tiangong_st": ["train_per_query_quid.txt", "human_label_for_NCM_per_query_quid.txt"],
        "yandex": ["YandexClicks.txt", "YandexRelevance.txt"],
        "letor": ["train.txt"],
        "yandex_clax": ["yandex/part-0.parquet"],
        "baidu_ultr": ["baidu-ultr/part-0.parquet"],
        "baidu_ultr_uva": [
            "baidu-ultr-uva/part-0_split-0.parquet",
            "baidu-ultr-uva/annotations.parquet",
        ],
    }[name]
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        if file.endswith(".parquet"):
            pl.read_ndjson(SAMPLES[file].encode()).write_parquet(folder / file)
        else:
            (folder / file).write_text(SAMPLES[file])
    if name == "tiangong_st":
        for part in ("valid", "test"):
            (folder / f"{part}_per_query_quid.txt").write_text(SAMPLES[files[0]])
    if name == "letor":
        (folder / "test.txt").write_text(SAMPLES[files[0]])
    path = folder / files[0]
    return (
        folder
        if name in ("tiangong_st", "letor")
        else path.parent
        if path.parent != folder
        else path
    )


@pytest.mark.parametrize(
    "name, sessions",
    [
        *(
            ("lists", 4),
            ("lists as text", 4),
            ("counts", 50),
            ("impressions", 4),
            ("tiangong_st", 9),
            ("yandex", 3),
        ),
        *(("yandex_clax", 3), ("baidu_ultr", 3), ("baidu_ultr_uva", 3)),
    ],
)
def test_sample_rows_open(name, sessions, tmp_path):
    path = sample(name, tmp_path)
    extra = [f"dataset.relevance={tmp_path}/YandexRelevance.txt"] if name == "yandex" else []
    parts = [
        "dataset.train_sessions=[0,1]",
        "dataset.val_sessions=[1,2]",
        "dataset.test_sessions=[2,null]",
    ]
    parts = [] if name == "tiangong_st" else parts
    dataset = opened(
        [
            f"dataset={name.split()[0]}",
            f"dataset.path={path}",
            f"cache_dir={tmp_path}/cache",
            *extra,
            *parts,
        ]
    )
    assert dataset.train.count + dataset.val.count + dataset.test.count == sessions
    assert (dataset.ranking is not None) == (
        name in ("tiangong_st", "yandex", "baidu_ultr_uva")
    ) or name == "lists"
    if name == "baidu_ultr_uva":
        assert dataset.query_doc_pairs == 4


def test_sample_rows_of_letor_open(tmp_path):
    path = sample("letor", tmp_path)
    few = [f"dataset.{part}=20" for part in ("sessions", "val_sessions", "test_sessions")]
    given = [
        "dataset=letor",
        f"dataset.path={path}",
        f"cache_dir={tmp_path}/cache",
        "dataset.policy=random",
    ]
    dataset = opened([*given, *few])
    assert dataset.train.count == 20 and dataset.ranking is not None


def opened(overrides):
    return instantiate(composed(*overrides)["dataset"])


def test_every_model_has_a_page_and_a_graph_of_its_roles():
    options = {file.stem for file in (ROOT / "conf/model").glob("*.yaml")} - {
        "cm_marginal",
        "ranker",
    }
    assert options == set(models.TEXTS) == set(graphs.GRAPHS)
    for option in options:
        roles = set(models.class_of(option).roles)
        assert set(graphs.GRAPHS[option].behind) == roles - (
            {"continuation"} if option == "sdbn" else set()
        )
        page = MADE[f"models/{option}.md"]
        assert "<svg" in page and "<math" in page and f"model={option}" in page
        for heading in ("Assumptions", "When to use it", "Example"):
            assert len(page.split(f"## {heading}\n")[1].split("\n## ")[0].split()) > 7, (
                option,
                heading,
            )


def test_the_picture_of_rankers_names_the_groups_that_they_compose():
    picture = models.ranker()
    for group in ("attraction", "propensity", "debias", "loss"):
        assert f">{group}=<" in picture
    with pytest.raises(ValueError, match="differ in .*propensity"):
        graphs.ranker_svg(["attraction", "debias", "loss"])
    text = (DOCS / "rankers.md").read_text()
    assert hook.RANKER in text
    assert "<svg" in hook.on_page_markdown(text)
    options = [file.stem for file in (ROOT / "conf/debias").glob("*.yaml")]
    use = text.split("when to use it:\n")[1].split("\nLinear losses")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", use, re.MULTILINE)) == sorted(options)


def test_every_key_is_in_the_configuration_reference():
    page = MADE["reference/configuration.md"]
    for file in (ROOT / "conf").rglob("*.yaml"):
        group = file.parent.name
        if group in configuration.GROUPS:
            assert f"### {file.stem}\n" in page
            keys = yaml.safe_load(file.read_text()) or {}
            for key, value in keys.items():
                nested = isinstance(value, dict) and value
                assert key in ("defaults", "_partial_") or nested or f"`{key}`" in page, (file, key)


def test_the_docstring_of_each_document_in_a_result_names_its_keys():
    """The page on result.json has them from there."""
    names = [f"clickexp.runs.run.{name}" for name in reference.public("clickexp.runs.run")]
    documents = [one for one in map(get_object, names) if hasattr(one, "model_fields")]
    assert Run in documents and len(documents) > 10
    for document in documents:
        assert list(result.attributes(document)) == list(document.model_fields), document.__name__


def test_every_command_of_a_made_page_composes():
    """Those at the head of a configuration are composed already, and most of them are."""
    made = {shlex.join(words): [page] for page, text in MADE.items() for words in commands(text)}
    assert len(made) > 60
    assert not faults_of(
        {arguments: pages for arguments, pages in made.items() if arguments not in DOCUMENTED}
    )


def test_the_readme_is_short_and_names_the_two_scripts_at_its_top():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    top = "\n".join(lines[:12])
    assert (
        "bash scripts/run.sh" in top
        and "bash scripts/test.sh" in top
        and "docs/images/run.png" in top
    )


LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem
)
def test_links_to_files_lead_somewhere(page):
    assert not [link for link in LINK.findall(page.read_text()) if not (ROOT / link).exists()]


def pages_of(navigation):
    """Paths in the navigation of the site."""
    if isinstance(navigation, str):
        return [navigation]
    entries = navigation if isinstance(navigation, list) else navigation.values()
    return [page for entry in entries for page in pages_of(entry)]


def test_links_from_the_start_lead_to_every_page():
    site = (ROOT / "mkdocs.yml").read_text()
    reached, ahead = set(), ["index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            file = DOCS / page
            text = MADE.get(page, "") or (
                file.read_text() if page.endswith(".md") and file.exists() else ""
            )
            ahead += [os.path.normpath(Path(page).parent / link) for link in LINK.findall(text)]
    listed = pages_of(yaml.safe_load(site[site.index("\nnav:") :])["nav"])
    assert len(listed) > 50 and not set(listed) - reached


def test_the_readme_links_every_how_to():
    linked = {link.removeprefix("docs/") for link in LINK.findall((ROOT / "README.md").read_text())}
    assert not {str(page.relative_to(DOCS)) for page in (DOCS / "howto").glob("*.md")} - linked


def test_what_configurations_name_is_in_the_python_reference():
    listed = set(re.findall(r"^::: (\S+)$", "\n".join(MADE.values()), re.MULTILINE))
    documented = {get_object(name) for name in listed}
    texts = [
        file.read_text() for group in NAMING for file in (ROOT / "conf" / group).glob("*.yaml")
    ]
    named = {name for text in texts for name in re.findall(r"_target_: (clickexp\.\S+)", text)}
    assert len(named) > 80
    assert not {name for name in named if get_object(name) not in documented}


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: page.stem)
def test_files_that_a_page_shows_are_as_they_are(page):
    assert embedded(page.read_text()) == page.read_text(), "run python scripts/embed_examples.py"


@pytest.mark.parametrize(
    "file", sorted(notebooks.FOLDER.glob("*.ipynb")), ids=lambda file: file.stem
)
def test_a_notebook_is_committed_with_its_outputs(file):
    cells = [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, 1 + len(cells)))
    assert sum(bool(cell.outputs) for cell in cells) >= len(cells) - 2
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "error"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "file", sorted(notebooks.FOLDER.glob("*.ipynb")), ids=lambda file: file.stem
)
def test_a_notebook_runs(file):
    from pages.execute import executed

    cells = executed(file).cells
    outputs = [out for cell in cells for out in cell.get("outputs", [])]
    assert any("image/png" in out.get("data", {}) for out in outputs)
