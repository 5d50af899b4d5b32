"""The store: the tables of a large trace as Parquet files, written once and opened instantly."""
