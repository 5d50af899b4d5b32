"""Whose device it is, and of which generation, as far as a trace tells."""

from __future__ import annotations

import json

import polars as pl

from stepscope.analysis.selection.names import is_call
from stepscope.trace.model import Trace

_AMD = r"AMD|Instinct|Radeon|MI[123]\d\d"


def is_amd(trace: Trace) -> bool:
    """Whether the devices are AMD's: by their names, else by the names of the calls."""
    names = described_devices(trace)["name"].drop_nulls()
    names = names.filter(names != "")
    if len(names):
        return bool(names.str.contains(_AMD).all())
    called = trace.names.filter(is_call()).select("name").collect()
    return bool(called["name"].str.starts_with("hip").any())


def compute_capability(trace: Trace) -> int | None:
    """Major compute capability of the first NVIDIA device in use; None: unknown or another's."""
    described = described_devices(trace).filter(~pl.col("name").fill_null("").str.contains(_AMD))
    for text in described["properties"].drop_nulls():
        major = json.loads(text).get("computeMajor")
        if isinstance(major, int):
            return major
    return None


def described_devices(trace: Trace) -> pl.DataFrame:
    """The rows of `Trace.devices` in use that the header describes.

    Where it numbers devices differently from the events and describes none of those in use, all
    that it describes.
    """
    described = trace.devices.filter(pl.col("properties").is_not_null())
    used = described.filter("is_used")
    return described if used.is_empty() else used
