"""The diagnosis: the verdict, where the step goes, and what to change."""

from stepscope.report.diagnosis.blocks import document, frames
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.page import page

__all__ = ("FULL_WRAPS", "document", "frames", "page", "to_json")

FULL_WRAPS = True
"""Lines of the full report wrap where nobody watches, too."""
