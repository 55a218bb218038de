"""One page per click model, and the page that compares them."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from latex2mathml.converter import convert

import clickexp.models
from clickexp.parameters import ParameterConfig
from pages.graphs import GRAPHS, depends_on, ranker_svg, svg

ROOT = Path(__file__).resolve().parent.parent.parent
TEXTS = yaml.safe_load((Path(__file__).parent / "models.yaml").read_text())
MEASURED = ROOT / "docs/data/models.json"
COLUMNS = {"ll": "LL ↑", "ppl": "PPL ↓", "cond_ppl": "cPPL ↓", "ndcg@10": "nDCG@10 ↑"}
COUNTED = ("gctr", "rctr", "dctr", "drctr", "cm", "dcm", "sdbn")
TOWERS = {
    "EmbeddingParameterConfig": "embedding",
    "PositionParameterConfig": "position",
    "GlobalParameterConfig": "global",
}
MEANINGS = {
    "ctr": "P(click)",
    "continuation_exam_no_click": "P(continue) after a document without a click",
    "continuation_click_not_satisfied": "P(continue) after a click that does not satisfy",
    "continuation_click_satisfied": "P(continue) after a click that satisfies",
}
EXACT = ("pbm", "ubm", "dcm", "ccm", "dbn", "sdbn")


def pages() -> Iterator[tuple[str, str]]:
    """Paths in docs/ and their Markdown."""
    measured = json.loads(MEASURED.read_text())
    yield "models/index.md", _index(measured)
    for option in TEXTS:
        yield f"models/{option}.md", _page(option, measured)


def ranker() -> str:
    """The picture of a ranker, with the legend below it."""
    groups = set(re.findall(r"@_global_\.(\w+):|\$\{(\w+)\}", config("ranker")[0]))
    legend = "Shaded: what the log has. Below a step: the group that chooses it."
    return f"{ranker_svg({one or other for one, other in groups})}\n\n{legend}\n{{ .legend }}"


def config(option: str) -> tuple[str, Mapping[str, Any], str]:
    """The text of conf/model/OPTION.yaml, its keys, and the sentence at its head."""
    text = (ROOT / f"conf/model/{option}.yaml").read_text()
    head = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    return (
        text,
        yaml.safe_load(text),
        " ".join(line for line in head if not line.startswith("clickexp")),
    )


def class_of(option: str) -> type:
    """The class behind an option."""
    return getattr(clickexp.models, config(option)[1]["_target_"].rpartition(".")[2])


def sources(cls: type) -> list[str]:
    """The citations of a class: paragraphs of its docstring with a year and a title, or a year after a name."""
    for one in cls.__mro__:
        found = [
            p
            for p in inspect.cleandoc(one.__doc__ or "").split("\n\n")
            if re.search(r"\b(19|20)\d\d, \"", p)
        ]
        if found:
            return [" ".join(part.split()) for part in found[-1].split(";")]
    return ['Chuklin, Markov and de Rijke 2015, "Click models for web search", chapter 3']


def _page(option: str, measured: Mapping[str, Any]) -> str:
    text, cls = TEXTS[option], class_of(option)
    keys, head = config(option)[1:]
    roles = {
        name: tower
        for name, tower in cls.roles.items()
        if option != "sdbn" or name != "continuation"
    }
    found = re.findall(r"^(\w+): [^#\n]*# (.*)$", config(option)[0], re.MULTILINE)
    # which would end the cell of a table
    comments = {key: comment.replace("|", r"\|") for key, comment in found}
    lines = [f"# {text['title']}", "", head, "", svg(option, roles), ""]
    lines += [
        "Shaded: seen. Dots: parameters, in brackets what has one each."
        if GRAPHS[option].behind
        else "Shaded: seen.",
        "{ .legend }",
        "",
    ]
    lines += [convert(formula, display="block") + "\n" for formula in text["formula"]]
    if roles:
        lines += [
            "## Parameters",
            "",
            "| role | one per | default tower | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{role}` | {depends_on(tower)} | `{tower_option(tower)}` | {meaning(role, comments)} |"
            for role, tower in roles.items()
        ]
        lines += [
            "",
            (
                "A document is a query-document pair, or a document under any query (`dataset.pair_key=document`). "
                "Any [tower](../howto/towers.md) can stand behind a role: `attraction=deep`."
            ),
            "",
        ]
    settings = [key for key in keys if key not in (*roles, "_target_", "_partial_", "defaults")]
    if settings:
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        lines += [
            f"| `model.{key}` | `{json.dumps(keys[key])}` | {comments.get(key, '')} |"
            for key in settings
        ] + [""]
    lines += ["## Assumptions", "", *(f"- {one}" for one in text["assumes"]), ""]
    lines += ["## When to use it", "", text["take"], ""]
    lines += ["## Command", "", *(f"    {command}" for command in commands(option)), ""]
    if option in measured["runs"]:
        lines += ["## Example", "", _sentence(measured), "", _table(measured, [option]), ""]
        lines += [_note(option, measured), ""]
    else:
        lines += ["## Example", "", text["example"], ""]
    lines += [
        "## In Python",
        "",
        f"[`{cls.__name__}`](../reference/models.md#clickexp.models.{cls.__name__})",
        "",
        "## Source",
        "",
        *(f"- {one}" for one in sources(cls)),
        "",
    ]
    return "\n".join(lines)


def tower_option(tower: ParameterConfig) -> str:
    """The option behind a default tower, as `clickexp model=... ROLE=option` has it."""
    return (
        "browsing"
        if getattr(tower, "use_feature", "") == "examination_idx"
        else TOWERS[type(tower).__name__]
    )


def meaning(role: str, comments: Mapping[str, str]) -> str:
    """The comment of a role in the file of its model, or else of the group of its towers."""
    return comments.get(role) or MEANINGS.get(role, "")


def commands(option: str) -> list[str]:
    """What to type for a model, by each trainer that fits it."""
    found = [line[2:] for line in config(option)[0].splitlines() if line.startswith("# clickexp")]
    found += [f"clickexp model={option} trainer=counting"] * (option in COUNTED)
    found += [f"clickexp model={option} trainer=em"] * (option in EXACT)
    return list(dict.fromkeys(found))


def _index(measured: Mapping[str, Any]) -> str:
    lines = [
        "# Models",
        "",
        (
            "A model states how hidden events, such as examination and attraction, make clicks. Its parameters "
            "are [towers](../howto/towers.md), one per role, and every role takes every tower."
        ),
        "",
    ]
    lines += ["| `model=` | model | source |", "|---|---|---|"]
    lines += [
        f"| [`{option}`]({option}.md) | {text['title']} | {_short(sources(class_of(option)))} |"
        for option, text in TEXTS.items()
    ]
    lines += [
        "",
        (
            "`cm_marginal` is CM with the marginal probability in place of the conditional one, as some published "
            "tables have it. [Extend](../extend.md) shows a model of your own."
        ),
        "",
    ]
    table = _table(measured, [option for option in TEXTS if option in measured["runs"]])
    lines += ["## Measured", "", _sentence(measured), "", table, "", _caution(), ""]
    return "\n".join(lines)


def _short(cited: list[str]) -> str:
    return "; ".join(re.sub(r"( \d{4}).*", r"\1", one) for one in cited)


def _sentence(measured: Mapping[str, Any]) -> str:
    return (
        f"Test figures on the log of the default run, {measured['sessions']:,} simulated sessions of UBM users, with "
        f"default settings and seed 0. Seconds are those of training, on {measured['device']}, without compilation."
    )


def _caution() -> str:
    return (
        "One log of one kind of user says nothing about yours: UBM comes first because these users follow it. "
        f"Written by `scripts/pages/measure.py`, from the command:\n\n    {json.loads(MEASURED.read_text())['command']}"
    )


def _note(option: str, measured: Mapping[str, Any]) -> str:
    best = max(measured["runs"], key=lambda name: measured["runs"][name]["ll"])
    gain = measured["runs"][option]["ppl"] - measured["runs"]["rctr"]["ppl"]
    beside = (
        f"Perplexity is {abs(gain):.4f} {'below' if gain < 0 else 'above'} that of the click rate per rank. "
        if gain
        else ""
    )
    highest = f"{TEXTS[best]['title']} has the highest log-likelihood"
    return f"{beside}[All models](index.md#measured) on this log; {highest}."


def _table(measured: Mapping[str, Any], options: list[str]) -> str:
    shown = options if len(options) > 1 else list(dict.fromkeys([*options, "rctr", "ubm"]))
    shown = sorted(shown, key=lambda name: -measured["runs"][name]["ll"])
    lines = [
        f"| model | {' | '.join(COLUMNS.values())} | epochs | s |",
        "|---|" + "---:|" * (len(COLUMNS) + 2),
    ]
    for name in shown:
        run = measured["runs"][name]
        values = " | ".join(f"{run[metric]:.4f}" for metric in COLUMNS)
        seconds = "" if run["seconds"] is None else f"{run['seconds']:.1f}"
        label = f"**{name}**" if [name] == options else f"[{name}]({name}.md)"
        lines.append(f"| {label} | {values} | {run['epochs']} | {seconds} |")
    return "\n".join(lines)
