"""Faults in folders: kills, full disks, torn files, jumping clocks, two owners, no memory."""
