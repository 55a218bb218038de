"""Folders of runs that were not trained: random parameters, saved as a run saves them."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from places import ROOT
from small_logs import fill_tables

from clickexp.data.encoding import Encoding
from clickexp.experiment.build import build_model
from clickexp.experiment.instantiate import constructor, model_constructor
from clickexp.experiment.values import compose_values
from clickexp.runs.run import Origin, Run
from clickexp.runs.sources import sources
from clickexp.runs.store import ENCODING, IDS
from clickexp.training.checkpoint import save_model


def new_run(folder, *overrides, fill=fill_tables):
    """Writes configuration and model, changed by `fill`, into a new folder, and returns it."""
    overrides = ["seed=1", f"cache_dir={folder.parent / 'cache'}", *overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose_values(
            compose("config", ["logger=console", "progress=off", *overrides]), overrides
        ).values
    dataset = constructor(config["dataset"], "dataset")()
    model = fill(build_model(model_constructor(config), dataset, 1))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    save_model(model, folder / "model.npz")
    if dataset.names is not None:
        dataset.names.tofile(folder / IDS)
    if dataset.encoding != Encoding():
        (folder / ENCODING).write_text(dataset.encoding.model_dump_json())
    fingerprint = dataset.first(config["max_sessions"]).fingerprint()
    origin = Origin(sources=sources(config), fingerprint=fingerprint, directory=str(Path.cwd()))
    Run(
        model=model.name,
        dataset=dataset.name,
        test_set="none",
        test={"ll": None},
        origin=origin,
        folder=folder,
    ).write()
    return folder
