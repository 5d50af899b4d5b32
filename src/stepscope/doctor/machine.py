"""What the checks may know of the machine: files under a root, variables, the user."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Bits of the kernel's capability mask (capabilities(7)).
_CAPABILITY_BITS = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


@dataclass(frozen=True)
class Machine:
    """The machine as the checks see it; tests give them one of their own making.

    Attributes:
        system: As `sys.platform`: "linux", "darwin", "win32".
        root: Where the system's files are looked for: "/" outside tests.
        environment: The environment variables.
        user: Effective user number; None where the system has none.
        cpu_count: CPUs that this process may be scheduled on.
        beside: The folder of this Python, where its packages put their programs; None for none.
    """

    system: str
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    cpu_count: int = 1
    beside: Path | None = None

    @property
    def is_linux(self) -> bool:
        """Whether the system's files under /proc and /sys can be expected."""
        return self.system.startswith("linux")

    def read(self, path: str) -> str | None:
        """The text of a file of the system, without blanks around it; None if it cannot be read."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def read_number(self, path: str) -> int | None:
        """The whole number that a file of the system holds; None if it holds none."""
        text = self.read(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def path(self, path: str) -> Path:
        """A file of the system, below the root."""
        return self.root / path.lstrip("/")

    def find_program(self, name: str) -> str | None:
        """Where a program stands, on the PATH or beside this Python; None if it is not there."""
        found = shutil.which(name, path=self.environment.get("PATH", ""))
        if found is None and self.beside is not None:
            found = shutil.which(name, path=str(self.beside))
        return found

    def has_capability(self, name: str) -> bool:
        """Whether this process holds a capability of the Linux kernel.

        Raises:
            KeyError: The name is none of those that the checks ask for.
        """
        bit = _CAPABILITY_BITS[name]
        for line in (self.read("/proc/self/status") or "").splitlines():
            key, _, value = line.partition(":")
            if key == "CapEff":
                try:
                    return bool(int(value.strip(), 16) >> bit & 1)
                except ValueError:
                    return False
        return False


def this_machine() -> Machine:
    """The machine that we run on."""
    user = os.geteuid() if hasattr(os, "geteuid") else None
    if hasattr(os, "sched_getaffinity"):
        cpu_count = len(os.sched_getaffinity(0))
    else:
        cpu_count = os.cpu_count() or 1
    beside = Path(sys.executable).parent if sys.executable else None
    return Machine(sys.platform, Path("/"), dict(os.environ), user, cpu_count, beside)
