"""Commands whose runs are stand-ins of milliseconds, in processes of their own or in this one."""

import csv
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import traceback
import types
import zipfile
from pathlib import Path

from clickexp.sweeps.backends.base import BasePool, Slot

SITE = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import stand_in
stand_in.replace_modules()
"""
BASIC = ["launcher=basic"]
MODULES = (
    *(f"clickexp.experiment.{name}" for name in ("run", "resolve", "instantiate")),
    *("clickexp.loggers.wandb", "wandb", "wandb.sdk", "wandb.sdk.launch"),
)
ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "conf/config.yaml"
MEMORY = "RESOURCE_EXHAUSTED: Out of memory allocating 80 bytes."


def run_experiment(cfg, folder, sweep=None, overrides=()):
    """Notes the seed, does what the file `does` has for it, and leaves what a run leaves."""
    from omegaconf import OmegaConf

    from clickexp.runs.hashing import config_hash
    from clickexp.runs.run import Origin, Run
    from clickexp.runs.sources import sources
    from clickexp.runs.store import CHECKPOINT, MODEL

    with open("ran", "a") as file:
        file.write(f"{cfg.seed}\n")
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        Path("continued").write_text(checkpoint.read_text())
    loss = cfg.seed / 10 + (cfg.trainer.epochs == 7)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(
            json.dumps({"epoch": n, "val/loss": loss * 3 / n}) + "\n" for n in (1, 2, 3)
        )
    does = json.loads(Path("does").read_text()).get(str(cfg.seed))
    act(does, checkpoint)
    config = OmegaConf.to_container(cfg, resolve=True)
    parts = {
        "val": {"loss": loss, cfg.optimized_metric.removeprefix("val/"): loss},
        "test": {"ll": -loss},
    }
    result = Run(
        model="stand-in",
        dataset="clicks",
        test_set="stand-in",
        **parts,
        environment={"device": "stand-in"},
        folder=folder,
        config_hash=config_hash(config),
        origin=Origin(sources=sources(config), fingerprint="", directory=str(Path.cwd())),
    )
    with zipfile.ZipFile(folder / MODEL, "w") as model:
        model.writestr("table.npy", bytes(1000))
    result.write()
    if does == "stop late":
        raise KeyboardInterrupt
    return result


def act(does, checkpoint):
    from clickexp.errors import ConfigError

    match does:
        case "raise":
            raise ConfigError("wrong in this one")
        case "kill":
            os.kill(os.getpid(), 9)
        case "memory":
            bytearray(1 << 60)
        case "device":
            raise RuntimeError(MEMORY)
        case "disk":
            sync = os.fsync

            def full(descriptor):
                os.fsync = sync
                raise OSError(28, "No space left on device")

            os.fsync = full
        case "stop":
            checkpoint.write_text(str(checkpoint.parent))
            raise KeyboardInterrupt
        case "wait":
            while not Path("go").exists():
                time.sleep(0.02)
        case "hang":
            checkpoint.write_text(str(checkpoint.parent))
            print(f"hanging {os.getpid()}.", flush=True)
            time.sleep(300)
        case {"dies": device}:
            if os.environ["CUDA_VISIBLE_DEVICES"] == device:
                Path("dead").write_text(device)
                os.kill(os.getpid(), 9)
        case {"move": here, "to": there}:
            Path(there).parent.mkdir(parents=True, exist_ok=True)
            Path(here).rename(there)


def built(node, key):
    """Builds a part of a search; no loggers."""
    from hydra.utils import instantiate

    return {} if key == "logger" else instantiate(node)


def replace_modules():
    """In a new process: what runs is the stand-in, and nothing imports JAX."""
    for name in MODULES:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["clickexp.experiment.run"].run_experiment = run_experiment
    sys.modules["clickexp.experiment.resolve"].resolve = lambda *_: None
    settings = dataclasses.make_dataclass("Settings", [("seed", int)])
    sys.modules["clickexp.experiment.resolve"].Settings = settings
    sys.modules["clickexp.experiment.instantiate"].directions = lambda config: {}
    sys.modules["clickexp.experiment.instantiate"].instantiate = built


class HerePool(BasePool):
    """Calls each job in this process; what it raises is in its log."""

    def __init__(self, workers=None, jobs_per_device=1, job_minutes=None):
        super().__init__([Slot(f"here:{number}") for number in range(workers or 1)], job_minutes)

    def _submit(self, job, function, arguments):
        from hydra.core.global_hydra import GlobalHydra

        job.folder.mkdir(parents=True, exist_ok=True)
        GlobalHydra.instance().clear()
        job.returncode, job.end = 0, "exit code 0"
        try:
            function(*arguments)
        except Exception:
            job.log.write_text(traceback.format_exc())
            job.returncode, job.end = 1, "exit code 1"
        return job

    def has_ended(self, handle):
        return True

    def outcome(self, handle):
        return handle.end

    def cancel(self, handles):
        pass


class Place:
    """A folder with a configuration of the real keys at the root and few below them."""

    logging = "terminal", "quiet"

    def __init__(self, folder):
        self.folder = folder
        self.configure()
        self.does({})

    def configure(self, **hydra):
        """hydra: keys that the configuration gives Hydra."""
        import yaml

        config = yaml.safe_load(REAL.read_text())
        names = "override hydra/job_logging", "override hydra/hydra_logging"
        groups = {"launcher": "basic", "search": None, "logger": "jsonl"}
        chosen = [
            {name: option}
            for name, option in [*groups.items(), *zip(names, self.logging, strict=True)]
        ]
        config["hydra"]["run"]["dir"] = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"
        config["hydra"] = {
            key: value for key, value in config["hydra"].items() if key != "help"
        } | hydra
        config |= {
            "defaults": ["_self_", *chosen],
            "dataset": {"path": None},
            "trainer": {"epochs": 5},
        }
        config |= {
            "model": {"_target_": "some.Model"},
            "optimizer": {"learning_rate": 0.1},
            "metric": {},
            "report": False,
        }
        (self.folder / "conf").mkdir(exist_ok=True)
        (self.folder / "conf/small.yaml").write_text(yaml.safe_dump(config))

    def words(self, *arguments):
        return ["--config-dir", str(self.folder / "conf"), "--config-name", "small", *arguments]

    def does(self, seeds):
        """What runs of these seeds do. Those that start meanwhile see all of it or nothing."""
        (self.folder / "does.new").write_text(json.dumps(seeds))
        (self.folder / "does.new").replace(self.folder / "does")

    def sweep(self, *arguments):
        return self.ended("-m", *arguments)

    def ran(self):
        """The seeds that ran since this was asked for the last time; none may be about to."""
        file = self.folder / "ran"
        seeds = sorted(map(int, file.read_text().split())) if file.exists() else []
        file.unlink(missing_ok=True)
        return seeds

    def rows(self, sweep):
        """sweep.csv, which sweep.parquet must agree with."""
        import polars as pl

        folder = self.folder / sweep
        with (folder / "sweep.csv").open() as file:
            rows = list(csv.DictReader(file))
        table = pl.read_parquet(folder / "sweep.parquet")
        assert [str(number) for number in table["job"]] == [row["job"] for row in rows]
        assert table["status"].to_list() == [row["status"] for row in rows]
        return rows


class ProcessPlace(Place):
    """Commands are processes, in which everything imports the stand-in."""

    def __init__(self, folder):
        super().__init__(folder)
        (folder / "sitecustomize.py").write_text(SITE)
        # the code beside these tests, wherever another is installed
        path = os.pathsep.join([str(folder), str(ROOT)])
        self.env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "120"}

    def start(self, *arguments):
        from processes import Process

        command = [sys.executable, "-m", "clickexp", *self.words(*arguments)]
        pipes = dict(
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        return Process(command, cwd=self.folder, env=self.env, **pipes)

    def ended(self, *arguments):
        """Exit code and output."""
        with self.start(*arguments) as process:
            output, _ = process.communicate(timeout=120)
            return process.returncode, output

    def wait_for(self, file, seconds=30):
        """The process of the job that hangs, by its log."""
        from processes import read, wait_until

        found = wait_until(lambda: re.search(r"hanging (\d+)\.", read(self.folder / file)), seconds)
        return int(found[1])


def statuses(rows):
    return [row["status"] for row in rows]
