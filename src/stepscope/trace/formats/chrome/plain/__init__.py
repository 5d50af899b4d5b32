"""Scanned events without anything special, straight into columns or pages of Parquet."""
