"""The text of `clickexp --help`.

Hydra's own would take twice as long: it copies all that it knows of the configuration for each group.
"""

import shutil
import string
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig, OmegaConf

from clickexp.errors import ConfigError
from clickexp.experiment.conf import CONF, TOWERS
from clickexp.experiment.overrides import CommandLine
from clickexp.utils.exits import VERSION
from clickexp.utils.suggest import did_you_mean

_WIDEST = 100
_INDENT, _BELOW = 14, 4
_GROUPS = {
    "dataset": "the log to learn from",
    "model": "the click model",
    TOWERS: "towers, as attraction=OPTION",
    "loss": "of model=ranker",
    "debias": "of model=ranker",
    "propensity": "for debias",
    "metric": "measures, such as [click,ranking]",
    "optimizer": "updates of all or of a batch's rows",
    "trainer": "how a model is fitted",
    "logger": "where results go",
    "launcher": "of sweeps (-m)",
    "search": "of hyperparameters",
    "context": "as +context=OPTION",
    "debug": "quick trials",
    "experiment": "as +experiment=OPTION",
    "sweep": "as +sweep=OPTION",
    "variant": "as +variant=OPTION",
    "method": "as +method=OPTION, of rankers",
    "vectors": "of ncm, cacm",
}
"""The groups in the order of the help, each in a few words; others come after them."""
_WORDS = {
    "dataset": {
        "baidu_ultr": "CLAX", "baidu_ultr_uva": "features", "csv": "text",
        "impressions": "rows", "letor": "MSLR", "parquet": "your log",
        "prepared": "packed", "simulated": "known user", "tiangong_st": "text", "yandex": "text",
        "yandex_clax": "parquet",
    },
    "model": {
        "cacm": "sessions", "cacm_minus": "recurrent", "ccm": "click chain", "cm": "cascade", "cm_marginal": "variant",
        "dbn": "dynamic Bayesian",
        "dcm": "dependent click", "dctr": "per document", "drctr": "both",
        "gctr": "one rate", "mixture": "of models", "ncm": "recurrent", "pbm": "position-based", "ranker": "ranks only",
        "rctr": "per rank",
        "sdbn": "simpler DBN", "trust_bias": "PBM", "two_towers": "sum", "ubm": "user browsing",
    },
    "parameter": {
        "browsing": "UBM's table", "deep": "MLP", "deep_cross": "DCN v2", "embedding": "per pair",
        "embedding_even": "even odds", "global": "one", "hash": "fewer rows", "hierarchical": "sum",
        "linear": "of features", "module": "yours", "position": "per rank", "position_low": "rare",
        "quotient_remainder": "tables", "robe": "one array",
    },
    "loss": {
        "approx_ndcg": "smooth", "gumbel_ndcg": "noisy", "lambda": "LambdaRank", "listmle": "Plackett-Luce",
        "pairwise": "RankNet", "pointwise": "log loss", "poly1": "PolyLoss", "softmax": "listwise", "warp": "top ranks",
    },
    "debias": {
        "affine": "trust bias", "dla": "dual", "doubly_robust": "regression", "ips": "weights", "none": "naive",
        "pair_debias": "ratios", "policy_aware": "top k", "regression_em": "EM",
    },
    "propensity": {
        "click_rate": "by rank", "given": "list", "harvest": "swaps", "randomized": "shuffled", "run": "fitted model",
        "simulated": "truth",
    },
    "metric": {
        "all": "default", "calibration": "AUC", "click": "perplexity", "cold_start": "new", "counterfactual": "clicks",
        "pairs": "tau", "ranking": "nDCG", "ranking_all": "MAP", "truth": "errors",
    },
    "optimizer": {
        "adagrad": "dense", "adam": "dense", "adamw": "dense", "lazy_adagrad": "rows",
        "lazy_adam": "rows", "lazy_adamw": "rows", "lazy_sgd": "rows",
        "natural_gradient": "default", "sgd": "dense",
    },
    "trainer": {"clax2025": "published", "counting": "closed form", "default": "gradients", "em": "expectations"},
    "logger": {"console": "terminal", "jsonl": "file", "wandb": "online"},
    "launcher": {"accelerators": "devices", "basic": "one by one", "ray": "cluster", "slurm": "cluster"},
    "search": {"grid": "all", "random": "uniform", "tpe": "Bayesian"},
    "context": {"both": "all", "document": "seen", "list": "clicks"},
    "debug": {"fast": "seconds"},
    "sweep": {
        "compression": "tables", "learning_rate": "AdamW", "models": "all", "seeds": "three",
        "towers": "features", "tune": "search",
    },
    "variant": {"fast": "optimizer", "letor_defaults": "users", "trusting": "users"},
    "vectors": {"documents": "rows", "features": "linear", "queries": "rows"},
}  # fmt: skip
"""What options are, in a word or two."""
_ROLES = (
    "Any role takes any tower: attraction=deep. The roles: attraction, satisfaction, examination, continuation, "
    "true_positive, false_positive."
)
_OF_RANKERS = ("loss", "debias", "propensity")
"""Groups whose few options the default model does not read."""
_KEYS = "keys"
_MANY = 20
"""Options beyond which they are listed by `--help GROUP` alone."""
_BRIEF = ("experiment",)
"""Groups whose options are listed there alone, however few."""
_HIDDEN = ("hydra", "reproduction", "local")
"""Groups that users do not choose from, or that other groups choose."""


