"""Files of the fast Parquet writer hold what they were given, for Polars and for DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.trace.parquet import writer
from stepscope.trace.schema import EVENTS, FLOWS

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
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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


@pytest.mark.parametrize("schema", [EVENTS, FLOWS])
def test_tables_of_traces_can_be_written_empty(tmp_path: Path, schema: pl.Schema) -> None:
    file = tmp_path / "table.parquet"
    assert writer.write(pl.DataFrame(schema=schema), file)
    assert pl.read_parquet_schema(file) == schema


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([f"text {n}" for n in range(2000)]),
        pl.Series(["word"] * 5000 + [f"text {n}" for n in range(2000)]),
        pl.Series([0.5]),
        pl.Series([[1]]),
    ],
)
def test_text_and_other_types_are_left_to_polars(tmp_path: Path, column: pl.Series) -> None:
    file = tmp_path / "table.parquet"
    assert not writer.write(pl.DataFrame({"number": range(len(column)), "other": column}), file)
    assert not file.exists()


def test_neighbours_that_are_alike_take_little_space(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    assert writer.write(pl.DataFrame({"event": range(10**5)}), file)
    assert file.stat().st_size < 10**5 / 10
