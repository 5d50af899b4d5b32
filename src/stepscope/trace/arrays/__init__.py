"""Arrays and columns: interval sets, orders, searches, and memory for compiled loops."""
