"""Text that is safe on a terminal: without control characters, and in the stream's encoding.

Streams may lack characters that Stepscope prints, such as a pipe on Windows. They get what comes
closest: `#` for a bar, `us` for microseconds. What has no such stand-in, as in a name from a file,
is escaped. Names of kernels are cut to a width.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Sequence
from typing import TextIO

_IDENTIFIER = re.compile(r"[A-Za-z_][\w:]*")
_TELLS_NOTHING = re.compile(
    r"u?int(\d+_t)?|unsigned|signed|long|short|char|bool|true|false|float|double|const|void|half"
    r"|__half2?|__nv_bfloat16\d?|Half|BFloat16|bf16|size_t|u?l+|ul|enum|class|struct|T\d?"
    r"|lambda|operator|array|Array|tuple|pair|integral_constant|(gpu_)?kernel_impl(_nocast)?"
    r"|gpu_kernel_\w+|legacy_gpu_\w+|func_wrapper_t|ReduceOp|TensorListMetadata"
    r"|\w*OffsetCalculator|(TensorI|_i)terator\w*|TensorIteratorBase|(Load|Store)With\w+"
    r"|unroll\w*|policies|detail|std|at|c10|cuda|native|memory|[AB]Unary\w+|BinaryFunctor|Params"
)
"""Words in the arguments of templates that very many kernels have."""
_NAMESPACES = re.compile(r"^void |\(anonymous namespace\)::|at::native::|at::cuda::")
_STAND_INS = {
    "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "|", "▍": "|", "▎": "|", "▏": "|",
    "─": "-", "━": "-", "│": "|", "┼": "+", "…": "...", "·": "-", "•": "*", "×": "x", "–": "-",
    "—": "-", "−": "-", "µ": "u", "→": "->", "°": " ", "±": "+-", "²": "^2", "›": ">",
    "✓": "ok", "≥": ">=", "≤": "<=",
}  # fmt: skip
_HANDLER = "stepscope-stand-ins"


def printable(text: str) -> str:
    """Replace control characters, which could steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def escaped(text: str) -> str:
    """Escape control characters, so that the text stays on one line and loses nothing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(path: str | os.PathLike[str]) -> str:
    """A path as it is typed in a shell: in quotes if it has spaces, for instance."""
    text = os.fspath(path)
    if os.name == "nt":
        return f'"{text}"' if " " in text else text
    return shlex.quote(text)


def without_namespaces(name: str) -> str:
    """A kernel's name without the namespaces that nearly all of torch's kernels share."""
    return _NAMESPACES.sub("", name)


def shorten_name(name: str, width: int) -> str:
    """Cut a name to a width, so that the part that tells what it is remains.

    What is left out first is what many names share: namespaces, and the arguments of a kernel. Of a
    template, its own name stays, with the first of its arguments that is no number, basic type or
    helper: `vectorized_elementwise_kernel<…, CUDAFunctor_add, …>`. Other names, and what is still
    too long, lose a part in the middle.
    """
    if len(name) <= width:
        return name
    plain = without_namespaces(name)
    if len(plain) <= width:
        return plain
    plain = _without_arguments(plain)
    template, _, inside = plain.partition("<")
    if inside and _IDENTIFIER.fullmatch(template) and len(plain) > width:
        template = template.rpartition("::")[2]
        words = (word.rpartition("::")[2] for word in _IDENTIFIER.findall(inside))
        telling = next((word for word in words if not _TELLS_NOTHING.fullmatch(word)), None)
        plain = f"{template}<…>" if telling is None else f"{template}<…, {telling}, …>"
    return cut_in_the_middle(plain, width)


def _without_arguments(name: str) -> str:
    """A function's name without the parentheses at its end."""
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, 0, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            before = name[:at].rstrip()
            return before if before[-1:].isidentifier() or before[-1:] in ">0123456789" else name
    return name


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """Cut names and other texts to a width, as `shorten_name` does.

    Of texts that would look the same, what distinguishes them is kept instead.
    """
    alike: dict[str, set[str]] = {}
    for text in texts:
        alike.setdefault(shorten_name(text, width), set()).add(text)
    telling: dict[str, int] = {}
    for same in alike.values():
        ordered = sorted(same)
        for text, after in itertools.pairwise(ordered):
            shared = _shared(text, after)
            telling[text] = max(telling.get(text, 0), shared)
            telling[after] = shared
    return [
        shorten_name(text, width) if text not in telling else _around(text, telling[text], width)
        for text in texts
    ]


def _around(text: str, place: int, width: int) -> str:
    """The beginning of a text, and what follows a place in it."""
    beginning = text[: width // 3]
    space = width - len(beginning) - 1
    start = max(len(beginning), min(place - space // 3, len(text) - space))
    return f"{beginning}…{cut_in_the_middle(text[start:], space)}"


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def cut_in_the_middle(text: str, width: int) -> str:
    """Cut a text to a width; its beginning and its end remain."""
    if len(text) <= width:
        return text
    end = max(0, width - 1) // 2
    return f"{text[: max(0, width - 1 - end)]}…{text[len(text) - end :]}"[: max(width, 0)]


def tolerate_narrow_encoding(stream: TextIO) -> None:
    """Have a stream replace what its encoding lacks, instead of failing."""
    codecs.register_error(_HANDLER, _replaced)
    with contextlib.suppress(AttributeError, ValueError, OSError):
        stream.reconfigure(errors=_HANDLER)  # type: ignore[attr-defined]


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    stand_ins = (_STAND_INS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text)
    return "".join(stand_ins), error.end
