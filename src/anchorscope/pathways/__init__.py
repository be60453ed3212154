"""From readings to pathways: effects of an intervention, groups of samples, tables."""
