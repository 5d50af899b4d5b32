"""Who makes whom wait, for which cause, after what was inherited is passed back."""
