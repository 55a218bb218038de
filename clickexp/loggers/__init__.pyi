from .base import Logger as Logger
from .base import RunInfo as RunInfo
from .console import ConsoleLogger as ConsoleLogger
from .fanout import FanOut as FanOut
from .jsonl import JsonlLogger as JsonlLogger
from .mlflow import MlflowLogger as MlflowLogger
from .tensorboard import TensorBoardLogger as TensorBoardLogger
from .wandb import WandbLogger as WandbLogger
