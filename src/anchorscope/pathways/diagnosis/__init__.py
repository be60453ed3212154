"""Why a finding is what it is: what the probe reads, and how many questions would decide."""
