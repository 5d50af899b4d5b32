"""A plain model of torch's caching allocator, which writes the snapshots that torch would write.

An oracle: lists of objects, searched from end to end, with no care for speed. It follows the
documented behaviour of the allocator (rounding, two size classes, best fit within pool, class and
stream, splitting, merging, expandable segments, private pools, release and retry, garbage
collection), and shares no code with the product.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

KIB, MIB = 1024, 1024 * 1024
UNLIMITED = 2**62
FREE, USED, PENDING, UNMAPPED = "free", "used", "pending", "unmapped"
DEFAULT_POOL = (0, 0)


class OutOfMemory(Exception):
    """The modelled device has no room."""


@dataclass
class Settings:
    expandable: bool = False
    max_split: int = UNLIMITED
    rounding_limit: int = 20 * MIB  # max_non_split_rounding_mb
    divisions: int = 0  # roundup_power2_divisions, the same for all sizes
    collect_above: float = 0.0  # garbage_collection_threshold
    fraction: float | None = None  # set_per_process_memory_fraction


@dataclass
class Block:
    address: int
    size: int
    state: str = FREE
    asked: int = 0
    frames: list = field(default_factory=list)
    born: int = 0  # the pool's number of searches when the block became free


@dataclass
class Segment:
    device: int
    address: int
    stream: int
    pool: tuple[int, int]
    small: bool
    expandable: bool
    frames: list
    blocks: list[Block]

    @property
    def is_whole(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].state == FREE


class Allocator:
    """One device's allocator, with its recorder."""

    def __init__(
        self,
        total: int = 80 * 1024 * MIB,
        settings: Settings | None = None,
        max_entries: int | None = None,
        device: int = 0,
    ) -> None:
        self.total = total
        self.settings = settings or Settings()
        self.device = device
        self.segments: list[Segment] = []
        self.events: deque = deque(maxlen=max_entries)
        self.max_entries = max_entries
        self.recorded = 0
        self.retries = 0
        self.annotations: list[dict] = []
        self.skip: set[str] = set()
        self.time_us = 1_759_252_584_000_000
        self.next_address = 0x7F00_0000_0000
        self.searches: dict = {}
        self.freeable_pools: set = set()
        # After each recorded event: requested, allocated, active and reserved bytes.
        self.curve: list[tuple[int, int, int, int]] = []

    # -- what a program does

    def malloc(self, asked, stream=0, frames=(), pool=DEFAULT_POOL):
        """Returns the address."""
        frames = list(frames)
        size = self.rounded(asked)
        small = size <= MIB
        place = self._fitting(size, stream, pool, small)
        if place is None:
            self._collect_garbage(frames)
            place = (
                self._grow(size, stream, pool, small, frames)
                or (
                    self._release_oversize(size, stream, pool, small, frames)
                    and self._grow(size, stream, pool, small, frames)
                )
                or (self._retry(frames) and self._grow(size, stream, pool, small, frames))
            )
        if not place:
            self._record("oom", None, size, stream, frames, pool, device_free=self.device_free)
            raise OutOfMemory(f"{asked} bytes")
        segment, block = place
        left = block.size - size
        if small or self.settings.expandable:
            split = left >= 512
        else:
            split = size < self.settings.max_split and left > MIB
        if split:
            rest = Block(block.address + size, left, born=self._searched(segment))
            segment.blocks.insert(segment.blocks.index(block) + 1, rest)
            block.size = size
        block.state, block.asked, block.frames = USED, asked, frames
        self._record("alloc", block.address, asked, stream, frames, pool)
        return block.address

    def free(self, address, frames=(), pending=False):
        """Gives a block back; with `pending`, another stream still uses it (see `complete`)."""
        segment, block = self._find(address)
        assert block.state == USED
        block.state = PENDING
        frames = list(frames)
        self._record(
            "free_requested", address, block.asked, segment.stream, frames or block.frames,
            segment.pool,
        )  # fmt: skip
        if not pending:
            self._finish_free(segment, block, frames)

    def complete(self, address, frames=()):
        """The other streams are done with a block that was given back."""
        segment, block = self._find(address)
        assert block.state == PENDING
        self._finish_free(segment, block, list(frames))

    def empty_cache(self, frames=()):
        self._release_all(list(frames))

    def annotate(self, address, text):
        segment, _ = self._find(address)
        self._record("annotate", address, 0, segment.stream, [], segment.pool, metadata=text)

    def annotate_anyway(self, address, text):
        """An annotation at an address where nothing lives."""
        self._record("annotate", address, 0, 0, [], DEFAULT_POOL, metadata=text)

    def range(self, name, is_start):
        self.time_us += 1
        self.annotations.append(
            {
                "name": name,
                "stage": "START" if is_start else "END",
                "device": self.device,
                "time_us": self.time_us,
            }
        )

    # -- sizes

    def rounded(self, asked):
        divisions = self.settings.divisions
        if asked < 512:
            return 512
        if divisions > 1 and asked > 512 * divisions:
            floor = 1 << (asked.bit_length() - 1)
            if floor == asked:
                return asked
            step = floor >> (divisions.bit_length() - 1)
            return -(-asked // step) * step if step else 2 * floor
        return -(-asked // 512) * 512

    @property
    def reserved(self):
        return sum(
            block.size for s in self.segments for block in s.blocks if block.state != UNMAPPED
        )

    @property
    def device_free(self):
        return self.total - self.reserved

    # -- finding room

    def _searched(self, segment_or_key):
        key = segment_or_key
        if isinstance(key, Segment):
            key = (key.pool, key.small)
        return self.searches.get(key, 0)

    def _fitting(self, size, stream, pool, small):
        settings = self.settings
        if settings.fraction is not None and settings.collect_above > 0:
            self.searches[(pool, small)] = self.searches.get((pool, small), 0) + 1
        found = sorted(
            (
                (block.size, block.address, segment, block)
                for segment in self.segments
                if (segment.stream, segment.pool, segment.small) == (stream, pool, small)
                for block in segment.blocks
                if block.state == FREE and block.size >= size
            ),
            key=lambda entry: entry[:2],
        )
        if not found:
            return None
        at = 0
        if found[0][2].expandable:
            if settings.expandable:
                # The last block of an expandable segment counts as large as it could become.
                while (
                    found[at][2].expandable
                    and at + 1 < len(found)
                    and self._growth(*found[at + 1][2:]) < self._growth(*found[at][2:])
                ):
                    at += 1
            else:
                while at < len(found) and found[at][2].expandable:
                    at += 1
                if at == len(found):
                    return None
        _, _, segment, block = found[at]
        if size < settings.max_split <= block.size:
            return None
        if size >= settings.max_split and block.size >= size + settings.rounding_limit:
            return None
        return segment, block

    @staticmethod
    def _growth(segment, block):
        after = segment.blocks.index(block) + 1
        grows = after < len(segment.blocks) and segment.blocks[after].state == UNMAPPED
        return block.size + (segment.blocks[after].size if grows else 0)

    def _allowed(self, size):
        limit = self.total
        if self.settings.fraction is not None:
            limit = int(self.total * self.settings.fraction)
        return self.reserved + size <= limit

    def _grow(self, size, stream, pool, small, frames):
        if small:
            asked = 2 * MIB
        elif size < 10 * MIB:
            asked = 20 * MIB
        else:
            asked = -(-size // (2 * MIB)) * 2 * MIB
        if self.settings.fraction is not None and not self._allowed(asked):
            return None
        if self.settings.expandable:
            return self._map_room(size, stream, pool, small, frames)
        if not self._allowed(asked):
            return None
        segment = Segment(
            self.device, self._new_address(asked), stream, pool, small, False, frames,
            [Block(0, asked, born=self._searched((pool, small)))],
        )  # fmt: skip
        segment.blocks[0].address = segment.address
        self.segments.append(segment)
        self._record("segment_alloc", segment.address, asked, stream, frames, pool)
        return segment, segment.blocks[0]

    def _new_address(self, size):
        address = self.next_address
        self.next_address += -(-size // (2 * MIB)) * 2 * MIB
        return address

    # -- expandable segments

    def _map_room(self, size, stream, pool, small, frames):
        page = 2 * MIB if small else 20 * MIB
        for segment in sorted(self.segments, key=lambda s: s.address):
            if not segment.expandable:
                continue
            if (segment.stream, segment.pool, segment.small) != (stream, pool, small):
                continue
            for at, block in enumerate(segment.blocks):
                if block.state != UNMAPPED:
                    continue
                start = at - 1 if at and segment.blocks[at - 1].state == FREE else at
                room = 0
                for other in segment.blocks[start:]:
                    if room >= size or other.state not in (FREE, UNMAPPED):
                        break
                    room += other.size
                if room >= size:
                    return self._map_from(segment, segment.blocks[start], size, page, frames)
        space = -(-(self.total + self.total // 8) // page) * page
        segment = Segment(
            self.device, self._new_address(space), stream, pool, small, True, frames, []
        )
        segment.blocks.append(Block(segment.address, space, UNMAPPED))
        self.segments.append(segment)
        return self._map_from(segment, segment.blocks[0], size, page, frames)

    def _map_from(self, segment, block, size, page, frames):
        if block.state == UNMAPPED:
            block = self._map(segment, block, min(block.size, size), page, frames)
        while block is not None and block.size < size:
            after = segment.blocks[segment.blocks.index(block) + 1]
            block = self._map(segment, after, min(size - block.size, after.size), page, frames)
        return None if block is None else (segment, block)

    def _map(self, segment, block, size, page, frames):
        size = -(-size // page) * page
        if self.reserved + size > self.total:
            return None
        at = segment.blocks.index(block)
        mapped = Block(block.address, size, FREE, born=self._searched(segment))
        pieces = [mapped]
        if block.size > size:
            pieces.append(Block(block.address + size, block.size - size, UNMAPPED))
        segment.blocks[at : at + 1] = pieces
        self._merge(segment, mapped)
        self._record("segment_map", block.address, size, segment.stream, frames, segment.pool)
        return next(b for b in segment.blocks if b.address <= block.address < b.address + b.size)

    def _unmap_pages(self, segment, block, frames):
        page = 2 * MIB if segment.small else 20 * MIB
        begin = segment.address + -(-(block.address - segment.address) // page) * page
        end = segment.address + (block.address + block.size - segment.address) // page * page
        if begin >= end:
            return
        at = segment.blocks.index(block)
        pieces = []
        if begin > block.address:
            pieces.append(Block(block.address, begin - block.address, born=self._searched(segment)))
        gone = Block(begin, end - begin, UNMAPPED)
        pieces.append(gone)
        if end < block.address + block.size:
            pieces.append(
                Block(end, block.address + block.size - end, born=self._searched(segment))
            )
        segment.blocks[at : at + 1] = pieces
        self._merge(segment, gone)
        self._record("segment_unmap", begin, end - begin, segment.stream, frames, segment.pool)
        if len(segment.blocks) == 1 and segment.blocks[0].state == UNMAPPED:
            self.segments.remove(segment)

    # -- giving back

    def _finish_free(self, segment, block, frames):
        address, asked, frames = block.address, block.asked, frames or block.frames
        block.state, block.asked, block.frames = FREE, 0, []
        block.born = self._searched(segment)
        self._record("free_completed", address, asked, segment.stream, frames, segment.pool)
        self._merge(segment, block)

    def _merge(self, segment, block):
        """Joins a block with neighbours in the same state (free or unmapped)."""
        at = segment.blocks.index(block)
        for other in (at + 1, at - 1):
            if 0 <= other < len(segment.blocks) and segment.blocks[other].state == block.state:
                neighbour = segment.blocks[other]
                block.address = min(block.address, neighbour.address)
                block.size += neighbour.size
                segment.blocks.remove(neighbour)
        return block

    def _give_back(self, segment, frames):
        self.segments.remove(segment)
        self._record(
            "segment_free", segment.address, segment.blocks[0].size, segment.stream,
            frames or segment.frames, segment.pool,
        )  # fmt: skip

    def _retry(self, frames):
        self.retries += 1
        return self._release_all(frames)

    def _release_all(self, frames):
        for segment in list(self.segments):
            for block in list(segment.blocks):
                if block.state == PENDING:  # waits for the streams, then frees
                    self._finish_free(segment, block, frames)
        order = [(DEFAULT_POOL, False), (DEFAULT_POOL, True)]
        for pool in sorted(self.freeable_pools):
            order += [(pool, True), (pool, False)]
        for pool, small in order:
            mine = [s for s in self.segments if (s.pool, s.small) == (pool, small)]
            free = sorted(
                (s.stream, b.size, b.address, k)
                for k, s in enumerate(mine)
                for b in s.blocks
                if b.state == FREE
            )
            for _, _, _, k in free:
                if not mine[k].expandable and mine[k].is_whole:
                    self._give_back(mine[k], frames)
            for _, _, address, k in free:
                if mine[k].expandable:
                    block = next(b for b in mine[k].blocks if b.address == address)
                    self._unmap_pages(mine[k], block, frames)
        return True

    def _release_oversize(self, size, stream, pool, small, frames):
        limit = self.settings.max_split
        if limit >= UNLIMITED:
            return False
        wanted = max(size, limit)
        free = sorted(
            (
                (b.size, b.address, s)
                for s in self.segments
                if (s.stream, s.pool, s.small) == (stream, pool, small)
                for b in s.blocks
                if b.state == FREE
            ),
            key=lambda entry: entry[:2],
        )
        fitting = [entry for entry in free if entry[0] >= wanted]
        if fitting:
            self._give_back(fitting[0][2], frames)
            return True
        released = 0
        for got, _, segment in reversed(free):
            if released >= wanted or got < limit:
                break
            released += got
            self._give_back(segment, frames)
        return released >= wanted

    def _collect_garbage(self, frames):
        settings = self.settings
        if settings.fraction is None or settings.collect_above <= 0:
            return
        threshold = int(settings.collect_above * int(self.total * settings.fraction))
        if self.reserved <= threshold:
            return
        target = self.reserved - threshold

        def whole():
            return [
                s for s in self.segments
                if s.pool == DEFAULT_POOL and not s.small and not s.expandable and s.is_whole
            ]  # fmt: skip

        now = self.searches.get((DEFAULT_POOL, False), 0)
        reclaimed, freed = 0, True
        while reclaimed < target and freed and whole():
            ages = {s.address: now - s.blocks[0].born for s in whole()}
            limit = sum(ages.values()) / len(ages)
            freed = False
            for segment in sorted(whole(), key=lambda s: (s.stream, s.blocks[0].size, s.address)):
                if ages[segment.address] >= limit:
                    freed = True
                    reclaimed += segment.blocks[0].size
                    self._give_back(segment, frames)

    def _find(self, address):
        return next(
            (segment, block)
            for segment in self.segments
            for block in segment.blocks
            if block.address == address and block.state in (USED, PENDING)
        )

    # -- the recorder

    def _record(
        self, action, address, size, stream, frames, pool, device_free=None, metadata=""
    ):  # fmt: skip
        self.time_us += 7
        if action in self.skip:
            return
        event = {"action": action}
        if device_free is None:
            event["addr"] = address
        else:
            event["device_free"] = device_free
        event |= {"size": size, "stream": stream, "time_us": self.time_us}
        event |= {"compile_context": "N/A", "user_metadata": metadata, "pool_id": pool}
        event["frames"] = frames
        self.events.append(event)
        self.recorded += 1
        held = [b for s in self.segments for b in s.blocks if b.state in (USED, PENDING)]
        used = [b for b in held if b.state == USED]
        self.curve.append(
            (
                sum(b.asked for b in used),
                sum(b.size for b in used),
                sum(b.size for b in held),
                self.reserved,
            )
        )

    def snapshot(self):
        """What `torch.cuda.memory._snapshot()` would return."""
        segments = []  # of an expandable one, each mapped stretch
        for segment in sorted(self.segments, key=lambda s: s.address):
            blocks: list[dict] = []
            for block in [*segment.blocks, Block(0, 0, UNMAPPED)]:
                if block.state == UNMAPPED:
                    if blocks:
                        segments.append(self._segment_record(segment, blocks))
                    blocks = []
                    continue
                blocks.append(
                    {
                        "address": block.address,
                        "size": block.size,
                        "requested_size": block.asked,
                        "state": {
                            FREE: "inactive",
                            USED: "active_allocated",
                            PENDING: "active_pending_free",
                        }[block.state],
                        "frames": block.frames,
                    }
                )
        traces = [[] for _ in range(self.device)] + [list(self.events)]
        settings = self.settings
        split = settings.max_split
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": -1 if split >= UNLIMITED else split,
                "garbage_collection_threshold": settings.collect_above,
                "expandable_segments": settings.expandable,
                "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False,
                "roundup_power2_divisions": {
                    str(1 << power): settings.divisions for power in range(16)
                },
            },
            "external_annotations": list(self.annotations),
        }

    def _segment_record(self, segment, blocks):
        active = [b for b in blocks if b["state"] != "inactive"]
        return {
            "device": segment.device,
            "address": blocks[0]["address"],
            "total_size": sum(b["size"] for b in blocks),
            "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in active),
            "requested_size": sum(b["requested_size"] for b in active),
            "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": segment.pool,
            "is_expandable": segment.expandable,
            "frames": segment.frames,
            "blocks": blocks,
        }
