"""What bounds a pass: the memory of the device, and processes that run out of it together."""
