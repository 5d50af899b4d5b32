"""Reads Perfetto's protobuf traces (`.pftrace`) with track events, as newer torch writes them."""
