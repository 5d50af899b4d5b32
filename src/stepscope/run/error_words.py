"""What went wrong, in words for whoever reads it in a log, a manifest or a report."""

from __future__ import annotations


def error_in_words(error: BaseException) -> str:
    """An error in one phrase.

    Errors of the operating system and Stepscope's own say what happened: their class and number
    would tell a reader nothing more. Of any other error the class is half of what it says.
    """
    if isinstance(error, OSError) and error.strerror:
        told = error.strerror
        return f"{told}: {error.filename}" if error.filename is not None else told
    told = str(error)
    if told and type(error).__module__.partition(".")[0] == "stepscope":
        return told
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
