"""What the fixes of torch's global settings share."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Patches


def hold(patches: Patches, setting: str, value: Any) -> None:
    """Set what `torch.set_<setting>` sets, and keep the script from setting something else.

    Args:
        patches: Changes the process.
        setting: The setting, which `torch.get_<setting>` gives.
        value: Its value.
    """
    import torch

    setter = f"set_{setting}"
    before, ours = getattr(torch, f"get_{setting}")(), getattr(torch, setter)

    def keep(wanted: Any) -> None:
        patches.override(f"{patches.place()}: torch.{setter}({wanted!r})")

    ours(value)
    patches.later(lambda: ours(before))
    patches.replace(torch, setter, lambda _: keep)
    patches.did(f"torch.{setter}({value!r})")
