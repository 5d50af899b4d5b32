"""The stores of traces on disk: size, last use, and trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from stepscope.report.document import Block, Line, Remark
from stepscope.report.units import decimal_size, plural
from stepscope.terminal.plain_text import escaped

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout
    from stepscope.trace.store.listing import StoreInfo


def document(stores: Sequence[StoreInfo], _layout: Layout) -> Iterator[Block]:
    """A line per store, and the total as a remark."""
    for store in stores:
        used = datetime.fromtimestamp(store.used, timezone.utc).astimezone()
        yield Line(
            f"{decimal_size(store.size_bytes):>10}  {used:%Y-%m-%d %H:%M}  "
            f"{escaped(store.source or str(store.path))}{_note(store)}",
            is_whole=True,
        )
    if not stores:
        yield Remark("no stores")
        return
    total = sum(store.size_bytes for store in stores)
    yield Remark(f"{decimal_size(total):>10}  in {plural(len(stores), 'store')}")


def _note(store: StoreInfo) -> str:
    notes = [] if store.state.value == "complete" else [store.state.value]
    if store.is_orphan:
        notes.append("its trace is gone")
    return f"  ({', '.join(notes)})" if notes else ""


def to_json(stores: Sequence[StoreInfo]) -> dict[str, object]:
    """An object per store: integer bytes and Unix times."""
    rows = [
        {
            "place": str(store.path),
            "source": store.source or None,
            "size_bytes": store.size_bytes,
            "derived_bytes": store.derived_bytes,
            "used_unix_s": int(store.used),
            "state": store.state.value,
            "trace_is_gone": store.is_orphan,
        }
        for store in stores
    ]
    return {"stores": rows}
