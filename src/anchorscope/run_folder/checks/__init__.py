"""Checks of a folder: is there room for it, is every file as it was written."""
