"""What a snapshot tells about the program: its ranges and steps, and the lines of its stacks."""
