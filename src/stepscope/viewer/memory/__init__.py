"""The memory view's side of the server: a snapshot of any size in pictures of bounded size."""
