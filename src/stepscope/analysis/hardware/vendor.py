"""Whose device it is, and of which generation, as far as a trace tells."""

from __future__ import annotations

import json
import re

import polars as pl

from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.names import is_call, names_that
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace

_AMD = r"AMD|Instinct|Radeon|MI[123]\d\d"


def is_amd(trace: Trace) -> bool:
    """Whether the devices are AMD's: by their names, else by the names of the calls."""
    names = [name for name in described_devices(trace)["name"] if name]
    if names:
        return all(re.search(_AMD, name) for name in names)
    return bool(names_that(trace, is_call() & pl.col("name").str.starts_with("hip")).any())


def compute_capability(trace: Trace) -> int | None:
    """Major compute capability of the first NVIDIA device in use; None: unknown or another's."""
    for name, properties in described_devices(trace)["name", "properties"].iter_rows():
        major = json.loads(properties).get("computeMajor")
        if isinstance(major, int) and not re.search(_AMD, name or ""):
            return major
    return None


@memoized
def described_devices(trace: Trace, _scope: Scope | None = None) -> pl.DataFrame:
    """The rows of `Trace.devices` in use that the header describes.

    Where it numbers devices differently from the events and describes none of those in use, all
    that it describes.
    """
    described = trace.devices.filter(trace.devices["properties"].is_not_null())
    used = described.filter(described["is_used"])
    return described if used.is_empty() else used
