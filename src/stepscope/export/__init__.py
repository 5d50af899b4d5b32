"""Hands traces and runs over to other tools: Perfetto, speedscope, TensorBoard, spreadsheets."""
