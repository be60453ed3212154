"""What a person looks at of a study: a figure for each panel, and one page."""
