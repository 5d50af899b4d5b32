"""Modules of JavaScript as one script, so that a page needs no file beside it.

Each module becomes a function that returns what it exports, in the order in which they need each
other. The modules are the project's own and keep to a few forms, which are checked: imports of
named things on one line, exports in front of declarations.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_IMPORT = re.compile(r'^import \{ ([^}]*) \} from "(\.[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def as_one_script(entry: str, read: Callable[[str], str]) -> str:
    """Put a module and all that it imports into one script.

    Args:
        entry: Path of the module to run.
        read: Gives the text of a module by its path.

    Raises:
        ValueError: A module has an import or export of another form, modules import each other in
            a circle, or a text cannot stand in a page.
    """
    numbers: dict[str, int] = {}
    pieces: list[str] = []

    def add(path: str, above: tuple[str, ...]) -> int:
        if path in above:
            raise ValueError(f"{' → '.join((*above, path))}: modules import each other in a circle")
        if path in numbers:
            return numbers[path]

        def imported(match: re.Match[str]) -> str:
            number = add(_resolved(path, match[2]), (*above, path))
            return f"const {{ {match[1].replace(' as ', ': ')} }} = module{number};"

        text = _IMPORT.sub(imported, read(path))
        names = _EXPORT.findall(text)
        text = _EXPORT.sub("", text)
        other = _OTHER.search(text)
        if other is not None:
            raise ValueError(f"{path}: cannot be put into a page: {other[0]}")
        if re.search(r"</script|<!--", text, re.IGNORECASE):
            raise ValueError(f"{path}: '</script' and '<!--' would end the page's script")
        numbers[path] = len(numbers)
        pieces.append(
            f"const module{numbers[path]} = (() => {{ // {path}\n{text}\n"
            f"return {{ {', '.join(names)} }};\n}})();"
        )
        return numbers[path]

    add(entry, ())
    return '"use strict";\n' + "\n".join(pieces) + "\n"


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
