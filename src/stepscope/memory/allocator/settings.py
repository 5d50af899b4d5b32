"""What the caching allocator is set to: from a snapshot, or from PYTORCH_CUDA_ALLOC_CONF.

The defaults and the meaning of each option are those of torch
(https://docs.pytorch.org/docs/stable/notes/cuda.html#environment-variables).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stepscope.errors import UsageError

MIB = 1024 * 1024
INTERVALS = 16
"""Intervals of sizes that can be rounded differently: from 1 MiB, each twice the one before."""
_UNLIMITED_FROM = 2**62
_LEAST_MIB = 20
_IGNORED = {
    "release_lock_on_cudamalloc", "release_lock_on_device_malloc", "pinned_use_cuda_host_register",
    "pinned_use_device_host_register", "pinned_num_register_threads",
    "pinned_use_background_threads", "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
}  # fmt: skip
"""Options without an effect on what is reserved on the device."""


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of the caching allocator.

    Attributes:
        expandable_segments: Whether segments grow, instead of one segment for each need.
        max_split_bytes: Blocks of this size and more are never split; None: any block is.
        rounding_limit_bytes: How much larger than a request that is not split its block may be.
        power2_divisions: Into how many parts the range up to the next power of two is divided for
            rounding; one entry for each interval of sizes, 0 and 1: multiples of 512 bytes.
        garbage_collection_threshold: Share of the memory limit above which unused blocks are given
            back before more is asked for; 0: never. It has an effect only with a limit.
        large_segment_bytes: What is asked for where 1 to 10 MiB are needed.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    rounding_limit_bytes: int = 20 * MIB
    power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    large_segment_bytes: int = 20 * MIB

    def __str__(self) -> str:
        """The settings in the words of PYTORCH_CUDA_ALLOC_CONF; those at their default left out."""
        default = AllocatorSettings()
        parts = []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        if self.max_split_bytes is not None:
            parts.append(f"max_split_size_mb:{self.max_split_bytes // MIB}")
        if self.rounding_limit_bytes != default.rounding_limit_bytes:
            parts.append(f"max_non_split_rounding_mb:{self.rounding_limit_bytes // MIB}")
        if any(division > 1 for division in self.power2_divisions):
            parts.append(f"roundup_power2_divisions:{self._divisions()}")
        if self.garbage_collection_threshold:
            parts.append(f"garbage_collection_threshold:{self.garbage_collection_threshold:g}")
        if self.large_segment_bytes != default.large_segment_bytes:
            parts.append(f"large_segment_size_mb:{self.large_segment_bytes // MIB}")
        return ",".join(parts) or "default"

    def _divisions(self) -> str:
        if len(set(self.power2_divisions)) == 1:
            return str(self.power2_divisions[0])
        pairs = [f"{1 << place}:{n}" for place, n in enumerate(self.power2_divisions)]
        return f"[{','.join(pairs)}]"


def settings_of(said: Mapping[str, Any]) -> AllocatorSettings:
    """The settings that a snapshot says the allocator had.

    What it does not say, or says in a way that is not understood, has its default.
    """
    settings = AllocatorSettings()
    text = said.get("PYTORCH_CUDA_ALLOC_CONF")
    if isinstance(text, str):
        for option in _options(text):
            # What is not understood is from another version of torch.
            with contextlib.suppress(UsageError):
                settings = _with_option(settings, *option)
    expandable = said.get("expandable_segments")
    if isinstance(expandable, bool):
        settings = replace(settings, expandable_segments=expandable)
    split = said.get("max_split_size")
    if isinstance(split, int) and not isinstance(
        split, bool
    ):  # without a limit: -1, or the largest number there is
        limit = split if 0 < split < _UNLIMITED_FROM else None
        settings = replace(settings, max_split_bytes=limit)
    threshold = said.get("garbage_collection_threshold")
    if isinstance(threshold, int | float) and 0 <= threshold < 1:
        settings = replace(settings, garbage_collection_threshold=float(threshold))
    divisions = said.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping):
        found = [divisions.get(str(1 << place), 0) for place in range(INTERVALS)]
        if all(_is_whole(n) and _is_division(n) for n in found):
            settings = replace(settings, power2_divisions=tuple(found))
    return settings


def parse_settings(text: str, base: AllocatorSettings | None = None) -> AllocatorSettings:
    """The settings that a value of PYTORCH_CUDA_ALLOC_CONF stands for.

    Args:
        text: As "expandable_segments:True,max_split_size_mb:256"; empty, or "default": the
            defaults.
        base: What options that are not named have; None: their defaults.
    """
    settings = base or AllocatorSettings()
    if text.strip() in ("", "default"):
        return settings
    for key, value in _options(text):
        settings = _with_option(settings, key, value)
    return settings


def with_settings(text: str, settings: str) -> str:
    """A value of PYTORCH_CUDA_ALLOC_CONF with other settings.

    Args:
        text: The value before; its options without an effect on the simulation stay.
        settings: A text of the settings, as `str` of `AllocatorSettings` gives them.
    """
    kept = [f"{key}:{value}" for key, value in _options(text) if key in (*_IGNORED, "backend")]
    is_default = settings == str(AllocatorSettings())
    return ",".join([*kept, "expandable_segments:False" if is_default else settings])


def _options(text: str) -> list[tuple[str, str]]:
    """The options of a configuration: names and values. Commas within brackets do not separate."""
    parts = re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", re.sub(r"\s", "", text))
    pairs = [part.partition(":") for part in parts]
    return [(key, value) for key, _, value in pairs]


def _with_option(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    if key in _IGNORED:
        return settings
    reader = _READERS.get(key)
    if reader is None:
        raise UsageError(
            f"{key!r} is no option of the caching allocator that is simulated; known are "
            f"{', '.join(sorted(_READERS))}"
        )
    try:
        return reader(settings, value)
    except ValueError as error:
        raise UsageError(f"{key}:{value}: {error}") from error


def _expandable(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    if value not in ("True", "False"):
        raise ValueError("True or False is expected")
    return replace(settings, expandable_segments=value == "True")


def _threshold(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    share = float(value)
    if not 0 < share < 1:
        raise ValueError("a share between 0 and 1 is expected")
    return replace(settings, garbage_collection_threshold=share)


def _backend(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    if value != "native":
        raise ValueError("only the native allocator can be simulated")
    return settings


def _divisions(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    if not value.startswith("["):
        return replace(settings, power2_divisions=(_division(value),) * INTERVALS)
    if not value.endswith("]"):
        raise ValueError("the list has no end")
    divisions = list(settings.power2_divisions)
    last = 0
    for number, pair in enumerate(value[1:-1].split(",")):
        size, _, parts = pair.partition(":")
        division = _division(parts)
        if size == ">":
            divisions[last:] = [division] * (INTERVALS - last)
            continue
        megabytes = int(size)
        if megabytes < 1 or megabytes & (megabytes - 1):
            raise ValueError(f"{size} is no power of two")
        last = min(megabytes.bit_length() - 1, INTERVALS - 1)
        if not number:  # the first also stands for all smaller sizes
            divisions[:last] = [division] * last
        divisions[last] = division
    return replace(settings, power2_divisions=tuple(divisions))


def _division(text: str) -> int:
    number = int(text)
    if not _is_division(number):
        raise ValueError(f"{text} is neither 0 nor a power of two")
    return number


def _is_division(number: int) -> bool:
    return number >= 0 and not number & (number - 1)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_megabytes(field: str) -> Callable[[AllocatorSettings, str], AllocatorSettings]:
    def read(settings: AllocatorSettings, value: str) -> AllocatorSettings:
        number = int(value)
        if number < _LEAST_MIB:
            raise ValueError(f"at least {_LEAST_MIB} is expected")
        return replace(settings, **{field: number * MIB})  # type: ignore[arg-type]

    return read


_READERS: dict[str, Callable[[AllocatorSettings, str], AllocatorSettings]] = {
    "backend": _backend,
    "expandable_segments": _expandable,
    "garbage_collection_threshold": _threshold,
    "large_segment_size_mb": _in_megabytes("large_segment_bytes"),
    "max_non_split_rounding_mb": _in_megabytes("rounding_limit_bytes"),
    "max_split_size_mb": _in_megabytes("max_split_bytes"),
    "roundup_power2_divisions": _divisions,
}
