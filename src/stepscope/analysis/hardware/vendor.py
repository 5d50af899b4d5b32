"""Whose device it is, and of which generation, as far as a trace tells."""

from __future__ import annotations

import json

import polars as pl

from stepscope.analysis.selection.names import is_call
from stepscope.trace.model import Trace

_AMD = r"AMD|Instinct|Radeon|MI[123]\d\d"


def is_amd(trace: Trace) -> bool:
    """Whether the devices are AMD's: by their names, else by the names of the calls."""
    names = trace.devices.filter("is_used")["name"].drop_nulls()
    if len(names):
        return bool(names.str.contains(_AMD).all())
    called = trace.names.filter(is_call()).select("name").collect()
    return bool(called["name"].str.starts_with("hip").any())


def compute_capability(trace: Trace) -> int | None:
    """Major compute capability of the first NVIDIA device in use; None: unknown or another's."""
    described = trace.devices.filter(
        pl.col("is_used"), ~pl.col("name").fill_null("").str.contains(_AMD)
    )
    for text in described["properties"].drop_nulls():
        major = json.loads(text).get("computeMajor")
        if isinstance(major, int):
            return major
    return None
