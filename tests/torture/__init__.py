"""Attempts to break anchorscope: real commands with faults, and hostile inputs; `make torture`."""
