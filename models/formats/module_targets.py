"""Lists of modules as compressed-tensors writes them: names, classes, and regular expressions after `re:`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from blockexport.models.config.config_fields import RawFields
from blockexport.models.strict_json import shown

_REGEX = "re:"
_MOST_EXPRESSIONS, _LONGEST, _MOST_REPEATS = 100, 200, 4
_LINEAR, _EMBEDDING = "Linear", "Embedding"


@dataclass(frozen=True)
class Targets:
    """Modules of a list. An expression has to match from the beginning of a name, and not to its end.

    Attributes:
        names: of modules, or of their classes in PyTorch.
        expressions: what stands after `re:`, compiled.
    """

    names: frozenset[str]
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def read(cls, fields: RawFields, key: str, *, required: bool = True) -> Targets:
        """The list under `key`; an empty one where it may be absent or null, and is.

        Raises:
            UsageError: it is no list of text, or an expression is invalid, or one that could take very long.
        """
        listed = fields.get(key)
        if listed is None and not required:
            listed = []
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise fields.error(f"{key} is {shown(listed)}; it must be a list of names")
        texts = [item.removeprefix(_REGEX) for item in listed if item.startswith(_REGEX)]
        if len(texts) > _MOST_EXPRESSIONS:
            raise fields.error(f"{key} has {len(texts)} regular expressions; at most {_MOST_EXPRESSIONS} are read")
        expressions = tuple(_compiled(fields, key, text) for text in texts)
        return cls(frozenset(item for item in listed if not item.startswith(_REGEX)), expressions)

    def rank(self, module: str) -> int | None:
        """How a module is meant: 0 by its name, 1 by an expression, 2 by its class; None where it is not."""
        if module in self.names:
            return 0
        if any(expression.match(module) for expression in self.expressions):
            return 1
        return 2 if _class_of(module) in self.names else None


def _class_of(module: str) -> str:
    return _EMBEDDING if module.endswith("embed_tokens") else _LINEAR


def _compiled(fields: RawFields, key: str, text: str) -> re.Pattern[str]:
    """An expression of a stranger. Few repeats, and none of a group, cannot backtrack for long in a module's name."""
    repeats = len(re.findall(r"(?<!\\)[*+{]", text))
    if len(text) > _LONGEST or repeats > _MOST_REPEATS or re.search(r"(?<!\\)\)[*+{]", text):
        raise fields.error(
            f"{key} has the regular expression {shown(text)}: it is not run, since it could take very long. At most "
            f"{_LONGEST} characters with {_MOST_REPEATS} repeats are, and no repeat of a group"
        )
    try:
        return re.compile(text)
    except re.error as error:
        raise fields.error(f"{key} has the regular expression {shown(text)}, which is none: {error}") from error
