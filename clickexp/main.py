"""The command `clickexp`: composes a configuration and runs it. Heavy imports wait until a run starts."""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from clickexp.errors import UserError

FULL_ERROR = "HYDRA_FULL_ERROR"
PACKAGE = Path(__file__).resolve().parent
CONF = next((str(conf) for conf in (PACKAGE / "conf", PACKAGE.parent / "conf") if conf.is_dir()), None)


@hydra.main(version_base="1.3", config_path=CONF, config_name="config")
def run(cfg: DictConfig) -> float | None:
    from clickexp.experiment import run_experiment

    job = HydraConfig.get()
    sweep = Path(job.sweep.dir).name if job.mode is RunMode.MULTIRUN else None
    return run_experiment(cfg, Path(job.runtime.output_dir), sweep)


def main() -> None:
    """One clear line for what the user can mend; everything else with its trace. HYDRA_FULL_ERROR=1 shows all traces."""
    if os.environ.get(FULL_ERROR) == "1":
        return run()
    os.environ[FULL_ERROR] = "1"  # lets errors through to here, where they are told in one line
    try:
        run()
    except (HydraException, OmegaConfBaseException, UserError) as error:
        print(f"clickexp: {' '.join(str(error).split())} ({FULL_ERROR}=1 shows the trace)", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
