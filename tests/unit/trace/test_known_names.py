"""What is kept about names: each row is asked once, and told as if it were asked each time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace import known_names
from stepscope.trace.categories import HOST_CALLS, mask_of
from stepscope.trace.classify import classify_names
from stepscope.trace.known_names import KnownNames
from stepscope.trace.schema import CATEGORY, Category

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from(["x", "y"])),
    max_size=12,
)


def table(rows):
    schema = {"name": pl.String, "category": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


class Asked:
    """Tells a row's name and category in one text, and notes what it was asked."""

    def __init__(self):
        self.rows = []

    def __call__(self, names):
        assert len(names) > 0
        rows = names.select("name", "category").rows()
        self.rows += rows
        return [f"{name} is {category}" for name, category in rows]


@given(tables=st.lists(ROWS, max_size=6), most=st.integers(1, 20))
def test_what_is_told_does_not_depend_on_what_is_kept(tables, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_names, "MOST_CACHED", most)
        known = KnownNames(Asked(), "name", "category")
        for rows in tables:
            told = known.of(table(rows)) if rows else []
            assert list(told) == [f"{name} is {category}" for name, category in rows]
            assert len(known._known) <= most


def test_each_row_is_asked_once():
    asked = Asked()
    known = KnownNames(asked, "name", "category")
    known.of(table([("a", "x"), ("b", "x")]))
    known.of(table([("b", "x"), ("b", "y"), ("a", "x")]))
    assert asked.rows == [("a", "x"), ("b", "x"), ("b", "y")]
    assert known.of(table([])) == []


def test_a_large_table_is_asked_as_a_whole_and_not_kept(monkeypatch):
    monkeypatch.setattr(known_names, "MOST_CACHED", 2)
    asked = Asked()
    known = KnownNames(asked, "name", "category")
    rows = [("a", "x"), ("b", "x"), ("c", "x")]
    for _ in range(2):
        known.of(table(rows))
    assert asked.rows == [*rows, *rows]


def test_threads_may_ask_at_the_same_time(monkeypatch):
    monkeypatch.setattr(known_names, "MOST_CACHED", 40)
    known = KnownNames(Asked(), "name", "category")
    tables = [[(f"{number % 7}-{row}", "x") for row in range(10)] for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rows: known.of(table(rows)), tables))
    assert found == [[f"{name} is x" for name, _ in rows] for rows in tables]


def test_a_name_is_classified_alike_alone_and_after_others():
    """Names of other categories, and the same names of other categories, make no difference."""
    names = ["ncclAllReduce", "aten::mm", "cudaLaunchKernel", "Memcpy HtoD (Pageable -> Device)"]
    rows = [(name, category.value) for name in names for category in Category]
    together = classify_names(table(rows)).rows()
    assert [classify_names(table([row])).row(0) for row in rows] == together
    assert classify_names(table(rows[::-1])).rows() == together[::-1]


@given(
    words=st.lists(st.sampled_from([c.value for c in Category]), max_size=20),
    wanted=st.sets(st.sampled_from(list(Category)), max_size=4),
)
def test_events_of_some_categories(words, wanted):
    events = pl.DataFrame({"category": pl.Series(words, dtype=CATEGORY)})
    assert mask_of(events, wanted).tolist() == [Category(word) in wanted for word in words]
    assert mask_of(events, HOST_CALLS).tolist() == [w in {"runtime", "driver"} for w in words]
