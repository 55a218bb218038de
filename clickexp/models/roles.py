"""Roles as data: a model class states which towers it has and what each is by default; the base class builds them."""

import dataclasses
import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import InitVar
from typing import Any, ClassVar, NamedTuple

from flax import nnx

from clickexp.errors import ConfigError
from clickexp.parameters.base import (
    Columns,
    Features,
    Parameter,
    ParameterConfig,
    Sizes,
    Source,
    build_parameter,
)
from clickexp.parameters.context import ContextParameterConfig, add_context
from clickexp.parameters.embedding import EmbeddingParameterConfig
from clickexp.parameters.layouts import LayoutParameterConfig
from clickexp.utils.batches import Limit
from clickexp.utils.bounds import MOST_IDS, Pairs, PositiveInt, Probability, check_numbers

_BY_RANK = ("examination", "true_positive", "false_positive")
"""Roles of examination by rank, which layouts of pages may change."""


class Role:
    """A tower of a model: an argument of its constructor, and the built tower as its attribute.

        attraction: Role = Role(EmbeddingParameterConfig())

    The argument is a config, a built parameter, a module, its constructor, or None for the default.

    Args:
        default: Config of the tower that is built for None.
        plays: Name of the role, if it is not that of the argument: `ctr` plays attraction.
    """

    def __init__(self, default: ParameterConfig, plays: str | None = None):
        self.default, self.plays = default, plays

    @typing.overload
    def __get__(self, model: None, owner: type) -> None: ...

    @typing.overload
    def __get__(self, model: object, owner: type) -> Parameter: ...

    def __get__(self, model: object, owner: type) -> Parameter | None:
        """The default of the constructor's argument; the attribute of a model is in the model itself."""
        if model is None:
            return None
        raise AttributeError("this tower is not built yet; Model.__post_init__ builds it")

    # what the argument may be; at run time a setter would come before the attribute
    if typing.TYPE_CHECKING:

        def __set__(self, model: object, source: Source) -> None: ...


@typing.dataclass_transform(field_specifiers=(dataclasses.field,))
class _DeclaresRoles(nnx.Module):
    """Makes a dataclass of each subclass: annotated attributes are the arguments of its constructor, in their order.

    A class that defines `__init__` keeps it.

    Attributes:
        roles: Default towers by argument, of the class and those that it derives from.
        plays: Names of their roles by argument.
    """

    roles: ClassVar[Mapping[str, ParameterConfig]] = {}
    plays: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: bool) -> None:
        super().__init_subclass__(**options)
        cls.roles, cls.plays = {**cls.roles}, {**cls.plays}
        for name, role in vars(cls).items():
            if isinstance(role, Role):
                cls.roles[name], cls.plays[name] = role.default, role.plays or name
        if not inspect.get_annotations(cls):
            return  # and so inherits the constructor
        dataclasses.dataclass(eq=False, repr=False)(cls)
        hints = cls.__init__.__annotations__
        for name, hint in hints.items():  # what the arguments may be, for those who check them
            hints[name] = (
                Source if name in cls.roles else hint.type if isinstance(hint, InitVar) else hint
            )


