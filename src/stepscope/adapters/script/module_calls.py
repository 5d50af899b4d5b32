"""Reports the outermost calls of modules, which are the steps of an inference loop."""

from __future__ import annotations

from typing import Any, Protocol


class Recorder(Protocol):
    """What counts steps."""

    def listens(self) -> bool:
        """Whether this process and thread is the one whose steps are recorded."""

    def before_call(self) -> None:
        """The outermost call of a module begins."""

    def after_call(self) -> None:
        """The outermost call of a module has ended."""


class ModuleCalls:
    """Reports a call of a module that no other module made.

    It uses torch's hooks for all modules, which makes each call of a module a little slower.

    Args:
        recorder: Counts steps.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depth = 0

    def install(self) -> None:
        """Listen to the calls of all modules."""
        from torch.nn.modules import module

        module.register_module_forward_pre_hook(self._before)
        module.register_module_forward_hook(self._after, always_call=True)

    def _before(self, _module: Any, _inputs: Any) -> None:
        if not self._recorder.listens():
            return
        self._depth += 1
        if self._depth == 1:
            self._recorder.before_call()

    def _after(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if not self._recorder.listens() or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._recorder.after_call()
