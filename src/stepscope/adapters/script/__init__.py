"""Records scripts that do not use Stepscope."""
