"""Commands that refuse an option given twice, where the last one would silently count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import typer
from typer.core import TyperCommand

from meshwright.service.requests.fields import OPTIONS


class RepeatedError(typer.BadParameter):
    """An option of one value is given twice."""

    def __init__(self, message: str, option: str, ctx: Any) -> None:  # noqa: ANN401 - Typer's own type
        self.option = option
        super().__init__(message, ctx=ctx)


class _Converter:
    """Typer's converter of a parameter, made only for a value that needs it.

    Pydantic takes 50 ms to make one.
    """

    def __init__(self, parameter: Any) -> None:  # noqa: ANN401 - Typer's own type
        self._made = parameter.get_runtime_param

    def __call__(self) -> Self:
        return self

    def coerce(self, value: object, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - the same
        """Return a value as the parameter takes it."""
        kind = param.type_descriptor
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is kind.annotation and (value == param.default or not kind.is_ranged):
            return value
        return self._made().coerce(value, param=param, ctx=ctx)


def convert_where_needed(parameters: Iterable[Any]) -> None:
    """Skip Typer's converter for values that are absent or have their type."""
    for parameter in parameters:
        if not isinstance(parameter.get_runtime_param, _Converter):
            parameter.get_runtime_param = _Converter(parameter)


class StrictCommand(TyperCommand):
    """A command whose options of one value are given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer's own types
        """Parse the command line."""
        convert_where_needed(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def make_parser(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's own types
        """Return the parser of the command line, which counts the options."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:  # noqa: ANN401 - the same
            values, rest, order = parse(args)
            for index, one in enumerate(order):
                if one in order[:index] and not (_may_repeat(one) or ctx.resilient_parsing):
                    raise RepeatedError(_twice(self, one), one.opts[-1], ctx)
            return values, rest, order

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


def _may_repeat(one: Any) -> bool:  # noqa: ANN401 - the same
    return bool(one.param_type_name != "option" or one.multiple or one.count or one.is_eager)


def _twice(command: Any, option: Any) -> str:  # noqa: ANN401 - the same
    shared = option.name in getattr(command.callback, "of_the_problem", ())
    row = OPTIONS.get(option.name) if shared else None
    names = " or ".join((*option.opts, *option.secondary_opts))
    hint = row.option.twice if row is not None and row.option is not None else ""
    return f"{names} is given twice. {hint or 'Give it once'}"
