"""Run folders: where each file is, how it is written, read and verified."""
