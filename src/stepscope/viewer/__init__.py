"""The viewer: a local web application over the tables of a trace. Never imports torch."""
