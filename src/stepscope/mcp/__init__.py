"""The MCP server: answers a language model's questions about recordings in allowed folders."""
