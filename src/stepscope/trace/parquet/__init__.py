"""Writes tables of numbers and text as Parquet files, several times faster than Polars."""
