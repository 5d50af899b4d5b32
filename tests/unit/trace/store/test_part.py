"""Tables of a store are the same whoever writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest

from stepscope.trace.parquet import encoded, writer
from stepscope.trace.parquet.encodings import most_bytes
from stepscope.trace.store import part

_NUMBERS = pl.DataFrame({"event": range(300), "word": ["a", None, "b"] * 100})
_TEXT = _NUMBERS.with_columns(text=pl.format("text {}", "event"))
_FLAGS = _NUMBERS.with_columns(is_first=pl.col("word") == "a")


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(part, "_LARGE_ROWS", 100)
    part._fast_writer.cache_clear()
    yield
    part._fast_writer.cache_clear()


def _is_fast(file: Path) -> bool:
    return b"Stepscope" in file.read_bytes()


@pytest.mark.parametrize(
    ("table", "is_fast"),
    [(_NUMBERS, True), (_NUMBERS[:99], False), (_TEXT, True), (_FLAGS, False)],
)
def test_large_tables_of_numbers_and_text_are_written_fast(
    tmp_path: Path, table: pl.DataFrame, is_fast: bool
) -> None:
    file = tmp_path / "part.parquet"
    part.write_table(table, file)
    assert _is_fast(file) is is_fast
    assert pl.read_parquet(file).equals(table)


@pytest.mark.parametrize("rows", [300, 99])
def test_narrow_columns_are_written_as_what_they_stand_for(tmp_path: Path, rows: int) -> None:
    types = {"event": pl.Int64, "word": pl.String}
    wide = _NUMBERS[:rows]
    narrow = wide.cast({"event": pl.Int32, "word": pl.Enum(["a", "b"])})
    file = tmp_path / "part.parquet"
    part.write_table(narrow, file, types)
    assert _is_fast(file) is (rows == 300)
    found = pl.read_parquet(file)
    assert found.equals(wide)
    assert found.schema == wide.schema


@pytest.mark.parametrize("rows", [300, 99])
def test_rows_are_numbered_while_they_are_written(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_ROWS_PER_GROUP", 64)
    table = _NUMBERS[:rows]
    numbers = pl.Series("row", range(rows), pl.Int64)
    file = tmp_path / "part.parquet"
    types = {"row": pl.Int64, **table.schema}
    part.write_table(table, file, types, row_number="row")
    assert _is_fast(file) is (rows == 300)
    found = pl.read_parquet(file)
    assert found.equals(table.insert_column(0, numbers))
    assert list(found.schema.items()) == list(types.items())


def test_without_source_code_polars_writes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise FileNotFoundError("encodings.py")

    monkeypatch.setattr(writer, "prepare", fail)
    file = tmp_path / "part.parquet"
    part.write_table(_NUMBERS, file)
    assert not _is_fast(file)
    assert pl.read_parquet(file).equals(_NUMBERS)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        part.write_table(_NUMBERS, tmp_path / "nowhere" / "part.parquet")


_TYPES = {"event": pl.Int64, "word": pl.Enum(["a", "b"]), "text": pl.String}


def _encoded(first: int, rows: int) -> encoded.EncodedRows:
    """Rows with every third word null, and no text in every second."""
    numbers = np.arange(first, first + rows)
    memory = np.empty(most_bytes(rows), np.uint8)
    words = np.packbits(numbers % 3 != 0, bitorder="little")
    texts = np.packbits(numbers % 2 == 0, bitorder="little")
    text = b"".join(b"\4\0\0\0" + f"{n:04}".encode() for n in numbers[numbers % 2 == 0])
    return encoded.EncodedRows(
        rows,
        {
            "event": encoded.numbers(numbers, memory),
            "word": encoded.words(
                (numbers[numbers % 3 != 0] % 2).astype(np.uint8), [b"a", b"b"], words, rows
            ),
            "text": encoded.texts(
                np.frombuffer(text, np.uint8), texts, rows, int((numbers % 2).sum())
            ),
        },
    )


def _frame(first: int, rows: int) -> pl.DataFrame:
    numbers = range(first, first + rows)
    return pl.DataFrame(
        {
            "event": numbers,
            "word": [None if n % 3 == 0 else "ab"[n % 2] for n in numbers],
            "text": [None if n % 2 else f"{n:04}" for n in numbers],
        },
        schema=_TYPES,
    )


@pytest.mark.parametrize("kinds", ["eee", "e", "fff", "efe", "fef", "fe"])
@pytest.mark.parametrize("rows", [1, 8, 37, 200])
def test_encoded_rows_and_frames_are_written_in_order(
    tmp_path: Path, kinds: str, rows: int
) -> None:
    starts = range(0, rows * len(kinds), rows)
    parts = [
        (_encoded if kind == "e" else _frame)(start, rows)
        for kind, start in zip(kinds, starts, strict=True)
    ]
    file = tmp_path / "part.parquet"
    part.write_rows(parts, _TYPES, file)
    table = _frame(0, rows * len(kinds))
    assert pl.read_parquet(file).equals(table)
    assert pl.read_parquet_schema(file) == table.schema
    asked = duckdb.connect()
    assert asked.execute(f"SELECT * FROM '{file}'").fetchall() == table.rows()
    if kinds == "eee":
        found = asked.execute(
            "SELECT path_in_schema, num_values, stats_null_count, stats_min_value, stats_max_value"
            f" FROM parquet_metadata('{file}') ORDER BY column_id"
        ).fetchall()
        assert found[0] == ("event", 3 * rows, 0, "0", str(3 * rows - 1))
        assert found[1][:3] == ("word", 3 * rows, table["word"].null_count())
        assert found[2][:3] == ("text", 3 * rows, table["text"].null_count())


def test_encoded_columns_without_any_value(tmp_path: Path) -> None:
    empty, memory = np.empty(0, np.int64), np.empty(most_bytes(0), np.uint8)
    rows = encoded.EncodedRows(
        5,
        {
            "event": encoded.numbers(empty, memory, None, 5),
            "word": encoded.words(np.empty(0, np.uint8), [b"a", b"b"], None, 5),
            "text": encoded.texts(np.empty(0, np.uint8), None, 5, 5),
        },
    )
    file = tmp_path / "part.parquet"
    part.write_rows([_encoded(0, 3), rows], _TYPES, file)
    nothing = pl.DataFrame({name: [None] * 5 for name in _TYPES}, schema=_TYPES)
    table = pl.concat([_frame(0, 3), nothing])
    assert pl.read_parquet(file).equals(table)
    assert duckdb.connect().execute(f"SELECT * FROM '{file}'").fetchall() == table.rows()
