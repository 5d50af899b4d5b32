"""Recording a script that knows nothing of Stepscope."""
