"""Puts files beside a run without a training: of a capture, only what names and notes them."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

from stepscope.adapters.options.layouts import Placing
from stepscope.capture.ranks import RankIdentity


def placing(root, layout, identity=None, *, words=None, overviews=(), snapshot_path=None):
    """Files of this layout in `root`, of the rank `identity`, whose failures reach the test."""
    identity = identity or RankIdentity()
    session = SimpleNamespace(
        identity=identity,
        overviews=overviews,
        config=SimpleNamespace(announce=False),
        contain=lambda _: contextlib.nullcontext(),
        copy_beside=lambda _: None,
    )
    folder = root / "run" / f"rank{identity.rank:05d}"
    return Placing(
        session,
        folder,
        layout=layout,
        words=words or {},
        snapshot_path=snapshot_path,
        placed=None,
    )
