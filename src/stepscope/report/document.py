"""What a result looks like, whatever shows it: blocks, which one renderer per format lays out.

A result's module builds the blocks; it knows no terminal, no Markdown and no page. Texts are as
they were found: each renderer makes them safe for where it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import polars as pl

    from stepscope.advice.finding import Finding
    from stepscope.analysis.selection.partition import Partition
    from stepscope.analysis.selection.rows import Beginning


@dataclass(frozen=True)
class Span:
    """A piece of text in one style, such as "bold", "dim" or "bold red"."""

    text: str
    style: str = ""


LINE_END = Span("\n")
"""Breaks a line on a terminal. Other control characters of texts are replaced."""

StyledText: TypeAlias = "str | tuple[Span, ...]"


def joined(text: str | tuple[str, ...]) -> str:
    """The text of a label as one."""
    return text if isinstance(text, str) else ", ".join(text)


def unstyled(text: StyledText) -> str:
    """Text without its styles."""
    if isinstance(text, str):
        return text
    # Where styles tell spans apart on a terminal, they may have no more than space between them.
    return "".join(span.text for span in text).strip().replace("  ", ", ")


@dataclass(frozen=True)
class Line:
    """A paragraph.

    Attributes:
        style: How a terminal shows it.
        role: What it is on a page: "verdict", "lead" or "note".
        indent: Columns before it on a terminal.
        is_whole: Whether a terminal that it is too long for breaks it between any letters, not
            between words.
    """

    text: StyledText
    style: str = ""
    role: str = ""
    indent: int = 0
    is_whole: bool = False


def whole(text: str) -> Line:
    """A paragraph that a terminal breaks between any letters."""
    return Line(text, is_whole=True)


@dataclass(frozen=True)
class Gap:
    """An empty line on a terminal; elsewhere blocks have space between them anyway."""


@dataclass(frozen=True)
class Title:
    """What the document is about: a path."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading.

    Attributes:
        aside: What stands behind it, or below it.
        level: Its level in Markdown; above 3 it is a bold line.
    """

    text: str
    aside: str = ""
    level: int = 2


@dataclass(frozen=True)
class Labelled:
    """A label beside lines, such as the verdict."""

    label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Facts:
    """Labels with their texts.

    Attributes:
        pairs: Label and text. Of a tuple, each part stays on one line.
        width: Columns of the labels on a terminal, which then wraps no text; None: as many as the
            longest needs.
    """

    pairs: tuple[tuple[str, str | tuple[str, ...]], ...]
    width: int | None = None


@dataclass(frozen=True)
class Items:
    """A list of sentences.

    Attributes:
        indent: Columns before them on a terminal.
        style: How a terminal shows them.
        most: How many a terminal shows; None: all.
    """

    items: tuple[str, ...]
    indent: int = 0
    style: str = ""
    most: int | None = None


@dataclass(frozen=True)
class Note:
    """What the reader must know of the result."""

    text: str


@dataclass(frozen=True)
class Remark:
    """A remark about the output, outside it."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to write into a script."""

    lines: tuple[str, ...]


class Look(Enum):
    """How a terminal draws a table."""

    PLAIN = "plain"
    RULED = "ruled"
    SPACED = "spaced"


@dataclass(frozen=True)
class Column:
    """A column of texts.

    Attributes:
        is_amount: Whether its texts are numbers, which stand to the right.
        wraps: Whether a narrow terminal may break its texts.
        width: Its width on a terminal; None: that of its longest text.
        least: The width below which a terminal does not go.
    """

    name: str
    is_amount: bool = False
    wraps: bool = True
    width: int | None = None
    least: int | None = None


@dataclass(frozen=True)
class Table:
    """Texts in columns.

    Attributes:
        look: How a terminal draws it.
        indent: Columns before it on a terminal.
        gives_way: Names of columns that a narrow terminal does without, the first one first; it
            then cuts the texts of the first column.
        stacks_below: Width below which a terminal puts the last column below the others.
        trails: Whether the last column follows the others unaligned where no line is cut.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[StyledText, ...], ...]
    look: Look = Look.PLAIN
    styles: tuple[str, ...] = ()
    indent: int = 0
    has_heading: bool = True
    gap: int = 2
    gives_way: tuple[str, ...] = ()
    stacks_below: int = 0
    trails: bool = False


@dataclass(frozen=True)
class DataTable:
    """Rows of numbers; the end of a column's name tells its unit (`cells`).

    Attributes:
        rows: All rows; on a page it may be the first ones of them.
        names: Columns that a terminal shows, the most important first; empty: all.
        is_asked: Whether somebody chose these columns: then none is dropped.
        origin_ns: Moments are relative to this.
        labels: Headings of columns on a page, where they are not those of `cells`.
        shown: How many rows a page shows at first.
    """

    title: str
    rows: pl.DataFrame | Beginning
    names: tuple[str, ...] = ()
    is_asked: bool = False
    most: int | None = None
    origin_ns: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    shown: int = 12


@dataclass(frozen=True)
class Bars:
    """A whole divided into parts.

    Attributes:
        least: Share below which a terminal shows parts together.
    """

    partition: Partition
    least: float = 0.0


@dataclass(frozen=True)
class ShownFinding:
    """A finding, and on which ranks it was made; empty where there is only one."""

    finding: Finding
    where: str = ""


@dataclass(frozen=True)
class Findings:
    """What is wrong, the largest saving first.

    Attributes:
        shown_rank: The rank whose step the report states.
        is_short: Whether a terminal shows two lines of each.
        of_steps: Whether fixes can save time of a step.
    """

    found: tuple[ShownFinding, ...]
    shown_rank: int = 0
    is_short: bool = False
    of_steps: bool = True


@dataclass(frozen=True)
class Only:
    """Blocks that only one format needs, of terminals and Markdown."""

    renderer: Literal["terminal", "markdown"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Figure:
    """A picture, as plain values that the page's script draws; only pages have pictures."""

    drawn: Mapping[str, Any]


Block: TypeAlias = (
    "Line | Gap | Title | Heading | Labelled | Facts | Items | Note | Remark | Code | Table"
    " | DataTable | Bars | Findings | Only | Figure"
)


@dataclass(frozen=True)
class Section:
    """A part of a page that links can lead to; without blocks it is left out."""

    id: str
    title: str
    blocks: tuple[Block | None, ...] = ()


@dataclass(frozen=True)
class Page:
    """A result as a page in one file."""

    title: str
    subtitle: str
    path: str
    sections: Sequence[Section]
    kind: str = "Report"
