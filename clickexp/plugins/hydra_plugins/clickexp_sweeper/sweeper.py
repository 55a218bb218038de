"""hydra/sweeper=search, where Hydra looks for its plugins. What it does is in clickexp.sweeps.search."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from clickexp.errors import UserError, install


@dataclass
class SearchSweeperConf:
    _target_: str = "hydra_plugins.clickexp_sweeper.sweeper.SearchSweeper"
    params: dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store(
    group="hydra/sweeper", name="search", node=SearchSweeperConf, provider="clickexp"
)


class SearchSweeper(Sweeper):
    """Trials that Optuna asks for, one at a time on each free device. params: overrides, those of presets."""

    def __init__(self, params: dict[str, str]) -> None:
        super().__init__()
        self.params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Any:
        try:
            from clickexp.sweeps.search import search
        except ModuleNotFoundError as error:
            if error.name != "optuna":
                raise
            raise UserError(f"search=... needs Optuna: {install('search')}") from error
        given = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        return search(self.hydra_context, self.task_function, self.config, given)