def prints(given: CommandLine) -> bool:
    """Prints the version or the help on request.

    Args:
        given: The words of the command.

    Returns:
        Whether it was one of them.
    """
    if given.version:
        sys.stdout.write(f"{VERSION}\n")
    elif given.options.help:
        sys.stdout.write(f"{_help_text(given)}\n")
    return given.version or given.options.help


def _help_text(given: CommandLine) -> str:
    """Returns examples and groups with their options; of a topic what there is to choose, and keys with comments.

    Args:
        given: The words of the command, whose overrides the keys follow.

    Raises:
        ConfigError: There is no such topic.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*given.searchpath, *given.overrides], return_hydra_config=True)
        sources = [*GlobalHydra.instance().config_loader().get_sources()]
        sources += [
            FileConfigSource("command-line", f"file://{folder}") for folder in given.folders
        ]
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        names = {name for source in sources for name in source.list("", ObjectType.GROUP)}
        groups = [*_GROUPS, *sorted(names - {*_GROUPS, *_HIDDEN})]
        if given.topic == _KEYS:
            return "\n".join(_keys(config, width))
        if given.topic is not None:
            if given.topic not in groups:
                meant = did_you_mean(given.topic, [*groups, _KEYS])
                raise ConfigError(
                    f"--help {given.topic}: choose from {', '.join([*groups, _KEYS])}.{meant}"
                )
            chosen = str(config.hydra.runtime.choices.get(given.topic))
            return "\n".join(_topic(given.topic, _options(given.topic, sources), chosen, width))
        text = "\n".join(
            line for group in groups for line in _group(group, [*_options(group, sources)], width)
        )
        return (
            string.Template(config.hydra.help.template).substitute(APP_CONFIG_GROUPS=text).rstrip()
        )


def _options(group: str, sources: Sequence[ConfigSource]) -> dict[str, list[str]]:
    """The lines of each option's file by its name."""
    found: dict[str, list[str]] = {}
    for source in sources:
        if source.scheme() == "file" and source.is_group(group):
            for name in source.list(group, ObjectType.CONFIG):
                file = Path(source.path) / group / f"{name}.yaml"
                found[name] = file.read_text().splitlines() if file.is_file() else []
    return dict(sorted(found.items()))


def _group(group: str, options: Sequence[str], width: int) -> Iterator[str]:
    """A group, and its options with a word for each."""
    words = _WORDS.get(group, {})
    listed = [f"{name} ({words[name]})" if name in words else name for name in options]
    if len(listed) > _MANY or group in _BRIEF:
        listed = [f"{len(listed)}, see --help {group}"]
    text = f"{_GROUPS[group]}: " if group in _GROUPS else ""
    text += ", ".join(each.replace(" ", "\xa0") for each in listed)
    first, indent = f"  {group:<{_INDENT - 2}}", " " * _BELOW
    filled = textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
    )
    yield from filled.replace("\xa0", " ").splitlines()


def _topic(
    group: str, options: Mapping[str, Sequence[str]], chosen: str, width: int
) -> Iterator[str]:
    """What each option is, and the keys of the one that the configuration has, of all where it has none."""
    yield f"{group}: {_GROUPS.get(group, '')}".rstrip(": ")
    yield ""
    indent = max(map(len, options), default=0) + 6
    for name, lines in options.items():
        start = f"  {name:<{indent - 4}}  "
        about = " ".join(_about(lines))
        below = " " * len(start)
        yield from textwrap.wrap(about, width, initial_indent=start, subsequent_indent=below) or [
            start.rstrip()
        ]
    if group == TOWERS:
        yield ""
        yield from textwrap.wrap(_ROLES, width)
    for name in [chosen] if chosen in options else options if group in _OF_RANKERS else ():
        if lines := [line for line in options[name] if not line.startswith(("#", "_target_"))]:
            yield f"\nKeys of {group}={name}:\n"
            for line in lines:
                yield from _commented(line, width)


def _about(lines: Sequence[str]) -> Iterator[str]:
    """What the head of a file says besides commands, up to the end of the first sentence."""
    for line in lines:
        if not line.startswith("#"):
            return
        text = line.lstrip("# ")
        if not text.startswith(("clickexp", "@package", "hydra", "dataset.")):
            yield text
            if text.endswith("."):
                return


def _commented(line: str, width: int) -> Iterator[str]:
    """A line of YAML; a comment for which there is no room goes below."""
    key, sign, comment = line.partition(" # ")
    if not sign or len(line) <= width:
        yield line
        return
    yield key.rstrip()
    indent = " " * (len(key) - len(key.lstrip()) + 4) + "# "
    yield from textwrap.wrap(comment, width, initial_indent=indent, subsequent_indent=indent)


def _keys(config: DictConfig, width: int) -> Iterator[str]:
    """Keys at the root with their values and comments."""
    yield "Keys, set by key=value:\n"
    for line in (CONF / "config.yaml").read_text().splitlines():
        key, colon, rest = line.partition(": ")
        if colon and key.isidentifier() and key in config and " # " in rest:
            value = OmegaConf.to_container(config, resolve=False)[key]  # pyright: ignore[reportCallIssue, reportArgumentType, reportOptionalSubscript]  # a mapping
            shown = (
                "null"
                if value is None
                else str(value).lower()
                if isinstance(value, bool)
                else str(value)
            )
            yield from _commented(f"{key}: {shown} # {rest.partition(' # ')[2]}", width)
    yield "\nclickexp --help GROUP shows those of a group, clickexp --cfg job all of them."
