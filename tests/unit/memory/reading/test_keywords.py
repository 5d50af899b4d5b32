"""The table in which all snapshots' words are looked up."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.memory.reading.keywords import KEYWORDS, LONGEST, NUMBERS, keyword_at, keyword_table


def number_of(text: str) -> int:
    data = np.frombuffer(f"<{text}>".encode(), np.uint8)
    return int(keyword_at(data, 1, len(data) - 2, *keyword_table()))


def test_each_word_has_its_number_and_other_texts_have_none():
    assert {word: number_of(word) for word in KEYWORDS} == NUMBERS
    others = [word + "_" for word in KEYWORDS] + [word[:-1] + "?" for word in KEYWORDS if word]
    assert {number_of(text) for text in [*others, "x" * (LONGEST + 1)]} == {0}


def test_no_file_can_change_what_the_next_is_looked_up_in():
    for array in keyword_table():
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
