"""Files of the fast Parquet writer hold what they were given, for Polars and for DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.trace.parquet import text, writer
from stepscope.trace.schema import ARGS, EVENTS, FLOWS

_RANGES = {
    pl.Int32: (-(2**31), 2**31 - 1),
    pl.UInt32: (0, 2**32 - 1),
    pl.Int64: (-(2**63), 2**63 - 1),
    pl.UInt64: (0, 2**64 - 1),
}
_WORDS = pl.Enum(["first", "", "third"])
_TYPES: list[Any] = [*_RANGES, _WORDS, pl.String]


@st.composite
def _columns(draw: st.DrawFn, rows: int) -> pl.Series:
    """A column of numbers: far apart, near each other, or the same; with and without nulls."""
    dtype = draw(st.sampled_from(_TYPES))
    if dtype in _RANGES:
        least, most = _RANGES[dtype]
        center = draw(st.integers(least, most))
        spread = draw(st.sampled_from([0, 1, 300, 2**33, 2**64]))
        values = st.integers(max(least, center - spread), min(most, center + spread))
    else:
        values = st.sampled_from(["first", "", "third"])
    share = draw(st.sampled_from([0, 1, 2]))  # of nulls: none, some, all
    cells = [values, values | st.none(), st.none()][share]
    # Few drawn cells, repeated, so that columns span several blocks of the encoding.
    drawn = draw(st.lists(cells, min_size=1, max_size=40))
    return pl.Series((drawn * (rows // len(drawn) + 1))[:rows], dtype=dtype)


@st.composite
def _tables(draw: st.DrawFn) -> pl.DataFrame:
    rows = draw(st.sampled_from([0, 1, 2, 31, 33, 128, 129, 130, 257, 700]))
    columns = draw(st.lists(_columns(rows), min_size=1, max_size=4))
    return pl.DataFrame([column.alias(f"c{n}") for n, column in enumerate(columns)])


@settings(
    max_examples=settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(table=_tables())
def test_what_is_written_is_read(tmp_path: Path, table: pl.DataFrame) -> None:
    file = tmp_path / "table.parquet"
    assert writer.write(table, file)
    found = pl.read_parquet(file)
    assert found.equals(table)
    assert found.schema == table.schema
    if len(table):
        rows = duckdb.connect().execute(f"SELECT * FROM '{file}'").fetchall()
        assert rows == table.rows()


def test_row_groups_hold_all_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_ROWS_PER_GROUP", 100)
    table = pl.DataFrame({"n": range(1049), "w": ["a", "b", None] * 349 + ["c", "a"]})
    file = tmp_path / "table.parquet"
    assert writer.write(table, file)
    assert pl.read_parquet(file).equals(table)
    assert (
        pl.scan_parquet(file)
        .filter(pl.col("n").is_between(460, 470))
        .collect()
        .equals(table[460:471])
    )
    groups = (
        duckdb.connect()
        .execute(
            "SELECT row_group_num_rows, stats_min_value, stats_max_value"
            f" FROM parquet_metadata('{file}')"
            " WHERE path_in_schema = 'n' ORDER BY row_group_id"
        )
        .fetchall()
    )
    assert [rows for rows, _, _ in groups] == [105] * 9 + [104]
    assert groups[1][1:] == ("105", "209")


@st.composite
def _texts(draw: st.DrawFn) -> pl.Series:
    """Text that repeats itself in all but its digits, or anything at all; in several arrays."""
    likes = st.builds('{{"id": {}, "same": "{}"}}'.format, st.integers(0, 10**12), st.text())
    cells = draw(st.sampled_from([likes, st.text(max_size=300), likes | st.text() | st.none()]))
    drawn = draw(st.lists(cells, min_size=1, max_size=60))
    whole = pl.Series(drawn * draw(st.integers(1, 5)), dtype=pl.String)
    cut = draw(st.integers(0, len(whole)))
    return pl.concat([whole[cut:], whole[:cut], whole[:1]], rechunk=False)


@settings(
    max_examples=settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(column=_texts(), page_bytes=st.sampled_from([1, 40, 1000, 1 << 20]))
def test_text_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: pl.Series, page_bytes: int
) -> None:
    monkeypatch.setattr(writer, "_MOST_DISTINCT", 0)
    monkeypatch.setattr(text, "_PAGE_BYTES", page_bytes)
    table = pl.DataFrame({"row": range(len(column)), "text": column})
    file = tmp_path / "table.parquet"
    assert writer.write(table, file)
    assert pl.read_parquet(file).equals(table)
    rows = duckdb.connect().execute(f"SELECT * FROM '{file}'").fetchall()
    assert rows == table.rows()


def test_text_has_as_many_pages_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_PAGE_BYTES", 10_000)
    monkeypatch.setattr(writer, "_ROWS_PER_GROUP", 2000)
    values = [None if n % 7 == 0 else f"text {n} " + "x" * (n % 400) for n in range(5000)]
    values[4000:4300] = [None] * 300  # more than a page without any text
    values[4500] = "long " * 100_000
    table = pl.DataFrame({"text": values})
    file = tmp_path / "table.parquet"
    assert writer.write(table, file)
    assert pl.read_parquet(file).equals(table)
    asked = duckdb.connect()
    assert asked.execute(f"SELECT * FROM '{file}'").fetchall() == table.rows()
    groups = asked.execute(
        "SELECT compression, stats_null_count, total_uncompressed_size > total_compressed_size"
        f" FROM parquet_metadata('{file}') ORDER BY row_group_id"
    ).fetchall()
    nulls = [values[start : start + 2500].count(None) for start in (0, 2500)]
    assert groups == [("LZ4_RAW", nulls[0], True), ("LZ4_RAW", nulls[1], True)]


def test_texts_that_are_alike_take_little_space(tmp_path: Path) -> None:
    alike = pl.DataFrame(
        {
            "args": [
                f'{{"External id": {n * 7919}, "Ev Idx": {n}, "cbid": 211}}' for n in range(20_000)
            ]
        }
    )
    file = tmp_path / "table.parquet"
    assert writer.write(alike, file)
    assert file.stat().st_size < alike["args"].str.len_bytes().sum() / 3


@pytest.mark.parametrize("schema", [ARGS, EVENTS, FLOWS])
def test_tables_of_traces_can_be_written_empty(tmp_path: Path, schema: pl.Schema) -> None:
    file = tmp_path / "table.parquet"
    assert writer.write(pl.DataFrame(schema=schema), file)
    assert pl.read_parquet_schema(file) == schema


@pytest.mark.parametrize(
    "column",
    [
        pl.Series(
            [f"word {n}" for n in range(200)], dtype=pl.Enum([f"word {n}" for n in range(200)])
        ),
        pl.Series([True]),
        pl.Series([0.5]),
        pl.Series([[1]]),
    ],
)
def test_other_types_and_many_categories_are_left_to_polars(
    tmp_path: Path, column: pl.Series
) -> None:
    file = tmp_path / "table.parquet"
    assert not writer.write(pl.DataFrame({"number": range(len(column)), "other": column}), file)
    assert not file.exists()


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([f"text {n}" for n in range(2000)]),
        pl.Series(["word"] * 5000 + [f"text {n}" for n in range(2000)]),
        pl.Series(["word", "other"] * 500 + [f"text {n}" for n in range(129)]),
    ],
)
def test_text_of_many_kinds_is_written(tmp_path: Path, column: pl.Series) -> None:
    file = tmp_path / "table.parquet"
    assert writer.write(pl.DataFrame({"text": column}), file)
    assert pl.read_parquet(file)["text"].equals(column)


def test_too_large_texts_are_left_to_polars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_LARGEST_BYTES", 1000)
    column = [f"text {n}" for n in range(2000)]
    file = tmp_path / "table.parquet"
    assert not writer.write(pl.DataFrame({"text": [*column, "x" * 1001]}), file)
    assert writer.write(pl.DataFrame({"text": [*column, "x" * 1000]}), file)


def test_neighbours_that_are_alike_take_little_space(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    assert writer.write(pl.DataFrame({"event": range(10**5)}), file)
    assert file.stat().st_size < 10**5 / 10
