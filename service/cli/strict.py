"""Commands that refuse an option given twice, where the last one would silently count."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from meshwright.service.requests.fields import OPTIONS


class RepeatedError(typer.BadParameter):
    """An option of one value is given twice."""

    def __init__(self, message: str, option: str, ctx: Any) -> None:  # noqa: ANN401 - Typer's own type
        self.option = option
        super().__init__(message, ctx=ctx)


class StrictCommand(TyperCommand):
    """A command whose options of one value are given once."""

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
