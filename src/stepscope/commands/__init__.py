"""The command line: one module per verb. A verb parses, calls and picks an output."""
