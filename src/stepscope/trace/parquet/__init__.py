"""Writes tables of numbers and few words as Parquet files, several times faster than Polars."""
