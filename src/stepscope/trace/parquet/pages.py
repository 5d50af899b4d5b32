"""Pages of Parquet: the values of a column, or its dictionary, after a header."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.parquet.encodings import as_present
from stepscope.trace.parquet.text import TextPage
from stepscope.trace.parquet.thrift import Struct, Value, encoded

PLAIN, RLE, DIFFERENCES, OF_DICTIONARY = 0, 3, 5, 8
"""Encodings."""
_DATA, _DICTIONARY, _DATA_OF_SECOND_VERSION = 0, 2, 3
_LEVELS_LENGTH_BYTES = 4


def dictionary_page(words: list[bytes]) -> bytes:
    """Returns a page of distinct words."""
    body = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    return _page(_DICTIONARY, body, len(body), {7: Struct({1: len(words), 2: PLAIN})})


def data_page(body: bytes, count: int, encoding: int) -> bytes:
    """Returns a page of values.

    Args:
        body: Which values are not null, and the values.
        count: How many they are, with nulls.
        encoding: How they are encoded.
    """
    return _page(_DATA, body, len(body), {5: Struct({1: count, 2: encoding, 3: RLE, 4: RLE})})


def text_page(text: TextPage, present: npt.NDArray[np.bool_]) -> bytes:
    """Returns a page of text. Which texts are null is not compressed: hence the second version.

    Args:
        text: The texts.
        present: Whether each is not null.
    """
    count = len(present)
    levels = as_present(present, count)[_LEVELS_LENGTH_BYTES:]
    header: dict[int, Value] = {
        1: count,
        2: count - int(present.sum()),
        3: count,
        4: PLAIN,
        5: len(levels),
        6: 0,
        7: text.size > 0,
    }
    body = levels + (text.block if text.size else b"")
    size = len(levels) + text.size
    return _page(_DATA_OF_SECOND_VERSION, body, size, {8: Struct(header)})


def _page(kind: int, body: bytes, size: int, header: dict[int, Value]) -> bytes:
    """Returns a page. `size` is that of the body before compression."""
    return encoded(Struct({1: kind, 2: size, 3: len(body), **header})) + body
