"""YAML from outside, read as strictly as JSON: no aliases, no repeated keys, and 5e10 is a number.

The grammar is YAML 1.1 as PyYAML's safe loader has it; numbers with an exponent are read as in YAML 1.2
(section 10.3.2), because links are written so.
"""

from __future__ import annotations

import re

import yaml
from yaml.reader import ReaderError

from profiles.errors import InvalidProblemError
from service.json_input import MAX_DEPTH, shown

_END = "\n"
_FLOAT = "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z")


class _Loader(yaml.SafeLoader):
    """The safe loader, with YAML 1.2's floats."""


_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def read_yaml(text: str) -> object:
    """What the one document in ``text`` holds; None when it is empty.

    Raises:
        InvalidProblemError: not YAML, more than one document, an alias or a repeated key.
    """
    try:
        alias = next((token for token in yaml.scan(text) if isinstance(token, yaml.AliasToken)), None)
        if alias is not None:
            where = f"line {alias.start_mark.line + 1}"
            raise InvalidProblemError.of("", f"YAML aliases are not accepted; they can blow up ({where})")
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(node)
        return _value(loader, node)
    except RecursionError:
        raise InvalidProblemError.of("", f"nested deeper than {MAX_DEPTH} levels") from None
    except yaml.YAMLError as fault:
        raise InvalidProblemError.of("", f"not YAML: {_reason(fault, text)}") from None
    except ValueError as fault:  # a date or number that there is not: 2026-02-31
        raise InvalidProblemError.of("", f"not YAML: {shown(str(fault))}") from None


def _value(loader: _Loader, node: yaml.Node) -> object:
    """The plain value of a document."""
    value: object = loader.construct_document(node)
    return value


def _refuse_repeated_keys(root: yaml.Node) -> None:
    """Refuse a mapping in which a key stands twice; PyYAML keeps the last one silently."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    where = f"line {key.start_mark.line + 1}"
                    raise InvalidProblemError.of("", f'the key "{shown(key.value)}" is repeated ({where})')
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
                stack.append(value)


def _reason(fault: yaml.YAMLError, text: str) -> str:
    """What is wrong and where, on one line."""
    mark = getattr(fault, "problem_mark", None)
    if isinstance(fault, ReaderError):
        return f"{shown(fault.reason)} (line {text.count(_END, 0, fault.position) + 1})"
    words = getattr(fault, "problem", None) or getattr(fault, "reason", None) or "it cannot be read"
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"{shown(words)}{where}"
