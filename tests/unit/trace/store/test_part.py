"""Tables of a store are the same whoever writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from stepscope.trace.parquet import writer
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
