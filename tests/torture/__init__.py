"""Hostile inputs by grammars: a few in every test run, thousands in `make torture`."""
