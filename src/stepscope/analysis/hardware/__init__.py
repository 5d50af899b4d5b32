"""What a device can do, and how much of it is used."""
