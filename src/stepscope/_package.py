"""Where the package lies, for what starts other processes with it or looks at its own files."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
"""The directory of the package itself."""

IMPORT_ROOT = PACKAGE.parent
"""The directory that has to be on `sys.path` for `import stepscope` to find this very package."""
