"""Checks that a tag names the version of the package, and that the changelog describes it.

python scripts/check_release.py v1.2.3
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def problems(tag: str, version: str, changelog: str) -> list[str]:
    """What keeps a tag from being released."""
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and the version of the package {version}")
    if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version) is None:
        found.append(f"{version} is no version to release: give it as 1.2.3, or 1.2.3rc1")
    if f"\n## [{version}]" not in changelog:
        found.append(f"CHANGELOG.md has no section [{version}]")
    return found


def main() -> None:
    """Check the tag that was given."""
    (tag,) = sys.argv[1:]
    names: dict[str, str] = {}
    exec((ROOT / "src" / "stepscope" / "_version.py").read_text("utf-8"), names)
    found = problems(tag, names["__version__"], (ROOT / "CHANGELOG.md").read_text("utf-8"))
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
