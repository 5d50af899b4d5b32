"""What the threads of the host were doing at each moment, and why a GPU had to wait for them."""
