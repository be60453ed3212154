"""Statistics: intervals, bootstrap draws, ranking metrics, logistic regression, dip test."""
