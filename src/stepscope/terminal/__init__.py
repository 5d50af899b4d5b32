"""What a command shows on a terminal beside its result, and how texts are made safe for one."""