class Index(NamedTuple):
    """A key that a model adds to the batch for its towers to look up: leading * radix + trailing, trailing < radix.

    Attributes:
        leading: Key of the batch that is the leading digit.
        largest: Largest value of that key.
        radix: Number of values of the trailing digit.
    """

    leading: str
    largest: int
    radix: int

    def _limit(self, largest: int, role: str) -> Limit:
        """Returns the largest leading digit of a tower that has parameters up to an index."""
        return Limit(self.leading, (largest - self.radix + 1) // self.radix, role)


class HasRoles(_DeclaresRoles):
    """A module whose roles are built from the arguments of its constructor, by keyword unless a class repeats them.

    Args:
        positions: Largest position.
        query_doc_pairs: Largest query-document id.
        click_rate: Clicks per document of the training sessions, where the logits of some towers start.
        features: Length of each kind of feature vector, by its key in the batch.
        columns: Largest value of each column of integers, by its key in the batch.
        standardized: Keys of feature vectors that the data has standardised.
        rngs: Streams of random numbers for initial values.
    """

    positions: PositiveInt | None = dataclasses.field(default=None, kw_only=True)
    query_doc_pairs: Pairs | None = dataclasses.field(default=None, kw_only=True)
    click_rate: InitVar[Probability | None] = dataclasses.field(default=None, kw_only=True)
    features: InitVar[Features] = dataclasses.field(default=None, kw_only=True)
    columns: InitVar[Columns] = dataclasses.field(default=None, kw_only=True)
    standardized: InitVar[Collection[str]] = dataclasses.field(default=(), kw_only=True)
    rngs: InitVar[nnx.Rngs | None] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(
        self,
        click_rate: Probability | None,
        features: Features,
        columns: Columns,
        standardized: Collection[str],
        rngs: nnx.Rngs | None,
    ) -> None:
        arguments = vars(self)
        check_numbers(type(self).__init__, arguments)
        if rngs is None:
            if self.roles or type(self).setup is not HasRoles.setup:
                raise TypeError(f"{type(self).__name__} needs rngs=nnx.Rngs(SEED)")
            return
        most = {key: (index.largest + 1) * index.radix - 1 for key, index in self.indices().items()}
        for key, largest in most.items():
            if largest > MOST_IDS:
                raise ValueError(
                    f"{key} goes up to {largest:,}, and at most {MOST_IDS:,} fits: build a smaller model"
                )
        sizes = Sizes(
            self.query_doc_pairs,
            self.positions,
            click_rate,
            features,
            columns,
            most,
            standardized,
        )
        for role, default in self.roles.items():
            tower = build_parameter(role, arguments.get(role), default, sizes, rngs=rngs)
            setattr(self, role, nnx.data(tower))  # data, though the argument was none
        self.setup(rngs)
        self.build_parts(sizes, rngs)

    def setup(self, rngs: nnx.Rngs) -> None:
        """Builds what a model has besides its roles; called once these are built."""

    def build_parts(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        """Builds what needs the sizes of the data; called after `setup`.

        Args:
            sizes: Sizes of the data.
            rngs: Streams of random numbers for initial values.
        """

    @classmethod
    def context_role(cls, context: ContextParameterConfig) -> str | None:
        """Returns the role whose logit context is added to; None where the model does not have it."""
        wanted = (context.role,) if context.role else ("examination", "attraction")
        return next((role for role in wanted if role in cls.plays.values()), None)

    @classmethod
    def with_context(
        cls, settings: Mapping[str, Any], context: ContextParameterConfig
    ) -> dict[str, Any]:
        """Returns arguments of the constructor that add what came before in the search session to a logit.

        Args:
            settings: Arguments of the constructor.
            context: The offset that is added.

        Raises:
            ConfigError: The model has no tower that it can be added to.
        """
        role = cls.context_role(context)
        if role is None:
            raise no_context_role(cls.__name__, context, cls.plays.values())
        argument = next(name for name, played in cls.plays.items() if played == role)
        tower = settings.get(argument)
        return {
            **settings,
            argument: add_context(cls.roles[argument] if tower is None else tower, context),
        }

    @classmethod
    def with_layouts(cls, settings: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
        """Returns arguments of the constructor with examination that may differ between layouts.

        Args:
            settings: Arguments of the constructor.
            columns: Columns of which each combination of values is a layout.

        Raises:
            ConfigError: The model has no tower of examination by rank.
        """
        arguments = [name for name, role in cls.plays.items() if role in _BY_RANK]
        if not arguments:
            raise ConfigError(
                f"examination_by={list(columns)}: {cls.__name__} has no tower of examination by rank. Choose "
                "model=pbm, ubm, trust_bias or two_towers, or leave it out; a ranker takes propensities by layout from "
                "such a run, by propensity=run"
            )
        posterior = "none" if _are_points(settings) else "normal"
        towers = {name: cls._settings_of(name, settings, columns) for name in arguments}
        of_layouts = {
            name: LayoutParameterConfig(tower, columns, posterior) for name, tower in towers.items()
        }
        return {**settings, **of_layouts}

    @classmethod
    def _settings_of(
        cls, name: str, settings: Mapping[str, Any], columns: Sequence[str]
    ) -> ParameterConfig:
        """Returns the settings of a tower; ConfigError for a tower that is built already."""
        tower = cls.roles[name] if settings.get(name) is None else settings[name]
        if not isinstance(tower, ParameterConfig):
            raise ConfigError(
                f"examination_by={list(columns)} takes the settings of a tower of {name}, not {tower!r}"
            )
        return tower

    def indices(self) -> dict[str, Index]:
        """Returns the keys that the model itself adds to the batch."""
        return {}

    def limits(self) -> list[Limit]:
        """Returns the largest ids and positions that the towers have parameters for; larger ones are an error."""
        indices = self.indices()
        limits = [
            indices[key]._limit(largest, role) if key in indices else Limit(key, largest, role)
            for role, tower in vars(self).items()
            if isinstance(tower, Parameter)
            for key, largest in tower.limits().items()
        ]
        if indices and self.positions is not None:  # of which indices are made
            limits.append(Limit("positions", self.positions, next(iter(self.roles))))
        return limits


def _are_points(settings: Mapping[str, Any]) -> bool:
    """Returns whether settings have tables, and all of them keep point estimates."""
    tables = [tower for tower in settings.values() if isinstance(tower, EmbeddingParameterConfig)]
    return bool(tables) and all(table.posterior == "none" for table in tables)


def no_context_role(
    model: str, context: ContextParameterConfig, roles: Collection[str]
) -> ConfigError:
    """The error for a model without a tower that context can be added to.

    Args:
        model: Name of its class.
        context: The context.
        roles: Those of the towers that it has.
    """
    if context.role is None:
        return ConfigError(
            f"{model} takes no tower that context can be added to; leave it or the context out"
        )
    choice = f"it takes {', '.join(sorted(roles)) or 'none'}"
    return ConfigError(
        f"context.role={context.role}: {model} takes no tower of {context.role} ({choice}); choose another"
    )
