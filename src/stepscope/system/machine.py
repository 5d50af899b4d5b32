"""The machine: files under a root, variables, the user."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.system.usage import allowed_cpus

# Bits of the kernel's capability mask (capabilities(7)).
_CAPABILITY_BITS = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


@dataclass(frozen=True)
class Machine:
    """The machine, which tests replace.

    Attributes:
        system: As in `sys.platform`: "linux", "darwin", "win32".
        root: Root of the system's files: "/" outside tests.
        environment: The environment variables.
        user: Effective user ID; None if the system has none.
        cpu_count: CPUs that this process may be scheduled on.
        beside: The folder of this Python, where its packages install programs; None for none.
    """

    system: str
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    cpu_count: int = 1
    beside: Path | None = None

    @property
    def is_linux(self) -> bool:
        """Whether the system has files under /proc and /sys."""
        return self.system.startswith("linux")

    def read(self, path: str) -> str | None:
        """The stripped text of a system file; None if it cannot be read."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def read_number(self, path: str) -> int | None:
        """The integer in a system file; None if there is none."""
        text = self.read(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def path(self, path: str) -> Path:
        """The path of a system file, below the root."""
        return self.root / path.lstrip("/")

    def find_program(self, name: str) -> str | None:
        """The path of a program, on PATH or next to this Python; None if it is not found."""
        found = shutil.which(name, path=self.environment.get("PATH", ""))
        if found is None and self.beside is not None:
            found = shutil.which(name, path=str(self.beside))
        return found

    def has_capability(self, name: str) -> bool:
        """Whether this process has a capability of the Linux kernel.

        Raises:
            KeyError: No check uses a capability of this name.
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
    """The machine that runs this process."""
    user = os.geteuid() if hasattr(os, "geteuid") else None
    beside = Path(sys.executable).parent if sys.executable else None
    return Machine(sys.platform, Path("/"), dict(os.environ), user, allowed_cpus(), beside)
