"""Reports of plans: text, page and timeline."""
