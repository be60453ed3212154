"""The published claims, and what a run says of each in paper mode and in strict mode."""

from anchorscope.pathways.claims.evidence import RunEvidence, from_tables
from anchorscope.pathways.claims.reference import reference_bands
from anchorscope.pathways.claims.table import COLUMNS, claims_table

__all__ = ["COLUMNS", "RunEvidence", "claims_table", "from_tables", "reference_bands"]
