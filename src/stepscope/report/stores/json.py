"""The stores of traces as JSON: integer bytes and Unix times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.trace.store.listing import StoreInfo


def write(stores: Sequence[StoreInfo], sink: Sink, _layout: Layout) -> None:
    """Write a list with an object per store."""
    sink.write(json.dumps([_store(store) for store in stores], indent=2) + "\n")


def _store(store: StoreInfo) -> dict[str, object]:
    return {
        "place": str(store.path),
        "source": store.source or None,
        "size_bytes": store.size_bytes,
        "derived_bytes": store.derived_bytes,
        "used_unix_s": int(store.used),
        "state": store.state.value,
        "trace_is_gone": store.is_orphan,
    }
